"""Baselines that look for kin: FedFomo, FedAP, CFL, IFCA and FedProto, by hand, by references, and at their limits."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from reference import SETTINGS, Reference, Weights, close, combine, run, vector, weights
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedkin
from fedkin import Federation, randomness
from fedkin.config import Config
from fedkin.layout import Layout
from fedkin.method import Method, Overview, Replies, State
from fedkin.methods import cfl, fedap, fedfomo
from fedkin.methods.cfl import CFL
from fedkin.methods.fedap import FedAP
from fedkin.methods.fedfomo import FedFomo
from fedkin.methods.fedproto import FedProto, class_means
from fedkin.methods.ifca import IFCA
from fedkin.similarity import cosine

DIGITS: dict[str, Any] = {
    "data": "digits", "partition": "dirichlet:0.1", "clients": 12, "engine": "inline",
    "rounds": 15, "epochs": 2, "lr": 0.05, "evaluate_every": 15,
}  # fmt: skip


def flat(w: Weights) -> Tensor:
    return torch.cat([t.reshape(-1) for t in w.values()])


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@cache
def accuracy(method: str, **settings: Any) -> float:
    return fedkin.run(method, **DIGITS | settings).accuracy


def loss(reference: Reference, model: nn.Module, rows: Tensor) -> float:
    with torch.no_grad():
        return float(cross_entropy(model(reference.x[rows]), reference.y[rows]))


def server(method: Method, clients: int, width: int = 2, rounds: int = 10) -> State:
    """The server's state for a model that is one linear layer without bias, all zero, in round 1."""
    layout = Layout(nn.Linear(width, 1, bias=False))
    initial = torch.zeros(width, dtype=torch.float64)
    fed = Overview(clients, rounds, 0, 2, layout, initial, Config().training)
    state = method.start(fed)
    state.round = 1
    return state


def replied(clients: list[int], exchange: str = "train", **stacked: Tensor) -> Replies:
    messages = [{name: rows[k] for name, rows in stacked.items()} for k in range(len(clients))]
    return Replies(exchange, clients, messages)


def watch(method: type[Method], monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, Any], dict[str, Any], Any]]:
    """Every (message, reply, client) of a run to come."""
    seen: list[tuple[dict[str, Any], dict[str, Any], Any]] = []
    local = method.local

    def watched(self: Method, client: Any, message: dict[str, Any]) -> dict[str, Any]:
        reply = local(self, client, message)
        seen.append((message, reply, client))
        return reply

    monkeypatch.setattr(method, "local", watched)
    return seen


