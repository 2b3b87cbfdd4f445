"""What a method sends and computes compared with FedAvg: measured on a small federation, not typed.

Measuring all methods takes many seconds, so what was measured of those that come with fedkin is kept in costs.csv,
which `python -m fedkin.costs` prints anew.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from io import StringIO
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from fedkin.api import prepare
from fedkin.data.federation import Federation
from fedkin.engine.inline import Inline
from fedkin.engine.worker import Done
from fedkin.methods import registry
from fedkin.simulate import Simulation, one_thread

ROUNDS = 10


@dataclass(frozen=True)
class Cost:
    """A participant's share over `ROUNDS` rounds in which everybody takes part, as multiples of FedAvg's."""

    down: float
    up: float
    """Bytes from and to the server."""
    steps: float
    """Gradient steps."""
    sends: tuple[str, ...]
    """Names of what clients send, all exchanges together."""

    def __str__(self) -> str:
        return f"{self.down:.2f}x down, {self.up:.2f}x up, {self.steps:.2f}x steps"


class Measured(NamedTuple):
    """Bytes, gradient steps and names of what clients sent over all rounds."""

    down: int
    up: int
    steps: int
    sends: tuple[str, ...]


def cost(name: str) -> Cost:
    """The cost of a method with its default hyper-parameters."""
    it, base = (kept().get(method) or measure(method) for method in (name, "fedavg"))
    return Cost(it.down / base.down, it.up / base.up, it.steps / base.steps, it.sends)


@cache
def kept() -> dict[str, Measured]:
    """What costs.csv holds."""
    rows = csv.DictReader(files("fedkin").joinpath("costs.csv").read_text("utf-8").splitlines())
    return {
        row["method"]: Measured(int(row["down"]), int(row["up"]), int(row["steps"]), tuple(row["sends"].split()))
        for row in rows
    }


def table() -> str:
    """What costs.csv should hold, measured now."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("method", *Measured._fields))
    for name in registry():
        it = measure(name)
        writer.writerow((name, it.down, it.up, it.steps, " ".join(it.sends)))
    return text.getvalue()


class _Watched(Inline):
    """Notes the names of what clients send."""

    def __init__(self, site: Any) -> None:
        super().__init__(site)
        self.sends: dict[str, None] = {}

    def map(self, function: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        results = super().map(function, calls)
        for done in (d for batch in results for d in batch if isinstance(d, Done)):
            self.sends |= dict.fromkeys(done.reply)
        return results


@cache
def measure(method: str) -> Measured:
    """Run a method on four small clients."""
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(20, 64)).astype(np.float32), np.arange(20) % 4) for _ in range(4)]
    network = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    setup = prepare(
        method, data=Federation.from_arrays(clients), model=network, rounds=ROUNDS, join=1.0, epochs=3, batch=8,
        minibatches=0, schedule="sync", evaluate_every=ROUNDS + 1, vectorize="off",
    )  # fmt: skip
    with one_thread(), torch.random.fork_rng():
        engine = _Watched(setup.site())
        simulation = Simulation(setup, engine)
        rounds = [simulation.round()[0] for _ in range(ROUNDS)]
    down, up, steps = (sum(getattr(r, name) for r in rounds) for name in ("bytes_down", "bytes_up", "steps"))
    return Measured(down, up, steps, tuple(engine.sends))


if __name__ == "__main__":
    print(table(), end="")
