"""FedPAC, FedGen and pFedHN: what each computes by hand, whole rounds by a slow reference, and their limits."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from digits import on_digits
from reference import BODY, HEAD, MLP, SETTINGS, Reference, Weights, close, combine, flat, run, vector, weights
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedkin
from fedkin import Federation, randomness
from fedkin.api import prepare
from fedkin.engine.worker import Job, Worker
from fedkin.layout import Layout
from fedkin.method import Overview, Replies, State
from fedkin.methods.fedgen import FedGen, adam, labels_from, sameness
from fedkin.methods.fedpac import FedPAC, combination, least_on_simplex
from fedkin.methods.pfedhn import Hypernetwork, PFedHN
from fedkin.setup import Setup

learned = partial(on_digits, rounds=20, epochs=2, lr=0.05)


def features(model: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(model, nn.Sequential)
    return model[:-1](x)  # type: ignore[no-any-return]


def reply_of(method: str, federation: Federation, client: int, **more: Tensor) -> dict[str, Any]:
    """What a client sends back for the initial model."""
    worker = Worker(prepare(method, data=federation, **SETTINGS).site())
    message = {"w": worker.initial, **more}
    return worker.local([Job(client, message, {}, 1, "train")], vectorize=False)[0].reply


def loop(
    reference: Reference, model: nn.Module, client: int, round: int, *, key: str, names: list[str], epochs: int,
    lr: float, loss: Callable[[nn.Module, Tensor, Tensor], Tensor],
) -> nn.Module:  # fmt: skip
    """Local epochs of torch.optim.SGD on some of the tensors, with any loss."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD([p for name, p in model.named_parameters() if name in names], lr)
    order = randomness.generator(reference.settings["seed"], key, round, client)
    rows = reference.train[client]
    for _ in range(epochs):
        shuffled = rows[torch.randperm(len(rows), generator=order)]
        for batch in shuffled.split(reference.settings["batch"]):
            model.zero_grad()
            loss(model, reference.x[batch], reference.y[batch]).backward()
            optimizer.step()
    return model


def overview(setup: Setup) -> Overview:
    """What the server knows before the first round, of a federation like `blobs` or `pictures`."""
    layout = Layout(setup.module)
    federation, config = setup.federation, setup.config
    return Overview(
        len(federation), 1, config.seed, federation.classes, layout, layout.flatten(setup.module), config.training
    )


# FedPAC.


def test_fedpac_two_clients_by_hand() -> None:
    """Of alpha = (1 - a, a) the loss (1 - a)^2 v_1 + a^2 (v_2 + |h_1 - h_2|^2) is least at v_1 / (v_1 + v_2 + 25)."""
    h = torch.tensor([[1.0, 2.0], [4.0, 6.0]], dtype=torch.float64)
    v = torch.tensor([3.0, 2.0], dtype=torch.float64)
    a, b = 3 / (3 + 2 + 25), 2 / (3 + 2 + 25)
    close(combination(h, v), torch.tensor([[1 - a, a], [b, 1 - b]], dtype=torch.float64))


