"""Small federations that tests share. Fast tests run first, slow ones last."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import fedkin
from fedkin import Federation
from fedkin.result import Result

pytest.register_assert_rewrite("commands")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Among several workers, first the file that mostly waits (for heartbeats of real nodes): one has it to the end.
    waits = "test_flower.py" if "PYTEST_XDIST_WORKER" in os.environ else "none"
    items.sort(key=lambda item: (waits not in item.nodeid, item.get_closest_marker("slow") is not None))


def blobs(clients: int = 4, features: int = 6, classes: int = 3, seed: int = 0) -> Federation:
    """Clients with different numbers of points around class centres; each sees two of three classes."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, features)) * 2
    pairs = []
    for i in range(clients):
        n = 20 + 7 * i
        y = np.resize([i % classes, (i + 1) % classes], n)
        pairs.append((centres[y] + rng.normal(size=(n, features)), y))
    return Federation.from_arrays(pairs, name="blobs")


def pictures(clients: int = 4, size: int = 16, seed: int = 0) -> Federation:
    """Tiny uint8 images, bright on the left or on the right, with noise."""
    rng = np.random.default_rng(seed)
    pairs = []
    for i in range(clients):
        n = 24 + 6 * i
        y = rng.integers(0, 2, n)
        y[:2] = (0, 1)
        x = rng.integers(0, 120, (n, 1, size, size))
        half = size // 2
        for k in range(n):
            x[k, :, :, half * y[k] : half * (y[k] + 1)] += 100
        pairs.append((x.astype(np.uint8), y))
    return Federation.from_arrays(pairs, name="pictures")


@pytest.fixture(name="blobs")
def _blobs() -> Federation:
    return blobs()


@pytest.fixture(name="pictures")
def _pictures() -> Federation:
    return pictures()


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A run of three rounds; tests copy it."""
    path = tmp_path_factory.mktemp("made") / "run"
    return path, fedkin.run("spfl", data="digits", clients=4, rounds=3, refresh=2, seed=5, out=path)


@pytest.fixture
def root(tmp_path: Path, made: tuple[Path, Result]) -> Path:
    """A folder with one run deep in it."""
    shutil.copytree(made[0], tmp_path / "runs/deep/good")
    return tmp_path / "runs"


def three_folders(folder: Path, names: tuple[str, ...], most: int | None = None) -> Path:
    """A folder of handwritten digits for each of three clients, who share some classes and have some to themselves."""
    x, y = load_digits(return_X_y=True)
    images = (x.reshape(-1, 1, 8, 8) * 255 / 16).astype(np.uint8)
    for k, name in enumerate(names):
        rows = [i for i in range(len(y)) if i % 3 == k and (y[i] + 3 * k) % 10 < 7][:most]
        (folder / name).mkdir()
        np.savez(folder / name / "samples.npz", x=images[rows], y=y[rows])
    return folder
