"""FedUpdate, FedAvg-FT, Per-FedAvg and pFedMe: by hand, by slow references, at their limits, and on digits."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from conftest import pictures
from digits import on_digits
from reference import SETTINGS, Reference, close, combine, run, vector, weights
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedkin
from fedkin import Federation, randomness
from fedkin.methods.pfedme import PFedMe

META = ("perfedavg", "perfedavg-hf")
ADAPTING = ("fedupdate", "fedavg-ft", *META)


# By hand: one number a model.


class Slope(nn.Module):
    """Scores -a x and a x, from weights that start at a = 0.3."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(1, 2, bias=False)
        self.classifier.weight.data = torch.tensor([[-0.3], [0.3]])

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(x)


def slopes(*sizes: int) -> Federation:
    """Clients with x = -1 and 1; the label is the sign of x for the first client, its opposite for the second, ...

    On any batch of theirs the loss is log(1 + exp(-2 a)) or log(1 + exp(2 a)), so every order of batches is the same,
    and a gradient step of size lr takes a to a + lr s(a), or to a - lr s(-a), with s(a) = 1 / (1 + exp(2 a)).
    """
    pairs = []
    for i, n in enumerate(sizes):
        x = np.resize([-1.0, 1.0], n)
        pairs.append((x[:, None], (x > 0).astype(int) if i % 2 == 0 else (x < 0).astype(int)))
    return Federation.from_arrays(pairs, test=[(x[:2], y[:2]) for x, y in pairs], mean=0.0, std=1.0)


def s(a: float, client: int = 0) -> float:
    """How fast `a` grows on a client."""
    return 1 / (1 + math.exp(2 * a)) if client % 2 == 0 else -1 / (1 + math.exp(-2 * a))


def slope_of(method: str, *sizes: int, **settings: Any) -> list[float]:
    """Everybody's a after some rounds in which a client takes one step a round."""
    hand: dict[str, Any] = {"rounds": 1, "join": 1.0, "epochs": 1, "batch": 100, "lr": 0.5}
    models = run(method, slopes(*sizes), model=Slope, **hand | settings).models
    for i in range(len(models)):
        close(models[i][0], -models[i][1])
    return [models[i][1].item() for i in range(len(models))]


A = 0.30000001192092896
"""0.3 as the network has it."""


def test_fedupdate_by_hand() -> None:
    """A mean that is weighted by samples, then one more step on each client."""
    a = 0.75 * (A + 0.5 * s(A, 0)) + 0.25 * (A + 0.5 * s(A, 1))
    expected = [a + 0.2 * s(a, 0), a + 0.2 * s(a, 1)]
    assert slope_of("fedupdate", 12, 4, step_lr=0.2, weight_decay=0.0) == pytest.approx(expected, abs=1e-9)
    # One step only, however many batches there are.
    assert slope_of("fedupdate", 12, step_lr=0.2, batch=4, lr=1e-300) == pytest.approx([A + 0.2 * s(A)], abs=1e-9)


def test_fedavg_ft_by_hand() -> None:
    a = 0.75 * (A + 0.5 * s(A, 0)) + 0.25 * (A + 0.5 * s(A, 1))
    expected = []
    for i in (0, 1):
        b = a
        for _ in range(3):
            b += 0.2 * s(b, i)
        expected.append(b)
    assert slope_of("fedavg-ft", 12, 4, tune_epochs=3, tune_lr=0.2) == pytest.approx(expected, abs=1e-9)


def first_order(a: float, client: int, alpha: float, beta: float) -> float:
    return a + beta * s(a + alpha * s(a, client), client)


def test_first_order_per_fedavg_by_hand() -> None:
    """The gradient is that of the adapted model, the step starts from the one before; all count the same."""
    a = sum(first_order(A, i, 0.8, 0.5) for i in (0, 1)) / 2
    expected = [a + 0.8 * s(a, 0), a + 0.8 * s(a, 1)]
    assert slope_of("perfedavg", 12, 4, alpha=0.8) == pytest.approx(expected, abs=1e-9)
    assert slope_of("perfedavg", 12, 4, alpha=0.8, beta=0.5, lr=9.0) == pytest.approx(expected, abs=1e-9)


def test_hessian_free_per_fedavg_by_hand() -> None:
    moved = []
    for i in (0, 1):
        g = s(A + 0.8 * s(A, i), i)
        product = (s(A + 0.1 * g, i) - s(A - 0.1 * g, i)) / (2 * 0.1)
        moved.append(A + 0.5 * (g + 0.8 * product))
    a = sum(moved) / 2
    expected = [a + 0.8 * s(a, 0), a + 0.8 * s(a, 1)]
    assert slope_of("perfedavg-hf", 12, 4, alpha=0.8, delta=0.1) == pytest.approx(expected, abs=1e-9)


