"""No tensor of the hot path is made without its device.

There may be no GPU here, so the worker runs on PyTorch's `meta` device: its tensors have shapes and types but
hold no numbers, and mixing them with tensors on another device is an error, as it is on a real GPU.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import pictures
from torch import Tensor

from fedkin.api import prepare
from fedkin.client import Client
from fedkin.cohort import Cohort
from fedkin.engine.worker import Job, Worker
from fedkin.methods import registry

ELSEWHERE = torch.device("meta")


@pytest.fixture(autouse=True)
def _numbers_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whether a loss is finite cannot be asked of a number that does not exist.
    monkeypatch.setattr(Client, "check_loss", lambda self, lr: None)
    monkeypatch.setattr(Cohort, "_settle", lambda self, total, taken, lr: None)


def worker(method: str, model: str) -> Worker:
    setup = prepare(method, data=pictures(), model=model, epochs=1, batch=8, momentum=0.5, weight_decay=0.1)
    return Worker(replace(setup.site(), device="meta"))


def is_elsewhere(values: dict[str, Any]) -> bool:
    return all(v.device == ELSEWHERE for v in values.values() if isinstance(v, Tensor))


def test_two_devices_cannot_be_mixed() -> None:
    """The test below can fail."""
    with pytest.raises(RuntimeError):
        torch.zeros(3, device=ELSEWHERE) + torch.zeros(3)


@pytest.mark.parametrize("name", registry())
@pytest.mark.parametrize("model", ["lenet5-bn", "mlp"])
def test_local_work_stays_on_the_device(name: str, model: str) -> None:
    there = worker(name, model)
    method = there.site.method
    job = Job(1, {"w": torch.zeros(there.bound.layout.size)}, {})
    client = there.client(job, 1, "train")
    assert client.bound.w.device == client.samples.x.device == client.train.device == ELSEWHERE
    assert is_elsewhere(method.local(client, there._here(job.message)))
    assert is_elsewhere(client.private)
    predict = method.predictor(client, there._here(job.message))
    for x, y in client.test_batches():
        assert predict(x).device == y.device == ELSEWHERE


@pytest.mark.parametrize("name", [name for name, cls in registry().items() if cls.vectorizes])
def test_a_cohort_stays_on_the_device(name: str) -> None:
    there = worker(name, "mlp")
    cohort = Cohort([there.client(Job(i, {}, {}), 1, "train") for i in (0, 1)])
    reply = there.site.method.local(cohort, {"w": torch.stack([there.initial, there.initial])})
    models = [value for value in reply.values() if value.ndim == 2]
    assert models
    assert all(model.device == ELSEWHERE for model in models)
