"""FedMD: clients agree on class scores of public samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from reference import SETTINGS, Reference, close, run, vector
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedkin
from fedkin import Federation, FedkinError, randomness


def trained(
    reference: Reference, model: nn.Module, rows: Tensor, scores: Tensor | None, epochs: int, order: Any
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), SETTINGS["lr"])
    for _ in range(epochs):
        for at in torch.randperm(len(rows), generator=order).split(SETTINGS["batch"]):
            said = model(reference.x[rows[at]])
            loss = cross_entropy(said, reference.y[rows[at]]) if scores is None else (said - scores[at]).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def test_two_rounds_of_fedmd(blobs: Federation) -> None:
    ours = run("fedmd", blobs, public=0.25, subset=12, digest_epochs=2)
    federation = blobs.publishing(0.25, SETTINGS["seed"])
    reference, public = Reference(federation), torch.tensor(federation.split.public)
    models = []
    for i in range(4):
        order = randomness.generator(3, "fedmd/transfer", 0, i)
        models.append(reference.initial())
        trained(reference, models[i], public, None, 5, order)
        trained(reference, models[i], reference.train[i], None, 2, order)
    for t in (1, 2):
        who = reference.who(t)
        rows = public[torch.randperm(len(public), generator=randomness.generator(3, "fedmd/subset", t))[:12]]
        consensus = sum((models[i](reference.x[rows]).detach() for i in who), torch.zeros(())) / len(who)
        for i in who:
            trained(reference, models[i], rows, consensus, 2, randomness.generator(3, "digest", t, i))
            models[i] = reference.sgd(models[i], i, t)
    for i in range(4):
        close(ours.models[i], vector(models[i]))


def test_only_scores_of_public_samples_are_sent(blobs: Federation) -> None:
    result = run("fedmd", blobs, public=0.25, subset=12)
    assert [(r.bytes_up, r.bytes_down) for r in result.history] == [(3 * 12 * 3 * 8, 3 * 12 * 3 * 8)] * 2


def test_public_samples_are_nobodys(blobs: Federation) -> None:
    split = blobs.publishing(0.25, 0).split
    everything = sorted([*split.public, *(i for rows in split.train for i in rows)])
    assert everything == sorted(i for rows in blobs.split.train for i in rows)
    assert len(split.public) > 15
    assert all((a == b).all() for a, b in zip(split.test, blobs.split.test, strict=True))


def test_without_public_samples_it_says_so(blobs: Federation) -> None:
    with pytest.raises(FedkinError, match="give a share, as in --public"):
        run("fedmd", blobs, public=0.0)


@pytest.mark.slow
def test_fedmd_learns_on_digits() -> None:
    common: dict[str, Any] = {
        "data": "digits", "partition": "dirichlet:0.1", "clients": 12, "engine": "inline", "lr": 0.05, "rounds": 15,
    }  # fmt: skip
    result = fedkin.run("fedmd", **common)
    assert result.accuracy > 0.93
    assert result.accuracy > fedkin.run("fedavg", **common).accuracy