def test_a_small_delta_gives_the_exact_meta_gradient() -> None:
    """d/da of log(1 + exp(-2 b)) at b = a + alpha s(a), by the chain rule: -2 s(a) (1 - s(a)) is s'(a)."""
    g = s(A + 0.8 * s(A))
    a = A + 0.5 * g * (1 + 0.8 * -2 * s(A) * (1 - s(A)))
    assert slope_of("perfedavg-hf", 12, alpha=0.8, delta=1e-4) == pytest.approx([a + 0.8 * s(a)], abs=1e-8)


def test_two_step_per_fedavg_by_hand() -> None:
    """Two plain steps on the same batch, a mean in which all count the same, and no adaptation."""
    moved = []
    for i in (0, 1):
        half = A + 0.5 * s(A, i)
        moved.append(half + 0.5 * s(half, i))
    expected = [sum(moved) / 2] * 2
    assert slope_of("perfedavg", 12, 4, form="two-step") == pytest.approx(expected, abs=1e-9)


def test_one_pass_of_adaptation_is_one_step_a_batch() -> None:
    """Nothing is learnt at a rate of 1e-300, so only the adaptation is left."""
    b = A
    for _ in range(3):
        b += 0.2 * s(b)
    for method in META:
        settings = {"alpha": 0.2, "beta": 1e-300, "batch": 4}
        assert slope_of(method, 12, **settings) == pytest.approx([b], abs=1e-9)
        assert slope_of(method, 12, adapt="step", **settings) == pytest.approx([A + 0.2 * s(A)], abs=1e-9)


@pytest.mark.parametrize("beta", [1.0, 0.5, 2.0])
def test_pfedme_by_hand(beta: float) -> None:
    """Two rounds: K steps of theta near w, w towards theta, the server beta of the way; theta is the client's."""
    a, theta = A, [A, A]
    for _ in range(2):
        moved = []
        for i in (0, 1):
            theta[i], w = a, a
            for _ in range(2):  # Epochs of one batch: the second solve goes on from the theta of the first.
                for _ in range(3):
                    theta[i] += 0.1 * (s(theta[i], i) - 4.0 * (theta[i] - w))
                w -= 0.05 * 4.0 * (w - theta[i])
            moved.append(w)
        a = (1 - beta) * a + beta * sum(moved) / 2
    settings = {"lam": 4.0, "inner_steps": 3, "personal_lr": 0.1, "lr": 0.05, "epochs": 2, "rounds": 2, "beta": beta}
    assert slope_of("pfedme", 12, 4, **settings) == pytest.approx(theta, abs=1e-9)


def test_pfedmes_inner_steps_find_the_proximal_point() -> None:
    """After many of them grad f(theta) = lambda (w - theta), so w moves along the gradient of the Moreau envelope."""
    theta = slope_of("pfedme", 12, lam=4.0, inner_steps=400, personal_lr=0.1)[0]
    assert s(theta) == pytest.approx(4.0 * (theta - A), abs=1e-9)


# Three rounds of each algorithm.


class Slow(Reference):
    """With what these methods need: batches by key, gradients tensor by tensor, plain means."""

    def batches(self, key: str, round: int, client: int, epochs: int | None = None) -> Iterator[Tensor]:
        order = randomness.generator(self.settings["seed"], key, round, client)
        rows = self.train[client]
        for _ in range(self.settings["epochs"] if epochs is None else epochs):
            shuffled = rows[torch.randperm(len(rows), generator=order)]
            for k in range(0, len(rows), self.settings["batch"]):
                yield shuffled[k : k + self.settings["batch"]]

    def gradient(self, model: nn.Module, batch: Tensor) -> list[Tensor]:
        decay = self.settings["weight_decay"] / 2 * sum((p.square().sum() for p in model.parameters()), torch.zeros(()))
        loss = cross_entropy(model(self.x[batch]), self.y[batch]) + decay
        return list(torch.autograd.grad(loss, list(model.parameters())))

    def moved(self, model: nn.Module, by: float, along: list[Tensor]) -> nn.Module:
        model = copy.deepcopy(model)
        with torch.no_grad():
            for p, d in zip(model.parameters(), along, strict=True):
                p += by * d
        return model

    def plain_mean(self, trained: Mapping[int, nn.Module]) -> nn.Module:
        return self.loaded(combine([(1 / len(trained), weights(m)) for m in trained.values()]))

    def adapted(self, model: nn.Module, client: int, lr: float, epochs: int = 1, most: int = 10**9) -> nn.Module:
        for k, batch in enumerate(self.batches("evaluate/adapt", 0, client, epochs)):
            if k < most:
                model = self.moved(model, -lr, self.gradient(model, batch))
        return model


