"""The two halves of a real federation, with letters carried by hand in this process."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedkin
from fedkin import methods
from fedkin.deploy.at_client import MODEL, Home, answer
from fedkin.deploy.at_server import EVENTS, serve
from fedkin.deploy.post import Came
from fedkin.deploy.terms import FILE, Terms
from fedkin.export import Personal
from fedkin.layout import Layout

NAMES = ("north", "south", "west")
SETTINGS: dict[str, Any] = {"rounds": 2, "epochs": 1, "batch": 16, "lr": 0.05, "model": "mlp", "seed": 3}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three clients with handwritten digits, each with classes of its own and some that are shared."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    images = (x.reshape(-1, 1, 8, 8) * 255 / 16).astype(np.uint8)
    folder = tmp_path_factory.mktemp("digits")
    for k, name in enumerate(NAMES):
        rows = [i for i in range(len(y)) if i % 3 == k and (y[i] + 3 * k) % 10 < 7][:120]
        (folder / name).mkdir()
        np.savez(folder / name / "samples.npz", x=images[rows], y=y[rows])
    np.savez(folder.parent / f"{folder.name}-public.npz", x=images[-20:], y=y[-20:])
    return folder


@dataclass
class ByHand:
    """Hands letters to clients in this process, with faults as a test likes."""

    data: Path
    homes: Path
    public: Path | None = None
    tamper: Callable[[str, bytes], bytes | None] = lambda name, letter: letter
    """What becomes of an answer on its way; None loses it."""
    waiting: dict[str, Came] = field(default_factory=dict)
    seen: list[tuple[str, bytes, bytes]] = field(default_factory=list)

    def online(self) -> dict[bytes, int]:
        return {name.encode(): k for k, name in enumerate(NAMES)}

    def send(self, letter: bytes, node: int, kind: str, ttl: float) -> str:
        name = NAMES[node]
        reply = answer(letter, Home(self.data / name, self.homes / name, public=self.public))
        self.seen.append((name, letter, reply))
        changed = self.tamper(name, reply)
        id = f"m{len(self.seen)}"
        if changed is not None:
            self.waiting[id] = Came(id, node, changed)
        return id

    def answers(self, ids: Iterable[str]) -> list[Came]:
        return [self.waiting.pop(k) for k in list(ids) if k in self.waiting]


KEYS = {name.encode(): name for name in NAMES}


def terms_for(digits: Path, folder: Path, patience: float = 60.0, public: Path | None = None, **run: Any) -> Terms:
    simulated = fedkin.Federation.from_folder(digits, seed=run.get("seed", SETTINGS["seed"]))
    data = simulated.data
    samples = {"shape": data.x.shape[1:], "pixels": True, "classes": data.classes, "mean": data.mean, "std": data.std}
    values = {"clients": NAMES, "run": SETTINGS | run, "samples": samples, "server": {"patience": patience}}
    terms = Terms.of(values, "test")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(terms.to_toml())
    if public:
        shutil.copy(public, folder / "public.npz")
    return terms


def models_of(homes: Path) -> list[torch.Tensor]:
    models = []
    for name in NAMES:
        network = Personal.from_file(homes / name / MODEL).networks[""]
        models.append(Layout(network).flatten(network))
    return models


@pytest.mark.parametrize("method", sorted(methods.registry().keys() - {"fedmd"}))
def test_a_federation_ends_with_the_models_of_the_simulation(method: str, digits: Path, tmp_path: Path) -> None:
    settings = SETTINGS | {"schedule": "stragglers:1" if method in ("plga", "lga") else "sync"}
    terms_for(digits, tmp_path / "fed", method=method, **settings)
    homes = tmp_path / "homes"
    result = serve(ByHand(digits, homes), KEYS, tmp_path / "fed", tmp_path / "fed/runs/one")
    simulated = fedkin.run(method, data=str(digits), engine="inline", vectorize="off", **settings)
    for i, own in enumerate(models_of(homes)):
        torch.testing.assert_close(own, simulated.models[i], rtol=0, atol=0)
    assert result.score.correct == simulated.score.correct
    assert not (tmp_path / "fed/runs/one" / EVENTS).exists()
