"""Local-only, FedAvg and FedProx against references, and what every method can do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from reference import SETTINGS, Reference, close, run, vector
from torch import Tensor, nn

import fedkin
from fedkin import Federation
from fedkin.methods import registry


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 0.01)])
def test_two_rounds_of_fedavg(blobs: Federation, momentum: float, weight_decay: float) -> None:
    settings = SETTINGS | {"momentum": momentum, "weight_decay": weight_decay}
    ours = run("fedavg", blobs, **settings)
    close(ours.models[0], vector(Reference(blobs, settings).fedavg(2)))
    assert ours.models.row_of == [0] * len(blobs)


def test_two_rounds_of_fedprox(blobs: Federation) -> None:
    reference = Reference(blobs)
    model = reference.initial()
    for t in (1, 2):
        anchor = [p.detach().clone() for p in model.parameters()]

        def pull(m: nn.Module, anchor: list[Tensor] = anchor) -> Tensor:
            return 0.7 / 2 * sum(((p - q).square().sum() for p, q in zip(m.parameters(), anchor, strict=True)), 0.0)

        model = reference.mean({i: reference.sgd(model, i, t, penalty=pull) for i in reference.who(t)})
    close(run("fedprox", blobs, mu=0.7).models[0], vector(model))


def test_fedprox_without_its_term_is_fedavg(blobs: Federation) -> None:
    assert torch.equal(run("fedprox", blobs, mu=0.0).models.rows, run("fedavg", blobs).models.rows)


def test_two_rounds_of_local_only(blobs: Federation) -> None:
    reference = Reference(blobs)
    models = [reference.initial() for _ in range(len(blobs))]
    for t in (1, 2):
        for i in reference.who(t):
            models[i] = reference.sgd(models[i], i, t)
    ours = run("local-only", blobs)
    for i, model in enumerate(models):
        close(ours.models[i], vector(model))


def test_local_only_sends_nothing_and_fedavg_two_models_a_participant(blobs: Federation) -> None:
    assert {r.bytes_up + r.bytes_down for r in run("local-only", blobs).history} == {0}
    result = run("fedavg", blobs)
    size = 8 * result.models.rows.shape[1]
    assert [(r.bytes_down, r.bytes_up) for r in result.history] == [(3 * size, 3 * (size + 8))] * 2


@pytest.mark.parametrize("name", [name for name, cls in registry().items() if cls.vectorizes])
def test_a_cohort_computes_what_single_clients_do(name: str, blobs: Federation) -> None:
    """For every method that says it can, in float64 to rounding."""
    settings = {"momentum": 0.5, "weight_decay": 0.01, "rounds": 4}
    single, cohort = run(name, blobs, **settings), run(name, blobs, **settings, vectorize="on")
    torch.testing.assert_close(single.models.rows, cohort.models.rows, rtol=0, atol=1e-10)
    assert [r.steps for r in single.history] == [r.steps for r in cohort.history]
    assert [r.train_loss for r in single.history] == pytest.approx([r.train_loss for r in cohort.history])


@pytest.mark.parametrize("name", registry())
def test_every_row_of_every_mixing_matrix_sums_to_one(name: str, blobs: Federation) -> None:
    result = run(name, blobs, rounds=4, join=0.5)
    assert result.record is not None
    for round in result.record.rounds():
        for block, matrix in result.mixing(round).items():
            assert matrix.shape == (4, 4), block
            assert (matrix >= 0).all(), block
            close(matrix.sum(1), torch.ones(4, dtype=matrix.dtype))


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
    mine = run(f"{file}:Mine", blobs, shrink="0.25", rounds=1)
    assert torch.equal(mine.models.rows, 0.25 * run("fedavg", blobs, rounds=1).models.rows)
    elsewhere = run(f"{file}:Mine", blobs, shrink=0.25, rounds=1, engine="processes", workers=1)
    assert torch.equal(mine.models.rows, elsewhere.models.rows)


def test_fine_tuning_may_have_a_batch_size_of_its_own(blobs: Federation) -> None:
    one, two = (run("fedavg", blobs, finetune_steps=3, finetune_batch=batch).finetuned for batch in (2, 100))
    assert one is not None
    assert two is not None
    assert one.loss != two.loss


def test_fine_tuning_after_the_last_round(blobs: Federation) -> None:
    """A few more steps for everybody, judged beside the headline and not in place of it."""
    plain, tuned = run("fedavg", blobs), run("fedavg", blobs, finetune_steps=2, finetune_lr=0.5)
    assert plain.finetuned is None
    assert tuned.finetuned is not None
    assert tuned.score == plain.score
    assert tuned.finetuned.model == "personalised after fine-tuning"
    reference = Reference(blobs, SETTINGS | {"lr": 0.5, "epochs": 1})
    for i, (_, rows, test) in enumerate(blobs.owned):
        reference.train[i] = torch.tensor(rows)
        model = reference.loaded(
            dict(zip(dict(reference.initial().named_parameters()), unflatten(plain.models[i]), strict=True))
        )
        order = fedkin.randomness.generator(3, "finetune/batches", 0, i)
        shuffled = reference.train[i][torch.randperm(len(rows), generator=order)]
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        for batch in shuffled.split(8)[:2]:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(reference.x[batch]), reference.y[batch]).backward()
            optimizer.step()
        right = (model(reference.x[test]).argmax(1) == reference.y[test]).sum()
        assert tuned.finetuned.correct[i] == int(right)


def unflatten(w: Tensor) -> list[Tensor]:
    shapes = [(64, 6), (64,), (64, 64), (64,), (3, 64), (3,)]
    parts = w.split([torch.Size(shape).numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