DECAY = SETTINGS | {"weight_decay": 0.01, "rounds": 3}


def same_models(ours: fedkin.Result, theirs: list[nn.Module], reference: Reference, federation: Federation) -> None:
    """The models, and the accuracies that were measured with them."""
    for i, (_, _, test) in enumerate(federation.owned):
        close(ours.models[i], vector(theirs[i]))
        right = theirs[i](reference.x[test]).argmax(1) == reference.y[test]
        assert ours.score.correct[i] == int(right.sum())


@pytest.mark.parametrize(("method", "set", "lr", "epochs", "most"), [
    ("fedupdate", {"step_lr": 0.3}, 0.3, 1, 1),
    ("fedavg-ft", {}, 0.1, 2, 10**9),
    ("fedavg-ft", {"tune_epochs": 3, "tune_lr": 0.02}, 0.02, 3, 10**9),
])  # fmt: skip
def test_rounds_of_fedavg_with_adaptation(
    blobs: Federation, method: str, set: dict[str, Any], lr: float, epochs: int, most: int
) -> None:
    reference = Slow(blobs, DECAY)
    model = reference.fedavg(3)
    theirs = [reference.adapted(model, i, lr, epochs, most) for i in range(4)]
    ours = run(method, blobs, **DECAY, **set)
    same_models(ours, theirs, reference, blobs)
    assert ours.score.model == "personalised after fine-tuning"


def meta_step(
    reference: Slow, model: nn.Module, batches: tuple[Tensor, ...], alpha: float, delta: float | None
) -> list[Tensor]:
    """The meta-gradient: first-order, or with a product with the Hessian by differences."""
    d, d1, d2 = batches
    adapted = reference.moved(model, -alpha, reference.gradient(model, d))
    g = reference.gradient(adapted, d1)
    if delta is None:
        return g
    above = reference.gradient(reference.moved(model, delta, g), d2)
    below = reference.gradient(reference.moved(model, -delta, g), d2)
    return [x - alpha * (y - z) / (2 * delta) for x, y, z in zip(g, above, below, strict=True)]