def test_fedpac_same_statistics_are_weighed_by_their_certainty() -> None:
    """No bias: the weights are proportional to 1 / v, here 6 : 3 : 2, for everybody."""
    h = torch.ones(3, 4, dtype=torch.float64)
    alpha = combination(h, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    close(alpha, torch.tensor([6.0, 3.0, 2.0], dtype=torch.float64).div(11).expand(3, 3))


def test_fedpac_certain_clients_keep_to_themselves() -> None:
    """No variance: everybody else would only add bias. Nor do features that are all zero stop the server."""
    h = torch.eye(3, dtype=torch.float64)
    close(combination(h, torch.zeros(3, dtype=torch.float64)), torch.eye(3, dtype=torch.float64))
    close(combination(0 * h, torch.zeros(3, dtype=torch.float64)), torch.full((3, 3), 1 / 3, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(5))
def test_fedpac_weights_beat_every_point_of_a_grid(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points, v, count = rng.normal(size=(4, 3)), rng.uniform(0, 2, 4), 40
    alpha = combination(torch.tensor(points), torch.tensor(v)).numpy()
    grid = np.array([p for p in itertools.product(range(count + 1), repeat=4) if sum(p) == count]) / count
    for i in range(4):

        def loss(a: Any, i: int = i) -> Any:
            return np.square(points[i] - a @ points).sum(-1) + np.square(a) @ v

        values = loss(grid)
        assert loss(alpha[i]) <= values.min() + 1e-12
        # And the best point of the grid is a neighbour: no two optima, no lucky constant.
        assert np.abs(grid[values.argmin()] - alpha[i]).max() < 2 / count


@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_fedpac_weights_meet_the_conditions_of_an_optimum(count: int) -> None:
    """On the simplex q a = lambda where a > 0, and q a >= lambda where a = 0 (Karush, Kuhn, Tucker)."""
    rng = np.random.default_rng(count)
    d = rng.normal(size=(count, 5)) + rng.normal(size=5)
    q = d @ d.T + np.diag(rng.uniform(0.01, 0.5, count))
    a = least_on_simplex(q)
    assert (a >= 0).all()
    assert a.sum() == pytest.approx(1, abs=1e-12)
    slope = q @ a
    level = a @ slope
    assert np.abs(slope - level)[a > 0].max() < 1e-9
    assert (slope > level - 1e-9).all()
    assert count < 7 or (a == 0).any()


def test_rounds_of_fedpac(blobs: Federation) -> None:
    ours = run("fedpac", blobs, rounds=3, alignment=0.7, head_epochs=2, head_lr=0.05)
    reference = Reference(blobs)
    w = {i: weights(reference.initial()) for i in range(4)}
    centroid: dict[int, Tensor] = {}

    def plain(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model(x), y)

    def aligned(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for f, label in zip(features(model, x), y.tolist(), strict=True):
            if label in centroid:
                total = total + (f - centroid[label]).square().sum() / len(f)
        return plain(model, x, y) + 0.7 * total / len(y)

    for t in (1, 2, 3):
        who = reference.who(t)
        h, v, trained, new = {}, {}, {}, {}
        for i in who:
            model, rows = reference.loaded(w[i]), reference.train[i]
            f, y = features(model, reference.x[rows]).detach(), reference.y[rows]
            per_sample = torch.zeros(len(rows), 3, f.shape[1], dtype=torch.float64)
            for k, label in enumerate(y.tolist()):
                per_sample[k, label] = f[k]
            h[i] = per_sample.mean(0)
            # The variance of a mean is that of one sample over n.
            v[i] = float((per_sample - h[i]).square().sum() / len(rows) / len(rows))
            model = loop(reference, model, i, t, key="train/head", names=HEAD, epochs=2, lr=0.05, loss=plain)
            trained[i] = loop(
                reference, model, i, t, key="train/batches", names=BODY, epochs=2, lr=0.1, loss=aligned
            )  # fmt: skip
        for label in range(3):
            own = [(i, rows[reference.y[rows] == label]) for i in who for rows in [reference.train[i]]]
            found = [features(trained[i], reference.x[rows]).detach() for i, rows in own]
            if sum(map(len, found)):
                new[label] = torch.cat(found).mean(0)
        centroid |= new
        total = sum(reference.n[i] for i in who)
        body = combine([(reference.n[i] / total, weights(trained[i])) for i in who], BODY)
        for i in range(4):
            head = {name: w[i][name] for name in HEAD}
            if i in who:
                q = np.array([[float(((h[i] - h[j]) * (h[i] - h[k])).sum()) for k in who] for j in who])
                alpha = least_on_simplex(q + np.diag([v[j] for j in who]))
                head = combine([(a, weights(trained[j])) for a, j in zip(alpha, who, strict=True)], HEAD)
                close(ours.mixing(t)["classifier"][i][who], torch.tensor(alpha))
            else:
                close(ours.mixing(t)["classifier"][i], torch.eye(4, dtype=torch.float64)[i])
            w[i] = body | head
    for i in range(4):
        close(ours.models[i], flat(w[i], MLP))


def test_fedpac_reports_statistics_and_no_samples(blobs: Federation) -> None:
    reply = reply_of("fedpac", blobs, 1)
    assert {name: tuple(getattr(value, "shape", ())) for name, value in reply.items()} == {
        "w": (4803,), "n": (), "h": (3, 64), "v": (), "sums": (3, 64), "counts": (3,)
    }  # fmt: skip
    assert reply["v"] > 0


def test_fedpac_alignment_pulls_features_to_their_centroid(blobs: Federation) -> None:
    """Away from the origin: with a strong pull the class means end up nearer; classes with no centroid are left."""
    target = torch.full((3, 64), 2.0, dtype=torch.float64)
    target[0] = torch.nan
    plain, pulled = (reply_of("fedpac", blobs, 0, **({} if c is None else {"c": c})) for c in (None, target))
    assert pulled["w"].isfinite().all()
    means = [reply["sums"] / reply["counts"][:, None] for reply in (plain, pulled)]
    assert (means[1][1] - 2).norm() < (means[0][1] - 2).norm() - 0.2
    unknown = torch.full_like(target, torch.nan)
    assert torch.equal(reply_of("fedpac", blobs, 0, c=unknown)["w"], plain["w"])


def test_fedpac_without_alignment_needs_no_centroids(blobs: Federation) -> None:
    target = torch.randn(3, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    worker = Worker(prepare("fedpac", data=blobs, alignment=0.0, **SETTINGS).site())
    replies = [
        worker.local([Job(0, {"w": worker.initial, **more}, {}, 2, "train")], vectorize=False)[0].reply
        for more in ({}, {"c": target})
    ]
    close(replies[0]["w"], replies[1]["w"])


def test_fedpac_on_batch_norm_and_with_few_clients_a_round(pictures: Federation) -> None:
    result = run("fedpac", pictures, model="lenet5-bn", dtype="float32", rounds=4, join=0.25)
    assert all(result.models[i].isfinite().all() for i in range(4))
    assert FedPAC().judged.moment == "after aggregation"


@pytest.mark.slow
def test_fedpac_beats_fedavg_on_digits() -> None:
    assert learned("fedpac") > max(0.85, learned("fedavg") + 0.1)


# FedGen.


def taught(method: FedGen, counts: list[list[float]]) -> Tensor:
    """Two teachers that know a class each, on two features; class 0 for the first feature, class 1 for the second."""
    layout = Layout(nn.Linear(2, 2))
    models = torch.tensor([[8, 0, 0, 0, 1, 0], [0, 0, 0, 4, 0, 2]], dtype=torch.float64)
    messages = [{"w": w, "labels": torch.tensor(c, dtype=torch.float64)} for w, c in zip(models, counts, strict=True)]
    z = torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    return method.taught(z, torch.tensor([0, 1]), Replies("train", [0, 1], messages), layout)


def test_fedgen_each_class_is_taught_by_those_who_know_it() -> None:
    """Weights 3/4 and 1/4 for class 0, all to the second teacher for class 1.

    Not what the mean model would say, nor a teacher that everybody shares: clients' own classifiers count.
    """
    scores = taught(FedGen(), [[30.0, 0.0], [10.0, 7.0]])
    # Of z = (1, 0.5) the first teacher says (9, 0) and the second (0, 4); of (0.5, 1) the second says (0, 6).
    close(scores, torch.tensor([[0.75 * 9, 0.25 * 4], [0, 6]], dtype=torch.float64))
    alike = taught(FedGen(teachers="alike"), [[30.0, 0.0], [10.0, 7.0]])
    close(alike, torch.tensor([[4.5, 2.0], [2.5, 3.0]], dtype=torch.float64))
    nobody = taught(FedGen(), [[30.0, 0.0], [10.0, 0.0]])
    close(nobody[1], alike[1])


def test_fedgen_sameness_by_hand() -> None:
    """Noise 3 apart, features 2 apart in one of two places: exp of minus the mean (0, 3, 3, 0) / 4."""
    noise = torch.tensor([[0.0], [3.0]], dtype=torch.float64)
    z = torch.tensor([[1.0, 1.0], [3.0, 1.0]], dtype=torch.float64)
    assert sameness(noise, z).item() == pytest.approx(math.exp(-1.5), abs=1e-12)
    assert sameness(noise, 0 * z).item() == 1


def test_fedgen_optimiser_is_adam() -> None:
    draws = torch.Generator().manual_seed(0)
    p, m, v = (torch.zeros(5, dtype=torch.float64) for _ in range(3))
    theirs = nn.Parameter(p.clone())
    optimizer = torch.optim.Adam([theirs], 0.01)
    for step in range(1, 8):
        g = torch.randn(5, generator=draws, dtype=torch.float64)
        theirs.grad = g.clone()
        optimizer.step()
        adam(p, g, m, v, step, 0.01)
        close(p, theirs.detach())


def test_fedgen_labels_come_from_their_distribution() -> None:
    p = torch.tensor([0.0, 0.7, 0.0, 0.3, 0.0], dtype=torch.float64)
    y = labels_from(p, 20_000, torch.Generator().manual_seed(0))
    shares = torch.bincount(y, minlength=5) / len(y)
    assert shares[[0, 2, 4]].tolist() == [0, 0, 0]
    assert shares[1].item() == pytest.approx(0.7, abs=0.01)


@pytest.mark.parametrize(("beta", "labels"), [(0.0, "all"), (2.0, "all"), (2.0, "own")])
def test_rounds_of_fedgen(blobs: Federation, beta: float, labels: str) -> None:
    settings = {"alpha": 3.0, "beta": beta, "labels": labels, "decay": 0.5, "hidden": 5, "noise": 4, "generated": 6}
    ours = run("fedgen", blobs, rounds=3, generator_steps=2, generator_lr=0.01, diversity=0.3, **settings)
    reference = Reference(blobs)
    model = reference.initial()
    with randomness.seeded_globally(3, "init/generator"):
        generator = nn.Sequential(nn.Linear(3 + 4, 5), nn.ReLU(), nn.Linear(5, 64)).double()
    optimizer = torch.optim.Adam(generator.parameters(), 0.01)
    counts = torch.zeros(4, 3, dtype=torch.float64)

    def count(i: int) -> Tensor:
        return torch.bincount(reference.y[reference.train[i]], minlength=3).double()

    def draw(order: torch.Generator, of: Tensor) -> list[int]:
        edges = (of / of.sum()).cumsum(0).tolist()
        return [
            next(c for c in range(3) if u < edges[c])
            for u in torch.rand(6, generator=order, dtype=torch.float64).tolist()
        ]

    def inputs(y: list[int], order: torch.Generator) -> Tensor:
        noise = torch.randn(len(y), 4, generator=order, dtype=torch.float64)
        return torch.stack([torch.cat([torch.eye(3)[c], e]) for c, e in zip(y, noise, strict=True)]).double()

    for t in (1, 2, 3):
        trained = {}
        for i in reference.who(t):
            order = randomness.generator(3, "generated", t, i)

            def loss(
                m: nn.Module, x: Tensor, y: Tensor, t: int = t, i: int = i, order: torch.Generator = order
            ) -> Tensor:
                scores = m(x)
                value = cross_entropy(scores, y)
                if t > 1:
                    classify = m.get_submodule("classifier")
                    drawn = draw(order, counts.sum(0) if labels == "all" else count(i))
                    z = generator(inputs(drawn, order)).detach()
                    value = value + 3.0 * 0.5 ** (t - 1) * cross_entropy(classify(z), torch.tensor(drawn))
                    if beta:
                        q = classify(generator(inputs(y.tolist(), order)).detach()).softmax(1).detach()
                        divergence = (q * (q.log() - scores.log_softmax(1))).sum(1).mean()
                        value = value + beta * 0.5 ** (t - 1) * divergence
                return value

            trained[i] = loop(
                reference, model, i, t, key="train/batches", names=BODY + HEAD, epochs=2, lr=0.1, loss=loss
            )  # fmt: skip
        for i in trained:
            counts[i] = count(i)
        model = reference.mean(trained)
        order = randomness.generator(3, "generator", t)
        for _ in range(2):
            y = draw(order, counts.sum(0))
            given = inputs(y, order)
            z = generator(given)
            value = torch.zeros((), dtype=torch.float64)
            for k, c in enumerate(y):
                total = sum(counts[i, c] for i in trained)
                scores = sum(counts[i, c] / total * trained[i].get_submodule("classifier")(z[k]) for i in trained)
                value = value - scores.log_softmax(0)[c] / len(y)
            apart = [
                (given[a, 3:] - given[b, 3:]).square().mean().sqrt() * (z[a] - z[b]).abs().mean()
                for a in range(6)
                for b in range(6)
            ]
            optimizer.zero_grad()
            (value + 0.3 * torch.exp(-sum(apart) / 36)).backward()
            optimizer.step()
    close(ours.models[0], vector(model))


def test_fedgen_without_its_terms_is_fedavg(blobs: Federation) -> None:
    ours, fedavg = run("fedgen", blobs, alpha=0.0, rounds=3), run("fedavg", blobs, rounds=3)
    close(ours.models.rows, fedavg.models.rows)
    assert torch.equal(run("fedgen", blobs, rounds=1).models.rows, run("fedavg", blobs, rounds=1).models.rows)


def test_fedgen_teachers_decide_what_is_generated(blobs: Federation) -> None:
    """The generator is trained by those who know a class: with other teachers' weights it becomes another."""
    settings = {"rounds": 3, "generator_lr": 0.05}
    ours, alike = run("fedgen", blobs, **settings), run("fedgen", blobs, **settings, teachers="alike")
    assert (ours.models[0] - alike.models[0]).norm() > 1e-4


def test_fedgen_generator_learns_what_the_teachers_know(blobs: Federation) -> None:
    """The teachers classify generated features as the classes they were made for."""
    setup = prepare("fedgen", data=blobs, generator_lr=0.01, generator_steps=200, **SETTINGS)
    method = setup.method
    assert isinstance(method, FedGen)
    worker, fed = Worker(setup.site()), overview(setup)
    layout = fed.layout
    state = State(fed, dict(method.start(fed)), round=1)
    done = [worker.local([Job(i, {"w": fed.initial}, {}, 1, "train")], vectorize=False)[0] for i in range(4)]
    method.aggregate(state, Replies("train", range(4), [d.reply for d in done]))
    generate = method.generator(layout, 3, like=fed.initial).eval(state["generator"])
    y = torch.arange(3).repeat(50)
    z = generate(method.inputs(y, fed.initial.new_zeros(3), torch.Generator().manual_seed(1)))
    scores = method.taught(z, y, Replies("train", range(4), [d.reply for d in done]), layout)
    assert (scores.argmax(1) == y).double().mean() > 0.95
    assert z[y == 0].std(0).mean() > 1e-3
    # What a client is sent next: the model, the generator and the labels' distribution, but nobody's counts.
    state.round = 2
    assert set(method.dispatch(state, 0, "train")) == {"w", "generator", "p"}


def test_fedgen_generated_features_stay_on_the_device(blobs: Federation) -> None:
    """As in tests of the device: `meta` tensors refuse to be mixed with others."""
    site = prepare("fedgen", data=blobs, beta=1.0, **SETTINGS).site()
    worker = Worker(replace(site, device="meta"))
    method, w = site.method, worker.initial
    assert isinstance(method, FedGen)
    client = worker.client(Job(0, {}, {}, 2, "train"))
    generator = method.generator(client.layout, 3, like=w).w
    objective = method.regularised(client, {"generator": generator, "p": w.new_ones(3)})
    for x, y in client.batches():
        assert client.gradient(x, y, objective=objective).device == w.device


@pytest.mark.slow
def test_fedgen_beats_fedavg_on_digits() -> None:
    assert learned("fedgen") > max(0.77, learned("fedavg") + 0.02)


# pFedHN.


def test_pfedhn_step_by_hand() -> None:
    """Two clients, embeddings 2 and -1, one hidden unit relu(3 v + 1), a model of one weight 0.5 h + 4 and no more.

    Client 0: h = 7. Its update 0.2 counts half: head weight + 7 * 0.1, head bias + 0.1, hidden + 0.5 * 0.1 * (v, 1),
    embedding + 0.5 * 3 * 0.1. Client 1: h = relu(-2) = 0, so its update -0.6 moves the bias alone, by -0.3.
    """
    layout = Layout(nn.Linear(1, 1, bias=False))
    training = fedkin.config.Training(epochs=1, batch=1, lr=1.0, momentum=0.0, weight_decay=0.0)
    fed = Overview(2, 1, 0, 1, layout, torch.zeros(1, dtype=torch.float64), training)
    method = PFedHN(hidden=1, layers=1, server_lr=10.0, server_momentum=0.5)
    names = Layout(method.hypernetwork(fed)).columns
    assert list(names) == ["embedding.weight", "body.0.weight", "body.0.bias", "head.weight", "head.bias"]
    before = torch.tensor([2.0, -1.0, 3.0, 1.0, 0.5, 4.0], dtype=torch.float64)
    state = method.start(fed)
    state |= {"phi": before, "velocity": torch.ones(6, dtype=torch.float64)}
    assert [method.serve(state, i)["w"].item() for i in (0, 1)] == [7.5, 4.0]
    deltas = [{"delta": torch.tensor([d], dtype=torch.float64)} for d in (0.2, -0.6)]
    method.aggregate(state, Replies("train", [0, 1], deltas))
    step = torch.tensor([0.15, 0.0, 0.1, 0.05, 0.7, 0.1 - 0.3], dtype=torch.float64)
    close(state["velocity"], 0.5 + step)
    close(state["phi"], before + 10 * (0.5 + step))


def test_rounds_of_pfedhn(blobs: Federation) -> None:
    settings = {"hidden": 7, "layers": 2, "server_lr": 0.4, "server_momentum": 0.6}
    ours = run("pfedhn", blobs, rounds=4, **settings)
    reference = Reference(blobs)
    start = reference.initial()
    with randomness.seeded_globally(3, "init/hypernetwork"):
        network = Hypernetwork(4, 2, 7, 2, len(vector(start))).double()
    with torch.no_grad():
        network.head.weight.zero_()
        network.head.bias.copy_(vector(start))
    optimizer = torch.optim.SGD(network.parameters(), 0.4, momentum=0.6)
    shapes = weights(start)

    def unflatten(w: Tensor) -> Weights:
        parts = w.split([t.numel() for t in shapes.values()])
        return {name: part.reshape(t.shape) for (name, t), part in zip(shapes.items(), parts, strict=True)}

    for t in (1, 2, 3, 4):
        who = reference.who(t)
        optimizer.zero_grad()
        for i in who:
            theta = network(torch.tensor([i]))[0]
            trained = vector(reference.sgd(reference.loaded(unflatten(theta.detach())), i, t))
            # Its gradient is d theta' (theta - trained) / K.
            (0.5 * (theta - trained).square().sum() / len(who)).backward()
        optimizer.step()
    for i in range(4):
        close(ours.models[i], network(torch.tensor([i]))[0].detach())
    assert (ours.models[0] - ours.models[1]).norm() > 1e-3


def test_pfedhn_first_models_are_the_initial_one(pictures: Federation) -> None:
    setup = prepare("pfedhn", data=pictures, model="lenet5-bn")
    fed = overview(setup)
    state = setup.method.start(fed)
    for i in range(4):
        assert torch.equal(setup.method.serve(state, i)["w"], fed.initial)


def test_pfedhn_with_blind_embeddings_moves_everybody_by_the_mean(pictures: Federation) -> None:
    """Hidden layers that are zero leave the head's bias alone: with a step of 1 that is a plain mean.

    The running statistics of batch norm go the same way; and the hypernetwork itself is not sent.
    """
    setup = prepare("pfedhn", data=pictures, model="lenet5-bn", server_lr=1.0, dtype="float64")
    method, fed = setup.method, overview(setup)
    state = method.start(fed)
    assert isinstance(method, PFedHN)
    layout = Layout(method.hypernetwork(fed))
    (layout.layer("embedding") | layout.layer("body")).put(state["phi"], torch.zeros(1, dtype=torch.float64))
    worker = Worker(setup.site())
    message = method.dispatch(state, 0, "train")
    assert list(message) == ["w"]
    replies = [worker.local([Job(i, message, {}, 1, "train")], vectorize=False)[0].reply for i in (0, 2)]
    assert list(replies[0]) == ["delta"]
    method.aggregate(state, Replies("train", [0, 2], replies))
    mean = (replies[0]["delta"] + replies[1]["delta"]) / 2
    assert fed.layout.buffers.of(mean).norm() > 0
    for i in range(4):
        close(method.serve(state, i)["w"], fed.initial + mean)


def test_pfedhn_building_the_network_draws_nothing(blobs: Federation) -> None:
    setup = prepare("pfedhn", data=blobs, **SETTINGS)
    fed = overview(setup)
    state = setup.method.start(fed)
    before = torch.random.get_rng_state()
    setup.method.serve(state, 0)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.slow
def test_pfedhn_beats_fedavg_on_digits() -> None:
    assert learned("pfedhn") > max(0.85, learned("fedavg") + 0.1)
