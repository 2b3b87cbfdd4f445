"""No tensor of the hot path is made without its device.

There may be no GPU here, so clients' work is done again on PyTorch's `meta` device: its tensors have shapes and
types but hold no numbers, and mixing them with tensors on another device is an error, as it is on a real GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import pictures
from torch import Tensor

from fedkin.api import prepare
from fedkin.client import Client
from fedkin.cohort import Cohort
from fedkin.engine.inline import Inline
from fedkin.engine.worker import Job, Worker
from fedkin.methods import registry
from fedkin.setup import Setup
from fedkin.simulate import Simulation

ELSEWHERE = torch.device("meta")


@pytest.fixture(autouse=True)
def _numbers_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whether a loss is finite cannot be asked of a number that does not exist.
    monkeypatch.setattr(Client, "check_loss", lambda self, lr: None)
    monkeypatch.setattr(Cohort, "_settle", lambda self, total, taken, lr: None)


class Noting(Inline):
    """Runs on the CPU and notes what clients were asked to do."""

    def __init__(self, site: Any) -> None:
        super().__init__(site)
        self.asked: list[Job] = []

    def map(self, function: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        if function == "local":
            self.asked += [job for call in calls for job in call[0]]
        return super().map(function, calls)


def played(method: str, model: str) -> tuple[Setup, Simulation, list[Job]]:
    """Four rounds on the CPU."""
    setup = prepare(
        method, data=pictures(), model=model, rounds=4, epochs=1, batch=16, momentum=0.5, weight_decay=0.1, lr=0.01,
        join=0.5, vectorize="off",
    )  # fmt: skip
    engine = Noting(setup.site())
    simulation = Simulation(setup, engine)
    for _ in range(4):
        simulation.round()
    return setup, simulation, engine.asked


def is_elsewhere(values: dict[str, Any]) -> bool:
    return all(v.device == ELSEWHERE for v in values.values() if isinstance(v, Tensor))


def looks_at_numbers(error: Exception) -> bool:
    """Whether a method needed a number's value, which is allowed but ends the check."""
    return any(words in str(error) for words in ("on meta tensors", "Cannot copy out of meta", "aten::_local_scalar"))


def test_two_devices_cannot_be_mixed() -> None:
    """The tests below can fail."""
    with pytest.raises(RuntimeError):
        torch.zeros(3, device=ELSEWHERE) + torch.zeros(3)


@pytest.mark.parametrize("name", registry())
def test_clients_work_stays_on_the_device(name: str) -> None:
    setup, simulation, asked = played(name, "lenet5-bn")
    there = Worker(replace(setup.site(), device="meta"))
    method = setup.method
    try:
        for job in {(job.round, job.exchange): job for job in asked}.values():
            client = there.client(job)
            assert client.bound.w.device == client.samples.x.device == client.train.device == ELSEWHERE
            assert is_elsewhere(method.local(client, there._here(job.message)))
            assert is_elsewhere(client.private)
        client = there.client(Job(0, {}, simulation.clients.private.get(0, {})))
        predict = method.predictor(client, there._here(method.serve(simulation.state, 0)))
        for x, y in client.test_batches():
            assert predict(x).device == y.device == ELSEWHERE
    except (NotImplementedError, RuntimeError) as error:
        if not looks_at_numbers(error):
            raise
        pytest.skip(f"{name} decides by the value of a number: {error}")


@pytest.mark.parametrize("name", [name for name, cls in registry().items() if cls.vectorizes])
def test_a_cohort_stays_on_the_device(name: str) -> None:
    setup, _, asked = played(name, "mlp")
    there = Worker(replace(setup.site(), device="meta"))
    for exchange in setup.method.vectorizes:
        round = max(job.round for job in asked if job.exchange == exchange)
        jobs = [job for job in asked if (job.round, job.exchange) == (round, exchange)]
        cohort = Cohort([there.client(job) for job in jobs])
        names = [key for key, value in jobs[0].message.items() if isinstance(value, Tensor)]
        stacked = {key: torch.stack([there._here(job.message)[key] for job in jobs]) for key in names}
        reply = setup.method.local(cohort, {**jobs[0].message, **stacked})
        models = [value for value in reply.values() if isinstance(value, Tensor) and value.ndim == 2]
        assert models
        assert all(model.device == ELSEWHERE for model in models)
