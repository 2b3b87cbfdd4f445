"""Running statistics of batch norm that stay with their client, whatever the method."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import pictures as make_pictures
from stopping import Stop, same, stop_after

import fedkin
from fedkin import Federation
from fedkin.api import prepare
from fedkin.engine.worker import Worker
from fedkin.layout import Layout
from fedkin.methods import registry

SETTINGS: dict[str, Any] = {
    "model": "lenet5-bn", "rounds": 3, "epochs": 1, "batch": 8, "lr": 0.05, "engine": "inline", "statistics": "local",
    "schedule": "sync", "minibatches": 0,
}  # fmt: skip


def layout() -> Layout:
    return Layout(prepare("fedavg", data=make_pictures(), model="lenet5-bn").module)


def test_a_global_model_differs_from_client_to_client_in_its_statistics_alone(pictures: Federation) -> None:
    result = fedkin.run("fedavg", data=pictures, **SETTINGS)
    rows = torch.stack([result.models[i] for i in range(4)])
    parts = layout()
    assert all(torch.equal(parts.parameters.of(rows)[0], row) for row in parts.parameters.of(rows))
    assert len(parts.norm_statistics.of(rows).unique(dim=0)) == 4


def test_statistics_are_those_of_the_clients_own_batches(pictures: Federation) -> None:
    """After one round from the same start, sharing or not makes no difference to what a client has seen."""
    kept = fedkin.run("fedavg", data=pictures, **SETTINGS | {"rounds": 1})
    alone = fedkin.run("local-only", data=pictures, **SETTINGS | {"rounds": 1})
    for i in range(4):
        own = layout().norm_statistics
        assert torch.equal(own.of(kept.models[i]), own.of(alone.models[i]))


def test_they_go_on_from_the_clients_own_and_not_from_the_mean(pictures: Federation) -> None:
    kept, shared = (
        fedkin.run("fedavg", data=pictures, **SETTINGS | {"statistics": how, "rounds": 2}).models[0]
        for how in ("local", "shared")
    )
    assert not torch.equal(layout().norm_statistics.of(kept), layout().norm_statistics.of(shared))
    assert torch.allclose(layout().parameters.of(kept), layout().parameters.of(shared))


def test_a_global_model_that_is_everybodys_own_is_judged_once(
    pictures: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    judge = Worker._judge
    monkeypatch.setattr(Worker, "_judge", lambda *given: asked.extend(given[2]) or judge(*given))
    result = fedkin.run("fedavg", data=pictures, **SETTINGS | {"evaluate_every": 3})
    assert sorted(asked) == [0, 1, 2, 3]
    own, everywhere = result.history[-1].scores
    assert own.correct == everywhere.correct


@pytest.mark.parametrize("name", registry())
def test_every_method_can_keep_them_local_and_resumes(name: str, tmp_path: Any, pictures: Federation) -> None:
    settings = SETTINGS | {"checkpoint_every": 1}
    whole = fedkin.run(name, data=pictures, out=tmp_path / "whole", **settings)
    with pytest.raises(Stop):
        fedkin.run(name, data=pictures, out=tmp_path / "stopped", watch=stop_after(2), **settings)
    assert same(whole, fedkin.resume(tmp_path / "stopped", data=pictures))


def test_part_of_a_model_that_travels_takes_its_statistics_from_the_client(pictures: Federation) -> None:
    """FedPer sends the extractor, batch norm included."""
    result = fedkin.run("fedper", data=pictures, **SETTINGS)
    parts = layout()
    rows = torch.stack([result.models[i] for i in range(4)])
    extractor = parts.extractor & parts.parameters
    assert all(torch.equal(extractor.of(rows)[0], row) for row in extractor.of(rows))
    assert len(parts.norm_statistics.of(rows).unique(dim=0)) == 4


def test_methods_that_send_what_changed_keep_the_same_statistics_as_those_that_send_models(
    pictures: Federation,
) -> None:
    """CFL sends updates; with one cluster it is FedAvg, and its clients go on from their own statistics too."""
    fedavg, cfl = (fedkin.run(name, data=pictures, **SETTINGS | {"rounds": 3}) for name in ("fedavg", "cfl"))
    for i in range(4):
        own = layout().norm_statistics
        torch.testing.assert_close(own.of(cfl.models[i]), own.of(fedavg.models[i]), rtol=1e-4, atol=1e-5)
