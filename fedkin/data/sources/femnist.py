"""FEMNIST: handwritten characters by writer, from the JSON files that LEAF builds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fedkin.data.dataset import Dataset
from fedkin.data.sources.entry import Entry, Part
from fedkin.data.sources.idx import CHARACTERS
from fedkin.data.sources.pixels import Arrays, Pixels, cached, statistics
from fedkin.errors import FedkinError

PATTERN = "all_data_*.json"


def read_femnist(root: Path) -> Dataset:
    """Every writer in LEAF's files, x [n, 1, 28, 28]; LEAF has no test file. Decoded once, then kept."""
    folder = root / "femnist"
    sources = sorted(folder.glob(PATTERN))
    # Files that are added later must not go unnoticed; files deleted to save room may.
    stamp = " ".join(f"{path.name}:{path.stat().st_size}" for path in sources)
    keys = ("x", "label", "writer", "writers", "mean", "std")
    arrays = cached(folder / "femnist28.npz", keys, lambda: _build(folder, sources), stamp)
    return Dataset(
        name="femnist",
        x=arrays["x"],
        y=arrays["label"].astype(np.int64),
        classes=CHARACTERS,
        mean=tuple(arrays["mean"].tolist()),
        std=tuple(arrays["std"].tolist()),
        is_test=np.zeros(len(arrays["label"]), np.bool_),
        owner=arrays["writer"].astype(np.int64),
        owners=tuple(arrays["writers"].tolist()),
    )


def _build(folder: Path, sources: list[Path]) -> Arrays:
    images: list[Pixels] = []
    labels: list[int] = []
    names: list[str] = []
    for path in sources:
        some_images, some_labels, some_names = _read_file(path)
        images.append(some_images)
        labels += some_labels
        names += some_names
    if not labels:
        raise FedkinError(f"there are no samples in {folder}: LEAF's {PATTERN} expected")
    writers, writer = np.unique(names, return_inverse=True)
    x = np.concatenate(images)
    mean, std = statistics(x)
    return {
        "x": x,
        "label": np.array(labels),
        "writer": writer,
        "writers": writers,
        "mean": np.array(mean),
        "std": np.array(std),
    }


def _read_file(path: Path) -> tuple[Pixels, list[int], list[str]]:
    """Images [n, 1, 28, 28], labels and writers. LEAF divides pixels by 255; here they are bytes again."""
    images: list[Pixels] = []
    labels: list[int] = []
    names: list[str] = []
    try:
        for writer, samples in json.loads(path.read_bytes())["user_data"].items():
            x = np.rint(np.array(samples["x"]) * 255).astype(np.uint8).reshape(-1, 1, 28, 28)
            y = [int(label) for label in samples["y"]]
            if len(x) != len(y) or not all(0 <= label < len(CHARACTERS) for label in y):
                raise ValueError(f"{writer} has {len(x)} images and {len(y)} labels, or labels beyond 0 to 61")
            images.append(x)
            labels += y
            names += [writer] * len(y)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FedkinError(f"{path} is not one of LEAF's FEMNIST files: {error}") from error
    return np.concatenate(images) if images else np.empty((0, 1, 28, 28), np.uint8), labels, names


ENTRIES = (
    Entry(
        name="femnist",
        description="handwritten characters and who wrote them",
        classes=62,
        samples=None,
        shape=(1, 28, 28),
        source="Caldas et al., LEAF: a benchmark for federated settings, 2018",
        home="https://github.com/TalwalkarLab/leaf/tree/master/data/femnist",
        licence="none stated for the data, derived from NIST Special Database 19; LEAF is BSD 2-Clause",
        read=read_femnist,
        parts=(
            Part(
                folder="femnist",
                files=(PATTERN,),
                home="https://github.com/TalwalkarLab/leaf/tree/master/data/femnist",
                by_hand=f"build them with LEAF and put its {PATTERN} there",
                compact="femnist28.npz",
            ),
        ),
        clients="about 3,600 writers",
    ),
)
