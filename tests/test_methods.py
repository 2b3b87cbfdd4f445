"""Methods against slow, obvious references in float64."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedkin
from fedkin import Federation, randomness
from fedkin.methods import registry
from fedkin.schedule import participants

SETTINGS: dict[str, Any] = {
    "rounds": 2, "epochs": 2, "batch": 8, "lr": 0.1, "join": 0.75, "seed": 3,
    "dtype": "float64", "engine": "inline", "vectorize": "off",
}  # fmt: skip


class Reference:
    """Federated learning with state dicts, deep copies and torch.optim: slow and obvious."""

    def __init__(self, federation: Federation, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        data = federation.data
        x, mean, std = (torch.tensor(v, dtype=torch.float64) for v in (data.x, data.mean, data.std))
        self.x = (x - mean) / std
        self.y = torch.tensor(data.y)
        self.train = [torch.tensor(rows) for rows in federation.split.train]
        self.momentum, self.weight_decay = momentum, weight_decay

    def initial(self) -> nn.Module:
        with randomness.seeded_globally(SETTINGS["seed"], "init"):
            return fedkin.models.build("mlp", tuple(self.x.shape[1:]), 3).double()

    def sgd(self, model: nn.Module, client: int, round: int, mu: float = 0.0) -> nn.Module:
        anchor, model = copy.deepcopy(model), copy.deepcopy(model)
        optimizer = torch.optim.SGD(
            model.parameters(), SETTINGS["lr"], momentum=self.momentum, weight_decay=self.weight_decay
        )
        order = randomness.generator(SETTINGS["seed"], "train/batches", round, client)
        rows = self.train[client]
        for _ in range(SETTINGS["epochs"]):
            shuffled = rows[torch.randperm(len(rows), generator=order)]
            for k in range(0, len(rows), SETTINGS["batch"]):
                batch = shuffled[k : k + SETTINGS["batch"]]
                loss = nn.functional.cross_entropy(model(self.x[batch]), self.y[batch])
                for p, q in zip(model.parameters(), anchor.parameters(), strict=True):
                    loss = loss + mu / 2 * (p - q.detach()).square().sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return model

    def mean(self, trained: dict[int, nn.Module]) -> nn.Module:
        total = sum(len(self.train[i]) for i in trained)
        result = copy.deepcopy(next(iter(trained.values())))
        for name, p in result.named_parameters():
            values = [
                len(self.train[i]) / total * dict(m.named_parameters())[name] for i, m in trained.items()
            ]
            p.data = torch.stack(values).sum(0).detach()
        return result

    def rounds(self, clients: int, mu: float = 0.0) -> nn.Module:
        model = self.initial()
        for t in range(1, SETTINGS["rounds"] + 1):
            chosen = participants(SETTINGS["seed"], t, clients, SETTINGS["join"])
            assert len(chosen) == 3
            model = self.mean({i: self.sgd(model, i, t, mu) for i in chosen})
        return model


def vector(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 0.01)])
def test_two_rounds_of_fedavg(blobs: Federation, momentum: float, weight_decay: float) -> None:
    ours = fedkin.run("fedavg", data=blobs, momentum=momentum, weight_decay=weight_decay, **SETTINGS)
    theirs = Reference(blobs, momentum, weight_decay).rounds(len(blobs))
    torch.testing.assert_close(ours.models[0], vector(theirs), rtol=0, atol=1e-9)
    assert ours.models.row_of == [0] * len(blobs)


def test_two_rounds_of_fedprox(blobs: Federation) -> None:
    ours = fedkin.run("fedprox", data=blobs, mu=0.7, **SETTINGS)
    theirs = Reference(blobs).rounds(len(blobs), mu=0.7)
    torch.testing.assert_close(ours.models[0], vector(theirs), rtol=0, atol=1e-9)


def test_fedprox_without_its_term_is_fedavg(blobs: Federation) -> None:
    assert torch.equal(
        fedkin.run("fedprox", data=blobs, mu=0.0, **SETTINGS).models.rows,
        fedkin.run("fedavg", data=blobs, **SETTINGS).models.rows,
    )


def test_two_rounds_of_local_only(blobs: Federation) -> None:
    ours, reference = fedkin.run("local-only", data=blobs, **SETTINGS), Reference(blobs)
    models = [reference.initial() for _ in range(len(blobs))]
    for t in (1, 2):
        for i in participants(SETTINGS["seed"], t, len(blobs), SETTINGS["join"]):
            models[i] = reference.sgd(models[i], i, t)
    for i, model in enumerate(models):
        torch.testing.assert_close(ours.models[i], vector(model), rtol=0, atol=1e-9)


def test_local_only_sends_nothing_and_fedavg_two_models_a_participant(blobs: Federation) -> None:
    assert {r.bytes_up + r.bytes_down for r in fedkin.run("local-only", data=blobs, **SETTINGS).history} == {
        0
    }
    result = fedkin.run("fedavg", data=blobs, **SETTINGS)
    size = 8 * result.models.rows.shape[1]
    assert [(r.bytes_down, r.bytes_up) for r in result.history] == [(3 * size, 3 * (size + 8))] * 2


@pytest.mark.parametrize("name", registry())
def test_a_cohort_computes_what_single_clients_do(name: str, blobs: Federation) -> None:
    """For every method that says it can, in float64 to rounding."""
    if not registry()[name].vectorizes:
        pytest.skip(f"{name} works client by client")
    settings = SETTINGS | {"momentum": 0.5, "weight_decay": 0.01}
    single = fedkin.run(name, data=blobs, **settings)
    cohort = fedkin.run(name, data=blobs, **settings | {"vectorize": "on"})
    torch.testing.assert_close(single.models.rows, cohort.models.rows, rtol=0, atol=1e-12)
    assert [r.steps for r in single.history] == [r.steps for r in cohort.history]
    assert [r.train_loss for r in single.history] == pytest.approx([r.train_loss for r in cohort.history])


def test_a_method_in_a_file_of_the_users_own(tmp_path: Path, blobs: Federation) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\n"
        "from fedkin.methods.fedavg import FedAvg\n"
        "@dataclass(frozen=True)\n"
        "class Mine(FedAvg):\n"
        "    name = 'mine'\n"
        "    shrink: float = 0.5\n"
        "    def aggregate(self, state, replies):\n"
        "        super().aggregate(state, replies)\n"
        "        state['w'] = self.shrink * state['w']\n"
    )
    settings = SETTINGS | {"rounds": 1}
    mine = fedkin.run(f"{file}:Mine", data=blobs, shrink="0.25", **settings)
    theirs = fedkin.run("fedavg", data=blobs, **settings)
    assert torch.equal(mine.models.rows, 0.25 * theirs.models.rows)
    processes = fedkin.run(
        f"{file}:Mine", data=blobs, shrink=0.25, **settings | {"engine": "processes", "workers": 1}
    )
    assert torch.equal(mine.models.rows, processes.models.rows)
