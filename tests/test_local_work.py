"""Which batches a client trains on, and on what its models are judged."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest
import torch
from conftest import blobs as make_blobs

import fedkin
from fedkin import Federation, FedkinError
from fedkin.client import Client
from fedkin.scores import UNION

QUICK: dict[str, Any] = {"epochs": 1, "batch": 8, "lr": 0.05, "join": 1.0, "engine": "inline"}


def run(name: str, data: Federation, **settings: Any) -> fedkin.Result:
    return fedkin.run(name, data=data, **(QUICK | settings))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The batches of client 0, as they are trained on."""
    batches: list[list[int]] = []
    rows = Client.rows

    def watched(self: Client, epochs: int | None, purpose: str) -> Iterator[torch.Tensor]:
        for batch in rows(self, epochs, purpose):
            if self.id == 0:
                batches.append(batch.tolist())
            yield batch

    monkeypatch.setattr(Client, "rows", watched)
    return batches


def test_minibatches_go_on_where_the_last_round_stopped(seen: list[list[int]]) -> None:
    """16 training samples in batches of 8: two batches a pass, in a new order every pass."""
    federation = make_blobs()
    count = len(federation.split.train[0])
    result = run("fedavg", federation, rounds=4, minibatches=2, vectorize="off")
    length = math.ceil(count / 8)
    assert len(seen) == 8
    assert all(r.steps == 2 * len(federation) for r in result.history)
    for k in range(0, 8 - length + 1, length):
        assert sorted(row for batch in seen[k : k + length] for row in batch) == sorted(
            federation.split.train[0].tolist()
        )
    assert seen[0] != seen[length]
    cohort = run("fedavg", federation, rounds=4, minibatches=2, vectorize="on")
    torch.testing.assert_close(cohort.models.rows, result.models.rows, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("order", ["fixed", "by-class"])
@pytest.mark.parametrize("minibatches", [0, 2])
def test_batches_of_a_fixed_order_are_the_same_in_all_rounds(
    seen: list[list[int]], minibatches: int, order: str
) -> None:
    federation = make_blobs()
    settings = {"rounds": 3, "minibatches": minibatches, "order": order}
    result = run("fedavg", federation, vectorize="off", **settings)
    rows = federation.split.train[0].tolist()
    length = math.ceil(len(rows) / 8)
    first = [row for batch in seen[:length] for row in batch]
    assert len(seen) == 3 * (minibatches or length)
    assert sorted(first) == sorted(rows) != first
    assert all(batch == seen[k % length] for k, batch in enumerate(seen))
    labels = [int(federation.data.y[row]) for row in first]
    in_turn = [label for label, _ in groupby(labels)]
    assert (len(in_turn) == len(set(labels))) == (order == "by-class")
    cohort = run("fedavg", federation, vectorize="on", **settings)
    torch.testing.assert_close(cohort.models.rows, result.models.rows, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("minibatches", [0, 3])
def test_a_dropped_last_batch_leaves_batches_of_one_size(seen: list[list[int]], minibatches: int) -> None:
    """16 training samples in batches of 6: two batches a pass, and other samples are left over in every pass."""
    federation = make_blobs()
    settings = {"rounds": 4, "minibatches": minibatches, "batch": 6, "last_batch": "dropped"}
    result = run("fedavg", federation, vectorize="off", **settings)
    steps = sum(minibatches or len(rows) // 6 for rows in federation.split.train)
    assert [r.steps for r in result.history] == [steps] * 4
    assert {len(batch) for batch in seen} == {6}
    passes = [frozenset(seen[k] + seen[k + 1]) for k in range(0, len(seen), 2)]
    assert all(len(samples) == 12 for samples in passes)
    assert len(set(passes)) > 1
    cohort = run("fedavg", federation, vectorize="on", **settings)
    torch.testing.assert_close(cohort.models.rows, result.models.rows, rtol=1e-5, atol=1e-6)


def test_a_client_with_less_than_a_batch_keeps_it_where_short_ones_are_dropped() -> None:
    federation = make_blobs()
    kept = run("fedavg", federation, rounds=2, batch=64)
    dropped = run("fedavg", federation, rounds=2, batch=64, last_batch="dropped")
    assert torch.equal(kept.models.rows, dropped.models.rows)


def test_local_models_are_judged_as_they_left_their_training(blobs: Federation) -> None:
    """With one client the mean of what was trained is what was trained."""
    single = Federation.from_arrays([(blobs.data.x, blobs.data.y)])
    result = run("fedavg", single, rounds=3, judge_local=True)
    for r in result.history:
        local = next(s for s in r.scores if s.model == "local")
        assert local.correct == r.scores[0].correct
        assert local.loss == r.scores[0].loss
    spfl = run("spfl", single, rounds=3, judge_local=True)
    assert any(s.model == "local" for s in spfl.history[-1].scores)


def test_models_are_judged_on_the_union_of_all_test_sets_too(blobs: Federation) -> None:
    """Of one model for all, everybody's accuracy on the union is that of the global model."""
    result = run("fedavg", blobs, rounds=2, judge_union=True, judge_local=True)
    everywhere = result.judged("global", UNION)
    assert everywhere is not None
    union = [s for s in result.history[-1].scores if s.data == UNION]
    assert [s.model for s in union] == ["global", "global", "local"]
    assert set(union[1].correct) == {sum(union[0].correct)}
    assert union[1].headline == union[0].headline
    alone = run("local-only", blobs, rounds=2, judge_union=True).history[-1].scores
    assert alone[1].data == UNION
    assert alone[1].headline < alone[0].headline, "classes that a client has never seen"


def test_judging_local_models_needs_whole_ones(blobs: Federation) -> None:
    with pytest.raises(FedkinError, match="do not send whole"):
        run("fedper", blobs, rounds=1, judge_local=True)
