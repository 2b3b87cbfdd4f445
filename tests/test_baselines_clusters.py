"""Baselines with one model a cluster: CFL and IFCA, by hand, by references, and at their limits."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from digits import on_digits
from reference import (
    SETTINGS,
    Reference,
    Weights,
    close,
    combine,
    double,
    flat,
    replied,
    run,
    server,
    vector,
    weights,
)
from torch import Tensor

from fedkin import Federation
from fedkin.config import Config
from fedkin.layout import Layout
from fedkin.method import Overview
from fedkin.methods import cfl
from fedkin.methods.cfl import CFL
from fedkin.methods.ifca import IFCA
from fedkin.similarity import cosine

learned = partial(on_digits, rounds=25, epochs=2, lr=0.05)


# CFL.


def test_cfl_partition_by_hand() -> None:
    """Two pairs that pull apart: both linkages find them; the largest cosine across is 0."""
    updates = double([[1, 0], [0.6, 0.8], [-0.8, 0.6], [-1, 0]])
    rho = cosine(updates)
    close(rho[0], double([1, 0.6, -0.8, -1]))
    for linkage in ("complete", "single"):
        assert cfl.bipartition(rho, linkage).tolist() == [False, False, True, True]
    n, norms = torch.ones(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    together = float((double([-0.2, 1.4]) / 4).norm())
    due = CFL(eps1=together + 1e-9, eps2=0.99)
    assert due.leaving(updates, norms, n, 1.0).tolist() == [False, False, True, True]
    for still in (
        CFL(eps1=together - 1e-9, eps2=0.99),
        CFL(eps1=1.0, eps2=1.0),
        CFL(eps1=1.0, eps2=0.5, gamma=math.sqrt(0.5) + 1e-9),
    ):
        assert not still.leaving(updates, norms, n, 1.0).any()
    assert CFL(eps1=1.0, eps2=0.5, gamma=math.sqrt(0.5) - 1e-9).leaving(updates, norms, n, 1.0).any()
    # Somebody has not been heard of.
    n[3] = 0
    assert not due.leaving(updates, norms, n, 1.0).any()


def test_cfl_single_linkage_is_the_papers_optimum() -> None:
    """No other partition has a smaller largest cosine between its halves."""
    draw = torch.Generator().manual_seed(0)
    for _ in range(10):
        rho = cosine(torch.randn(6, 3, generator=draw, dtype=torch.float64))

        def across(half: Tensor, rho: Tensor = rho) -> float:
            return float(rho[half][:, ~half].max())

        every = [torch.tensor([bool(k >> i & 1) for i in range(6)]) for k in range(1, 32)]
        assert across(cfl.bipartition(rho, "single")) == pytest.approx(min(map(across, every)), abs=1e-12)


def test_cfl_steps_within_new_clusters_by_hand() -> None:
    """Opposite updates cancel: the cluster is parted, and each half takes its own step in the same round."""
    method = CFL(eps1=0.2, eps2=0.4)
    state = server(method, 4)
    delta = double([[3, 4], [3, 4], [-3, -4], [-3, -4]])
    mixing = method.aggregate(state, replied([0, 1, 2, 3], delta=delta, n=double([1, 3, 2, 2])))
    assert state["member"].tolist() == [0, 0, 1, 1]
    close(state["clusters"], double([[3, 4], [-3, -4]]))
    close(mixing["all"], double([[0.25, 0.75, 0, 0], [0.25, 0.75, 0, 0], [0, 0, 0.5, 0.5], [0, 0, 0.5, 0.5]]))
    # Only the second cluster is there: the first stays where it is.
    mixing = method.aggregate(state, replied([3], delta=double([[1, 1]]), n=double([2])))
    close(state["clusters"], double([[3, 4], [-2, -3]]))
    close(mixing["all"], double([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 1]]))


@pytest.mark.parametrize("join", [1.0, 0.75])
def test_rounds_of_cfl(blobs: Federation, join: float) -> None:
    """Parted by a tree of our own, on what was last heard of everybody."""
    settings = {"eps1": 0.6, "eps2": 0.5, "rounds": 4, "join": join}
    ours = run("cfl", blobs, linkage="complete", **settings)
    reference = Reference(blobs, SETTINGS | {"join": join})
    clusters: list[tuple[list[int], Weights]] = [([0, 1, 2, 3], weights(reference.initial()))]
    last: dict[int, Weights] = {}
    unit, parted = 0.0, 0
    for t in (1, 2, 3, 4):
        now = {}
        for members, w in clusters:
            for i in set(members) & set(reference.who(t)):
                now[i] = combine([(1.0, weights(reference.sgd(reference.loaded(w), i, t))), (-1.0, w)])
        last |= now
        unit = unit or max(float(flat(d).norm()) for d in last.values())
        new = []
        for members, w in clusters:
            halves = [members]
            if len(members) > 1 and set(members) <= set(last):
                total = sum(reference.n[i] for i in members)
                mean = combine([(reference.n[i] / total, last[i]) for i in members])
                largest = max(float(flat(last[i]).norm()) for i in members)
                if float(flat(mean).norm()) < 0.6 * unit and largest > 0.5 * unit:
                    halves = by_complete_linkage({i: flat(last[i]) for i in members})
                    parted += 1
            new += [(half, w) for half in halves]
        clusters = []
        for members, w in new:
            here = [i for i in members if i in now]
            total = sum(reference.n[i] for i in here)
            clusters.append((members, combine([(1.0, w), *((reference.n[i] / total, now[i]) for i in here)])))
    assert parted >= 1
    for members, w in clusters:
        for i in members:
            close(ours.models[i], flat(w))


def by_complete_linkage(updates: dict[int, Tensor]) -> list[list[int]]:
    """Merge the two groups whose least alike members are most alike, until two are left."""
    groups = [[i] for i in updates]

    def alike(a: list[int], b: list[int]) -> float:
        return min(float(torch.cosine_similarity(updates[i], updates[j], dim=0)) for i in a for j in b)

    while len(groups) > 2:
        pairs = [(a, b) for k, a in enumerate(groups) for b in groups[k + 1 :]]
        a, b = max(pairs, key=lambda pair: alike(*pair))
        groups = [g for g in groups if g not in (a, b)] + [a + b]
    return groups


def test_cfl_that_never_parts_is_fedavg(blobs: Federation) -> None:
    ours, fedavg = run("cfl", blobs, eps1=0.0, rounds=4), run("fedavg", blobs, rounds=4)
    assert len(ours.models.rows) == 1
    torch.testing.assert_close(ours.models[0], fedavg.models[0], rtol=0, atol=1e-12)


@pytest.mark.slow
def test_cfl_parts_clients_whose_labels_contradict_each_other() -> None:
    """Half of the clients call class 0 what the others call class 1: the setting that CFL was made for."""
    federation = opposed()
    for linkage in ("complete", "single"):
        result = run("cfl", federation, rounds=12, join=1.0, linkage=linkage, dtype="float32")
        assert result.accuracy > 0.9
        for i in range(6):
            same = [torch.equal(result.models[i], result.models[j]) for j in range(6)]
            assert not any(same[j] for j in range(6) if (i - j) % 2)
    assert run("fedavg", federation, rounds=12, join=1.0, dtype="float32").accuracy < 0.7


def opposed() -> Federation:
    """Six clients with the same two blobs, whose labels every other client has swapped."""
    rng = np.random.default_rng(1)
    pairs = []
    for i in range(6):
        y = np.resize([0, 1], 40)
        x = rng.normal(size=(40, 4)) * 0.5 + np.where(y == 0, -1, 1)[:, None]
        pairs.append((x, y if i % 2 else 1 - y))
    return Federation.from_arrays(pairs, name="opposed")


@pytest.mark.slow
def test_cfl_learns() -> None:
    assert learned("cfl") > max(0.9, learned("fedavg") + 0.1)


# IFCA.


def test_ifca_averages_by_hand() -> None:
    """Clients 0 and 2 chose the second model, client 3 the third; nobody the first."""
    method = IFCA(clusters=3)
    state = server(method, 4)
    state["models"] = double([[9, 9], [8, 8], [7, 7]])
    chosen = torch.tensor([[1], [1], [2]])
    sent = double([[1, 2], [5, 6], [3, 3]])
    mixing = method.aggregate(state, replied([0, 2, 3], w=sent, chosen=chosen, n=double([1, 3, 5])))
    close(state["models"], double([[9, 9], [4, 5], [3, 3]]))
    # Client 1 has not chosen yet.
    close(mixing["all"], double([[0.25, 0, 0.75, 0], [0, 1, 0, 0], [0.25, 0, 0.75, 0], [0, 0, 0, 1]]))


def start_models(blobs: Federation, count: int) -> Tensor:
    layout, reference = Layout(Reference(blobs).initial()), Reference(blobs)
    fed = Overview(4, 1, 3, 3, layout, vector(reference.initial()), Config().training)
    return IFCA(clusters=count).start(fed)["models"]


def test_ifca_starts_from_different_models_of_one_kind(blobs: Federation) -> None:
    """Tensor by tensor the same numbers in another order."""
    models, layout = start_models(blobs, 4), Layout(Reference(blobs).initial())
    assert torch.equal(models[0], vector(Reference(blobs).initial()))
    for name, (at, shape) in layout.columns.items():
        part = models[:, at : at + shape.numel()]
        assert torch.equal(part.sort(1).values, part.sort(1).values[:1].expand_as(part)), name
        assert len({tuple(row) for row in part.tolist()}) == 4 or shape.numel() < 4, name


@pytest.mark.parametrize("join", [1.0, 0.5])
def test_rounds_of_ifca(blobs: Federation, join: float) -> None:
    ours = run("ifca", blobs, clusters=3, rounds=3, join=join)
    reference = Reference(blobs, SETTINGS | {"join": join})
    names = list(weights(reference.initial()))
    shapes = [p.shape for p in reference.initial().parameters()]
    models = []
    for w in start_models(blobs, 3):
        parts = w.split([shape.numel() for shape in shapes])
        models.append(reference.loaded({k: p.view(s) for k, p, s in zip(names, parts, shapes, strict=True)}))

    def best(i: int) -> int:
        losses = [reference.loss(model, reference.train[i]) for model in models]
        return losses.index(min(losses))

    for t in (1, 2, 3):
        who = reference.who(t)
        chosen = {i: best(i) for i in who}
        trained = {i: reference.sgd(models[chosen[i]], i, t) for i in who}
        for j in range(3):
            inside = {i: trained[i] for i in who if chosen[i] == j}
            if inside:
                models[j] = reference.mean(inside)
    assert len({best(i) for i in range(4)}) > 1
    for i in range(4):
        close(ours.models[i], vector(models[best(i)]))


def test_ifca_with_one_model_is_fedavg(blobs: Federation) -> None:
    ours, fedavg = run("ifca", blobs, clusters=1, rounds=3), run("fedavg", blobs, rounds=3)
    torch.testing.assert_close(ours.models.rows, fedavg.models.rows, rtol=0, atol=1e-12)
    assert ours.global_score == fedavg.global_score


def test_ifca_counts_every_model_it_sends(blobs: Federation) -> None:
    result = run("ifca", blobs, clusters=3, join=1.0)
    size = 8 * result.models.rows.shape[1]
    assert {(r.bytes_down, r.bytes_up) for r in result.history} == {(4 * 3 * size, 4 * (size + 16))}


@pytest.mark.slow
def test_ifca_tells_clients_apart_whose_labels_contradict_each_other() -> None:
    result = run("ifca", opposed(), clusters=2, rounds=10, join=1.0, dtype="float32")
    assert result.accuracy > 0.9
    rows = result.models.row_of
    assert rows == [rows[0], rows[1]] * 3
    assert rows[0] != rows[1]


@pytest.mark.slow
def test_ifca_learns() -> None:
    assert learned("ifca") > max(0.85, learned("fedavg") + 0.05)