def groups(reference: Slow, t: int, i: int, draw: str, size: int) -> Iterator[tuple[Tensor, ...]]:
    """The batches of each meta-step: of shuffles of their own, or one after another of a single one."""
    if draw == "independent":
        streams = (reference.batches(f"train/{name}", t, i) for name in ("inner", "batches", "further"))
        yield from zip(*streams, strict=True)
        return
    batches = list(reference.batches("train/batches", t, i))
    for k in range(len(batches) // size):
        yield tuple(batches[size * k + j] for j in (0, 1, size - 1))


@pytest.mark.parametrize(("method", "delta", "momentum", "draw"), [
    ("perfedavg", None, 0.0, "independent"), ("perfedavg", None, 0.5, "independent"),
    ("perfedavg-hf", 0.01, 0.0, "independent"), ("perfedavg", None, 0.0, "in-turn"),
    ("perfedavg-hf", 0.01, 0.0, "in-turn"),
])  # fmt: skip
def test_rounds_of_per_fedavg(blobs: Federation, method: str, delta: float | None, momentum: float, draw: str) -> None:
    settings = DECAY | {"momentum": momentum}
    reference = Slow(blobs, settings)
    model = reference.initial()
    for t in (1, 2, 3):
        trained = {}
        for i in reference.who(t):
            trained[i], velocity = model, [torch.zeros_like(p) for p in model.parameters()]
            for three in groups(reference, t, i, draw, 2 if delta is None else 3):
                step = meta_step(reference, trained[i], three, 0.2, delta)
                velocity = [momentum * v + m for v, m in zip(velocity, step, strict=True)]
                trained[i] = reference.moved(trained[i], -0.1, velocity)
        model = reference.plain_mean(trained)
    set = {"alpha": 0.2, "draw": draw} if delta is None else {"alpha": 0.2, "draw": draw, "delta": delta}
    one = run(method, blobs, adapt="step", **settings, **set)
    same_models(one, [reference.adapted(model, i, 0.2, most=1) for i in range(4)], reference, blobs)
    if not momentum:  # Which the pass before the test has too, but the reference's does not.
        for passes in (1, 3):
            whole = run(method, blobs, passes=passes, **settings, **set)
            same_models(whole, [reference.adapted(model, i, 0.2, passes) for i in range(4)], reference, blobs)


def test_rounds_of_two_step_per_fedavg(blobs: Federation) -> None:
    reference = Slow(blobs, DECAY)
    model = reference.initial()
    for t in (1, 2, 3):
        model = reference.plain_mean({i: reference.sgd(model, i, t, repeats=2) for i in reference.who(t)})
    ours = run("perfedavg", blobs, form="two-step", **DECAY)
    same_models(ours, [model] * 4, reference, blobs)
    assert ours.score.model == "global"
    assert ours.score.correct == ours.history[-1].scores[1].correct


def test_rounds_of_pfedme(blobs: Federation) -> None:
    """Half of the clients at a time: who has not been asked yet has the global model."""
    settings = DECAY | {"join": 0.5, "rounds": 2, "lr": 0.02}
    ours = run("pfedme", blobs, lam=5.0, inner_steps=3, personal_lr=0.1, beta=0.8, **settings)
    reference = Slow(blobs, settings)
    model, theta = reference.initial(), {}
    for t in (1, 2):
        trained = {}
        for i in reference.who(t):
            theta[i], w = model, model
            for batch in reference.batches("train/batches", t, i):
                for _ in range(3):
                    pull = [5.0 * (p - q) for p, q in zip(theta[i].parameters(), w.parameters(), strict=True)]
                    g = [a + b for a, b in zip(reference.gradient(theta[i], batch), pull, strict=True)]
                    theta[i] = reference.moved(theta[i], -0.1, g)
                apart = [p - q for p, q in zip(w.parameters(), theta[i].parameters(), strict=True)]
                w = reference.moved(w, -0.02 * 5.0, apart)
            trained[i] = w
        mean = reference.plain_mean(trained)
        model = reference.loaded(combine([(0.2, weights(model)), (0.8, weights(mean))]))
    assert len(theta) < 4, "somebody should have sat out both rounds"
    same_models(ours, [theta.get(i, model) for i in range(4)], reference, blobs)


# Limits.


def plain_fedavg(reference: Slow, rounds: int, lr: float) -> nn.Module:
    """FedAvg in which all participants count the same."""
    reference.settings["lr"] = lr
    model = reference.initial()
    for t in range(1, rounds + 1):
        model = reference.plain_mean({i: reference.sgd(model, i, t) for i in reference.who(t)})
    return model


@pytest.mark.parametrize("method", META)
def test_per_fedavg_without_adaptation_is_fedavg_with_a_plain_mean(method: str, blobs: Federation) -> None:
    ours = run(method, blobs, alpha=0.0)
    for i in range(4):
        torch.testing.assert_close(ours.models[i], vector(plain_fedavg(Slow(blobs), 2, 0.1)), rtol=0, atol=1e-12)


def test_per_fedavg_without_adaptation_is_fedavg_bit_for_bit_for_one_client() -> None:
    federation = slopes(40)
    ours, theirs = (run(m, federation, join=1.0, **k) for m, k in [("perfedavg", {"alpha": 0.0}), ("fedavg", {})])
    assert torch.equal(ours.models.rows, theirs.models.rows)


def test_pfedme_whose_global_model_follows_at_once_is_fedavg_with_a_plain_mean(blobs: Federation) -> None:
    """One inner step and eta lambda = 1: theta is w after a plain step, and w is then theta."""
    ours = run("pfedme", blobs, lam=4.0, lr=0.25, inner_steps=1, personal_lr=0.1, join=1.0, rounds=3)
    reference = Slow(blobs, SETTINGS | {"join": 1.0})
    before = plain_fedavg(reference, 2, 0.1)
    for i in range(4):
        torch.testing.assert_close(ours.models[i], vector(reference.sgd(before, i, 3)), rtol=0, atol=1e-12)


def test_a_strong_pull_keeps_everybody_at_the_global_model(blobs: Federation) -> None:
    ours = run("pfedme", blobs, lam=1e6, personal_lr=1e-6, lr=1e-6, join=1.0)
    start = vector(Reference(blobs).initial())
    for i in range(4):
        torch.testing.assert_close(ours.models[i], start, rtol=0, atol=1e-3)


@pytest.mark.parametrize("method", ["fedupdate", "fedavg-ft"])
def test_adaptation_leaves_fedavg_itself_alone(method: str, blobs: Federation) -> None:
    """The global model beside it is FedAvg's, and the same bytes are sent."""
    ours, theirs = run(method, blobs), run("fedavg", blobs)
    assert ours.history[-1].scores[1] == theirs.history[-1].scores[1]
    assert [(r.bytes_up, r.bytes_down) for r in ours.history] == [(r.bytes_up, r.bytes_down) for r in theirs.history]


# Mistakes that others have made.


@pytest.mark.parametrize("method", ADAPTING)
def test_adaptation_is_the_same_whenever_it_is_asked_for(method: str, blobs: Federation) -> None:
    """Judging every round, or the last one only, changes neither the models nor their scores."""
    often, once = (run(method, blobs, rounds=4, weight_decay=0.0, evaluate_every=k) for k in (1, 4))
    assert torch.equal(often.models.rows, once.models.rows)
    assert often.score == once.score
    assert len(often.models.rows) == 4, "everybody has a model of its own"


def test_pfedmes_personal_models_are_really_updated(blobs: Federation) -> None:
    """Every round renews theta of who took part, and of nobody else."""
    before = [vector(Reference(blobs).initial())] * 4
    for t in (1, 2, 3):
        ours = run("pfedme", blobs, rounds=t, join=0.5, lr=0.02, personal_lr=0.1)
        seen = {i for r in ours.history for i in r.participants}
        for i in seen:
            changed = not torch.equal(ours.models[i], before[i])
            assert changed == (i in ours.history[-1].participants), (t, i)
        before = [ours.models[i] for i in range(4)]


def test_no_state_leaks_from_the_client_before(blobs: Federation) -> None:
    """What the second client sends does not depend on whether the first one worked before it on the same module."""
    sent: dict[tuple[int, bool], Tensor] = {}
    for alone in (False, True):
        local = PFedMe.local

        def watched(self: PFedMe, client: Any, message: Any, alone: bool = alone, local: Any = local) -> Any:
            if alone:
                client.bound.w.fill_(7.0)
                client.bound.g.fill_(7.0)
            sent[client.id, alone] = (reply := local(self, client, message))["w"]
            return reply

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PFedMe, "local", watched)
            run("pfedme", blobs, rounds=1, join=1.0)
    for i in range(4):
        assert torch.equal(sent[i, False], sent[i, True])


