"""Methods learn on real data: on digits always, on CIFAR-10 and MNIST where the files are there."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from digits import on_digits

import fedkin
from fedkin.data import catalogue


@cache
def fedavg(**settings: Any) -> float:
    return fedkin.run("fedavg", **settings).accuracy


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "margin"), [("spfl", 0.10), ("spfl-w", 0.08), ("pfedsim", 0.10), ("fedalp", 0.08), ("fedsimsup", 0.10)]
)
def test_each_paper_beats_fedavg_on_digits_as_it_is(method: str, margin: float) -> None:
    """With no settings but the federation: every method uses those of its paper (fewer rounds for FedSimSup)."""
    rounds = {"rounds": 300} if method == "fedsimsup" else {}
    assert on_digits(method, **rounds) > on_digits("fedavg") + margin


def here(*names: str) -> bool:
    return all(catalogue.is_ready(name) for name in names)


@pytest.mark.slow
@pytest.mark.skipif(not here("mnist"), reason="MNIST's files are not in $FEDKIN_DATA")
@pytest.mark.parametrize(("method", "margin"), [("spfl", 0.1), ("pfedsim", 0.1), ("fedalp", 0.03)])
def test_papers_beat_fedavg_on_mnist(method: str, margin: float) -> None:
    common: dict[str, Any] = {
        "data": "mnist", "partition": "shards:2", "clients": 50, "model": "mnist-nn",
        "rounds": 24, "join": 0.4, "epochs": 2, "batch": 32, "lr": 0.05, "evaluate_every": 24, "engine": "inline",
    }  # fmt: skip
    assert fedkin.run(method, **common).accuracy > fedavg(**common) + margin


@pytest.mark.slow
@pytest.mark.skipif(not here("cifar10"), reason="CIFAR-10's files are not in $FEDKIN_DATA")
@pytest.mark.parametrize(("method", "margin"), [("pfedsim", 0.2), ("fedsimsup", 0.2)])
def test_papers_beat_fedavg_on_cifar10(method: str, margin: float) -> None:
    common: dict[str, Any] = {
        "data": "cifar10", "partition": "dirichlet:0.1", "clients": 50, "model": "lenet5",
        "rounds": 16, "join": 0.1, "epochs": 3, "batch": 32, "lr": 0.05, "evaluate_every": 16,
    }  # fmt: skip
    assert fedkin.run(method, **common).accuracy > fedavg(**common) + margin