def holds(reply: dict[str, Any], secret: Tensor) -> bool:
    """Whether three numbers in a row of a secret are among what was sent."""
    sent = b"".join(v.detach().contiguous().numpy().tobytes() for v in reply.values() if isinstance(v, Tensor))
    return any(three.numpy().tobytes() in sent for three in secret.reshape(-1)[: secret.numel() // 3 * 3].view(-1, 3))


# FedFomo.


def test_fedfomo_weights_by_hand() -> None:
    """From a loss of 2: 1 less at a distance of 2, 0.5 less at 0.5, 1 more at 4, and the very same model."""
    w = fedfomo.gains(double([2, 1, 1.5, 3, 2]), double([2, 0.5, 4, 0]))
    close(w, double([0.5, 1, -0.25, 0]))
    close(fedfomo.weights(w), double([1 / 3, 2 / 3, 0, 0]))
    close(fedfomo.weights(double([[-1, -2, 0], [3, -2, 1]])), double([[1, 0, 0], [0.75, 0, 0.25]]))


def test_fedfomo_affinity_by_hand() -> None:
    """P grows by the weights as they are, negative ones too, in the columns of the models that were sent."""
    method = FedFomo(models=2)
    state = server(method, 4)
    state["trained"][:] = 1
    state["sent"][[1, 3]] = torch.tensor([[0, 2], [2, 1]])
    gains = double([[0.5, 1, -0.25], [-1, -2, -3]])
    mixing = method.aggregate(state, replied([1, 3], w=double([[1, 1], [2, 2]]), gains=gains))
    close(state["P"], double([[1, 0, 0, 0], [1, 1.5, -0.25, 0], [0, 0, 1, 0], [0, -3, -2, 0]]))
    close(mixing["all"], double([[1, 0, 0, 0], [2 / 3, 1 / 3, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]))
    close(state["W"], double([[0, 0], [1, 1], [0, 0], [2, 2]]))


def test_fedfomo_sends_the_best_models_and_explores() -> None:
    greedy, curious = FedFomo(models=2, epsilon=0.0), FedFomo(models=2, epsilon=1.0, decay=0.0)
    state = server(greedy, 6)
    state["trained"][:5] = 1
    state["P"][0] = double([9, 1, -1, 3, 0, 8])
    for t in range(1, 30):
        state.round = t
        assert greedy.chosen(state, 0, 2).tolist() == [3, 1]
    seen = set()
    for t in range(1, 60):
        state.round = t
        drawn = curious.chosen(state, 0, 2).tolist()
        assert len(set(drawn)) == 2
        seen |= set(drawn)
    # Neither its own model nor that of a client which has never trained.
    assert seen == {1, 2, 3, 4}
    # With the default decay nothing is left to chance after six rounds.
    state.round = 7
    assert all(FedFomo(models=2).chosen(state, 0, 2).tolist() == [3, 1] for state.round in range(7, 30))


@pytest.mark.parametrize("join", [1.0, 0.75])
def test_rounds_of_fedfomo(blobs: Federation, join: float) -> None:
    """All others' models are sent, so that nothing is left to chance."""
    ours = run("fedfomo", blobs, rounds=4, join=join, models=3)
    reference = Reference(blobs, SETTINGS | {"join": join})
    judge = {}
    for i, n in enumerate(reference.n):
        rows = reference.train[i][torch.randperm(n, generator=randomness.generator(3, "validation", 0, i))]
        judge[i], reference.train[i] = rows[: round(0.2 * n)], rows[round(0.2 * n) :]
    last = {i: reference.initial() for i in range(4)}
    before = {i: reference.initial() for i in range(4)}
    for t in (1, 2, 3, 4):
        new = {}
        for i in reference.who(t):
            start, w = last[i], {}
            for j in range(4):
                far = float((vector(last[j]) - vector(before[i])).norm())
                gain = loss(reference, before[i], judge[i]) - loss(reference, last[j], judge[i])
                w[j] = max(0.0, gain / far) if far > 0 else 0.0
            if t > 1 and sum(w.values()) > 0:
                start = reference.loaded(combine([(w[j] / sum(w.values()), weights(last[j])) for j in w]))
            new[i] = reference.sgd(start, i, t)
        before |= {i: last[i] for i in new}
        last |= new
    for i in range(4):
        close(ours.models[i], vector(last[i]))


def test_fedfomo_counts_every_model_it_sends(blobs: Federation) -> None:
    result = run("fedfomo", blobs, models=2, join=1.0, rounds=3)
    size = 8 * result.models.rows.shape[1]
    assert [r.bytes_down for r in result.history] == [0, 4 * 2 * size, 4 * 2 * size]
    assert [r.bytes_up for r in result.history] == [4 * (size + 8), 4 * (size + 24), 4 * (size + 24)]


def test_fedfomo_does_not_learn_from_what_it_weighs_with(blobs: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch(FedFomo, monkeypatch)
    run("fedfomo", blobs, rounds=3, join=1.0, validation=0.4)
    learnt: dict[int, set[int]] = {}
    for _, _, client in seen:
        rows = set(client.train.tolist())
        assert learnt.setdefault(client.id, rows) == rows
        own = set(blobs.split.train[client.id].tolist())
        assert rows < own
        assert len(rows) == len(own) - round(0.4 * len(own))


def test_fedfomo_alone_is_local_only(blobs: Federation) -> None:
    """One client has nobody to learn from: local training on what is left after the validation part."""
    alone = Federation(blobs.data, type(blobs.split)(*(part[:1] for part in (
        blobs.split.train, blobs.split.test, blobs.split.names))))  # fmt: skip
    ours = run("fedfomo", alone, rounds=3, join=1.0)
    reference = Reference(alone)
    rows = reference.train[0]
    order = torch.randperm(len(rows), generator=randomness.generator(3, "validation", 0, 0))
    reference.train[0] = rows[order][round(0.2 * len(rows)) :]
    model = reference.initial()
    for t in (1, 2, 3):
        model = reference.sgd(model, 0, t)
    close(ours.models[0], vector(model))


@pytest.mark.slow
def test_fedfomo_learns() -> None:
    assert accuracy("fedfomo") > max(0.92, accuracy("fedavg") + 0.2)


# FedAP.


def with_norm(features: int = 6, classes: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(features, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, classes)
    ).double()


def test_fedap_weights_by_hand() -> None:
    """Distances 1 and 4 from the first client: four fifths and one fifth of what is not its own."""
    d = double([[0, 1, 4], [1, 0, 2], [4, 2, 0]])
    rows = [[0.25, 0.75 * 0.8, 0.75 * 0.2], [0.75 * 2 / 3, 0.25, 0.75 / 3], [0.75 / 3, 0.75 * 2 / 3, 0.25]]
    close(fedap.adaptive(d, mu=0.25), double(rows))
    close(fedap.adaptive(double([[0]]), mu=0.25), double([[1]]))
    # Clients with the very same statistics are nearest, not undefined.
    close(fedap.adaptive(double([[0, 0, 1], [0, 0, 1], [1, 1, 0]]), mu=0.5)[2], double([0.25, 0.25, 0.5]))
    assert fedap.adaptive(double([[0, 0, 1], [0, 0, 1], [1, 1, 0]]), mu=0.5)[0, 1] > 0.4999


def test_fedap_distance_without_batch_norm_by_hand() -> None:
    """Means 3 apart, deviations 4 apart (variances 1 and 25): distance 5."""
    sent = double([[1, 7, 1, 4], [4, 7, 25, 4]])
    close(fedap.distances(sent, Layout(nn.Linear(1, 1))), double([[0, 5], [5, 0]]))


def test_fedap_tells_many_clients_apart_in_single_precision() -> None:
    """Forty clients whose statistics differ in the fourth digit."""
    layout = Layout(nn.Sequential(nn.Linear(1, 64), nn.BatchNorm1d(64)))
    draw = torch.Generator().manual_seed(0)
    sent = (torch.rand(128, generator=draw) * 5 + 1 + torch.randn(40, 128, generator=draw) * 1e-3).abs()
    mean, std = sent.double()[:, :64], sent.double()[:, 64:].sqrt()
    exact = [[math.hypot(float((a - b).norm()), float((c - d).norm())) for b, d in zip(mean, std, strict=True)]
             for a, c in zip(mean, std, strict=True)]  # fmt: skip
    torch.testing.assert_close(fedap.distances(sent, layout).double(), double(exact), rtol=0, atol=2e-6)


def test_rounds_of_fedap_with_batch_norm(blobs: Federation) -> None:
    """Two rounds of FedBN and two of mixing; one client has not taken part when the statistics are taken."""
    settings = SETTINGS | {"batch": 9, "join": 0.5, "rounds": 4, "seed": 2}
    ours = run("fedap", blobs, model=with_norm(), mu=0.3, **settings)
    reference = Reference(blobs, settings)
    body = ["1.weight", "1.bias", "4.weight", "4.bias"]
    own = {i: with_norm() for i in range(4)}
    early = set(reference.who(1)) | set(reference.who(2))
    assert len(early) < 4
    shared = weights(with_norm())

    def put(i: int, w: Weights) -> nn.Module:
        own[i].load_state_dict({name: w[name] for name in body}, strict=False)
        return own[i]

    last: dict[int, Weights] = {}
    for t in (1, 2, 3, 4):
        if t == 3:
            start = {i: put(i, shared) for i in range(4)}
            for i in set(range(4)) - early:
                rows = reference.train[i]
                order = randomness.generator(2, "statistics/statistics", 3, i)
                for batch in rows[torch.randperm(len(rows), generator=order)].split(9):
                    start[i](reference.x[batch])
            d = [[0.0] * 4 for _ in range(4)]
            for i in range(4):
                for j in range(4):
                    a, b = own[i].get_submodule("2"), own[j].get_submodule("2")
                    between = (a.running_mean - b.running_mean).square().sum()
                    d[i][j] = math.sqrt(between + (a.running_var.sqrt() - b.running_var.sqrt()).square().sum())
            last = dict.fromkeys(range(4), shared)
            mixed = dict(last)
        trained = {}
        for i in reference.who(t):
            own[i] = reference.sgd(put(i, shared if t < 3 else mixed[i]), i, t)
            trained[i] = weights(own[i])
        if t < 3:
            total = sum(reference.n[i] for i in trained)
            shared = combine([(reference.n[i] / total, w) for i, w in trained.items()])
        else:
            last |= trained
            for i in range(4):
                total = sum(1 / d[i][j] for j in range(4) if j != i)
                others = [(0.7 / d[i][j] / total, last[j]) for j in range(4) if j != i]
                mixed[i] = combine([(0.3, last[i]), *others])
    layout = Layout(with_norm())
    for i in range(4):
        close(ours.models[i], layout.flatten(put(i, mixed[i])))


def test_rounds_of_fedap_without_batch_norm(blobs: Federation) -> None:
    """One round of FedAvg, then mixing by the classifier's inputs."""
    ours = run("fedap", blobs, rounds=3, warm_up=1 / 3)
    reference = Reference(blobs)
    start = reference.fedavg(1)
    moments = []
    for i in range(4):
        z = start[:-1](reference.x[reference.train[i]])  # type: ignore[index]
        moments.append(torch.cat([z.mean(0), ((z - z.mean(0)) ** 2).mean(0).sqrt()]).detach())
    near = [[0 if i == j else 1 / float((moments[i] - moments[j]).norm()) for j in range(4)] for i in range(4)]
    last = {i: weights(start) for i in range(4)}
    mixed = dict(last)
    for t in (2, 3):
        last |= {i: weights(reference.sgd(reference.loaded(mixed[i]), i, t)) for i in reference.who(t)}
        for i in range(4):
            others = [(0.5 * near[i][j] / sum(near[i]), last[j]) for j in range(4) if j != i]
            mixed[i] = combine([(0.5, last[i]), *others])
    for i in range(4):
        close(ours.models[i], flat(mixed[i]))


def test_fedap_limits(blobs: Federation) -> None:
    """Warming up for ever it is FedAvg for a model without norm; without others' weight local training."""
    fedavg = run("fedavg", blobs, rounds=3)
    ours = run("fedap", blobs, rounds=3, warm_up=1.0)
    assert all(torch.equal(ours.models[i], fedavg.models[0]) for i in range(4))
    alone = run("fedap", blobs, rounds=3, warm_up=0.0, mu=1.0)
    local = run("local-only", blobs, rounds=3)
    for i in range(4):
        close(alone.models[i], local.models[i])


def test_fedap_sends_no_norm_layer_but_its_statistics_once(blobs: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch(FedAP, monkeypatch)
    run("fedap", blobs, model=with_norm(), batch=9, rounds=4, join=1.0)
    layout = Layout(with_norm())
    asked = 0
    for message, reply, client in seen:
        assert not holds(message, client.private["norm"])
        if "statistics" in reply:
            asked += 1
            assert reply.keys() == {"statistics"}
            assert reply["statistics"].numel() == 32
            close(reply["statistics"], client.private["norm"][-32:])
        else:
            assert reply.keys() == {"w", "n"}
            assert len(reply["w"]) == layout.size - len(layout.norm)
            assert not holds(reply, client.private["norm"])
    assert asked == 4


@pytest.mark.slow
def test_fedap_learns() -> None:
    assert accuracy("fedap") > max(0.93, accuracy("fedavg") + 0.2)
    norm = with_norm(64, 10).float()
    fedavg = fedkin.run("fedavg", model=norm, **DIGITS).accuracy
    assert fedkin.run("fedap", model=norm, **DIGITS).accuracy > max(0.75, fedavg + 0.2)


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
    assert accuracy("cfl", rounds=25) > max(0.9, accuracy("fedavg", rounds=25) + 0.1)


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
        losses = [loss(reference, model, reference.train[i]) for model in models]
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
    assert accuracy("ifca", rounds=25) > max(0.85, accuracy("fedavg", rounds=25) + 0.05)


# FedProto.


def test_fedproto_prototypes_by_hand() -> None:
    """Two samples of class 2, one of class 0, none of class 1."""
    means, counts = class_means(double([[1, 2], [5, 5], [3, 6]]), torch.tensor([2, 0, 2]), 3)
    close(means, double([[5, 5], [0, 0], [2, 4]]))
    close(counts, double([1, 0, 2]))


def test_fedproto_means_by_hand() -> None:
    """Weighted by samples, not shrunk by the number of clients; absent classes keep what they had."""
    method = FedProto()
    state = server(method, 3)
    sent = double([[[1, 1], [0, 0], [2, 0]], [[5, 9], [0, 0], [0, 0]]])
    method.aggregate(state, replied([0, 2], prototypes=sent, counts=double([[3, 0, 2], [1, 0, 0]])))
    close(state["prototypes"], double([[2, 3], [0, 0], [2, 0]]))
    close(state["known"], double([1, 0, 1]))
    sent = double([[[0, 0], [7, 7], [0, 0]]])
    method.aggregate(state, replied([1], prototypes=sent, counts=double([[0, 4, 0]])))
    close(state["prototypes"], double([[2, 3], [7, 7], [2, 0]]))
    close(state["known"], double([1, 1, 1]))


def proto_rounds(reference: Reference, rounds: int, strength: float) -> tuple[dict[int, nn.Module], dict[int, Tensor]]:
    """Models and prototypes, sample by sample and class by class."""
    settings = reference.settings
    models = {i: reference.initial() for i in range(4)}
    shared: dict[int, Tensor] = {}
    for t in range(1, rounds + 1):
        sums: dict[int, list[Tensor]] = {}
        for i in reference.who(t):
            model, rows = models[i], reference.train[i]
            optimizer = torch.optim.SGD(model.parameters(), settings["lr"])
            order = randomness.generator(settings["seed"], "train/batches", t, i)
            for _ in range(settings["epochs"]):
                for batch in rows[torch.randperm(len(rows), generator=order)].split(settings["batch"]):
                    z = model[:-1](reference.x[batch])  # type: ignore[index]
                    total = cross_entropy(model[-1](z), reference.y[batch])  # type: ignore[index]
                    for c in set(reference.y[batch].tolist()) & set(shared):
                        mine = z[reference.y[batch] == c].mean(0)
                        total = total + strength * (mine - shared[c]).square().sum().sqrt()
                    optimizer.zero_grad()
                    total.backward()
                    optimizer.step()
            for row in rows:
                z = model[:-1](reference.x[row][None])[0].detach()  # type: ignore[index]
                sums.setdefault(int(reference.y[row]), []).append(z)
        shared |= {c: torch.stack(z).mean(0) for c, z in sums.items()}
    return models, shared


@pytest.mark.parametrize("join", [0.75, 0.25])
def test_rounds_of_fedproto(blobs: Federation, join: float) -> None:
    """Judged by the nearest prototype; with one client a round some classes have none at first."""
    settings = SETTINGS | {"join": join, "rounds": 3}
    ours = run("fedproto", blobs, **settings, strength=0.7)
    reference = Reference(blobs, settings)
    models, shared = proto_rounds(reference, 3, 0.7)
    differ = 0
    for i, (_, _, test) in enumerate(blobs.owned):
        body = vector(models[i][:-1])  # type: ignore[index]
        close(ours.models[i][: len(body)], body)
        z = models[i][:-1](reference.x[test]).detach()  # type: ignore[index]
        said = [min(shared, key=lambda c, each=each: float((each - shared[c]).norm())) for each in z]  # type: ignore[misc]
        assert ours.score.correct[i] == sum(c == int(y) for c, y in zip(said, reference.y[test], strict=True))
        # The model that is kept classifies in the same way.
        kept = ours.models[i][len(body) :]
        scores = z @ kept[:-3].view(3, 64).T + kept[-3:]
        assert scores.argmax(1).tolist() == said
        differ += models[i](reference.x[test]).argmax(1).tolist() != said
    # Where classes were learnt apart the classifier says something else, so this test can tell.
    assert differ or join == 0.75


def test_fedproto_never_predicts_a_class_without_a_prototype(
    blobs: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a round of one client, nobody has heard of the class that it does not have."""
    predictor, said = FedProto.predictor, []

    def watched(self: FedProto, client: Any, message: dict[str, Any]) -> Any:
        predict = predictor(self, client, message)
        assert int(message["known"].sum()) == 2
        missing = int((message["known"] == 0).nonzero())

        def scores(x: Tensor) -> Tensor:
            found = predict(x)
            assert found.isfinite().all()
            assert (found.argmax(1) != missing).all()
            said.append(missing)
            return found

        return scores

    monkeypatch.setattr(FedProto, "predictor", watched)
    run("fedproto", blobs, rounds=1, join=0.25)
    assert len(said) == 4


def test_fedproto_without_its_term_trains_as_local_only(blobs: Federation) -> None:
    ours, local = run("fedproto", blobs, rounds=3, strength=0.0), run("local-only", blobs, rounds=3)
    body = Layout(Reference(blobs).initial()).extractor
    for i in range(4):
        torch.testing.assert_close(body.of(ours.models[i]), body.of(local.models[i]), rtol=0, atol=1e-12)


def test_fedproto_sends_prototypes_and_no_model(blobs: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch(FedProto, monkeypatch)
    result = run("fedproto", blobs, rounds=3)
    for message, reply, client in seen:
        assert reply.keys() == {"prototypes", "counts"}
        assert reply["prototypes"].shape == (3, 64)
        assert not holds(reply, client.private["w"])
        assert not holds(message, client.private["w"])
    assert [r.bytes_down for r in result.history] == [0, *[3 * 8 * (3 * 64 + 3)] * 2]
    assert {r.bytes_up for r in result.history} == {3 * 8 * (3 * 64 + 3)}


def test_fedproto_is_fine_tuned_towards_its_prototypes(blobs: Federation) -> None:
    result = run("fedproto", blobs, rounds=3, finetune_steps=3, join=1.0)
    assert result.finetuned is not None
    assert result.finetuned.headline > 0.8
    assert result.score == run("fedproto", blobs, rounds=3, join=1.0).score


@pytest.mark.slow
def test_fedproto_learns() -> None:
    assert accuracy("fedproto") > max(0.92, accuracy("fedavg") + 0.2)
    assert accuracy("fedproto", join=0.5) > accuracy("fedavg", join=0.5) + 0.2