def test_no_message_holds_theta(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number that is sent is read: none of theta's is among them, but where theta and w are the same."""
    sent: list[Tensor] = []
    own: list[Tensor] = []
    local = PFedMe.local

    def watched(self: PFedMe, client: Any, message: Any) -> Any:
        reply = local(self, client, message)
        assert set(reply) == set(message) == {"w"}
        sent.extend((message["w"].clone(), reply["w"].clone()))
        theta = client.private["theta"]
        own.append(theta[(theta - reply["w"]).abs() > 1e-12])
        return reply

    monkeypatch.setattr(PFedMe, "local", watched)
    run("pfedme", pictures(), model="lenet5", join=0.5, rounds=2, epochs=1, personal_lr=0.05, lr=0.01)
    assert min(map(len, own)) > 5000
    assert not torch.isin(torch.cat(own), torch.cat(sent)).any()


@pytest.mark.parametrize("method", [*ADAPTING, "pfedme"])
def test_batch_norm_goes_along(method: str) -> None:
    """Finite scores, and running statistics that moved from where they started."""
    ours = run(method, pictures(), model="lenet5-bn", dtype="float32", epochs=1, lr=0.01, weight_decay=0.0, join=1.0)
    module = fedkin.models.build("lenet5-bn", (1, 16, 16), 2)
    statistics = fedkin.layout.Layout(module).norm_statistics
    started = statistics.of(fedkin.layout.Layout(module).flatten(module))
    for i in range(4):
        assert torch.isfinite(ours.models[i]).all()
        assert not torch.equal(statistics.of(ours.models[i]), started)


# They learn.

learned = partial(on_digits, rounds=20, epochs=3, batch=32, lr=0.05, weight_decay=0.0)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "set", "least", "margin"), [
    ("fedupdate", {}, 0.88, 0.05),
    ("fedavg-ft", {}, 0.92, 0.1),
    ("perfedavg", {}, 0.92, 0.1),
    ("perfedavg-hf", {}, 0.92, 0.1),
    ("perfedavg", {"form": "two-step"}, 0.7, -0.1),
    ("pfedme", {"inner_steps": 3, "personal_lr": 0.02}, 0.9, 0.1),
])  # fmt: skip
def test_it_learns_on_digits(method: str, set: dict[str, Any], least: float, margin: float) -> None:
    """All but the two-step form claim to be better than FedAvg for the clients."""
    assert learned(method, **set) > max(least, learned("fedavg") + margin)
