"""FedPer, FedRep, FedBN, LG-FedAvg, APFL and Ditto: a step by hand, whole rounds by a slow reference, limits."""

from __future__ import annotations

import copy
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import blobs as make_blobs
from conftest import pictures as make_pictures
from digits import on_digits
from reference import (
    BODY,
    HEAD,
    MLP,
    SETTINGS,
    Reference,
    Weights,
    close,
    combine,
    flat,
    numbers,
    run,
    vector,
    weights,
)
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedkin
from fedkin import Federation, FedkinError, models, randomness
from fedkin.api import prepare
from fedkin.client import Client
from fedkin.engine.worker import Job, Worker
from fedkin.layout import Layout
from fedkin.method import Message, Overview, Replies
from fedkin.methods import make, registry
from fedkin.methods.apfl import APFL
from fedkin.methods.ditto import Ditto
from fedkin.methods.fedper import Parted

PARTED = ["fedbn", "fedper", "fedrep", "lg-fedavg"]
ALL = [*PARTED, "apfl", "ditto"]


def only(w: Weights, names: list[str]) -> Weights:
    return {name: w[name] for name in names}


# One step by hand.


class Bare(nn.Module):
    """Scores h * (b x): a body of one number b and a head of two, h."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(1, 1, bias=False)
        self.head = nn.Linear(1, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(x))
        return scores


def bare(method: str, private: dict[str, Any], lr: float = 0.5, **settings: Any) -> tuple[Any, Client, list[Any]]:
    """A method, a client of its that takes one step an epoch, and the client's samples as plain numbers."""
    federation = make_blobs(clients=3, features=1, classes=2)
    setup = prepare(method, data=federation, model=Bare, dtype="float64", lr=lr, epochs=1, batch=1000, **settings)
    worker = Worker(setup.site())
    client = worker.client(Job(1, {}, private, 1, "train"))
    x, y = client.samples.inputs(client.train), client.samples.y[client.train]
    return setup.method, client, list(zip(x.flatten().tolist(), y.tolist(), strict=True))


def slopes(model: Tensor, samples: list[Any]) -> Tensor:
    """The derivatives [3] of the mean cross-entropy by b, h_0 and h_1, on paper."""
    b, *h = model.tolist()
    by = [0.0, 0.0, 0.0]
    for x, y in samples:
        e = [math.exp(c * b * x) for c in h]
        for c in (0, 1):
            error = (e[c] / sum(e) - (c == y)) / len(samples)
            by[0] += error * h[c] * x
            by[1 + c] += error * b * x
    return numbers(*by)


V, W = numbers(0.2, 1.0, -0.3), numbers(0.7, 0.4, -0.6)


def test_a_step_of_fedper_by_hand() -> None:
    method, client, samples = bare("fedper", {"kept": W[1:]})
    reply = method.local(client, {"w": W[:1]})
    expected = W - 0.5 * slopes(W, samples)
    assert set(reply) == {"w", "n"}
    close(reply["w"], expected[:1])
    close(client.private["kept"], expected[1:])


def test_a_step_of_fedrep_by_hand() -> None:
    """The head moves first; the body then sees the head that has moved."""
    method, client, samples = bare("fedrep", {"kept": W[1:]})
    reply = method.local(client, {"w": W[:1]})
    moved = torch.cat([W[:1], (W - 0.5 * slopes(W, samples))[1:]])
    close(client.private["kept"], moved[1:])
    close(reply["w"], (moved - 0.5 * slopes(moved, samples))[:1])


def test_a_step_of_lg_fedavg_by_hand() -> None:
    """FedPer the other way round: the head is sent, the body stays."""
    method, client, samples = bare("lg-fedavg", {"kept": W[:1]})
    reply = method.local(client, {"w": W[1:]})
    expected = W - 0.5 * slopes(W, samples)
    close(client.private["kept"], expected[:1])
    close(reply["w"], expected[1:])


def test_a_step_of_ditto_by_hand() -> None:
    method, client, samples = bare("ditto", {"v": V}, lam=0.8)
    reply = method.local(client, {"w": W.clone()})
    close(client.private["v"], V - 0.5 * (slopes(V, samples) + 0.8 * (V - W)))
    close(reply["w"], W - 0.5 * slopes(W, samples))


@pytest.mark.parametrize("adapt", ["never", "round", "step"])
def test_a_step_of_apfl_by_hand(adapt: str) -> None:
    """The global model moves by its own gradient and no other; alpha by <v - w, gradient of the mixture>."""
    method, client, samples = bare("apfl", {"v": V, "alpha": numbers(0.3)[0]}, adapt=adapt)
    reply = method.local(client, {"w": W.clone()})
    at_mixture = slopes(0.3 * V + 0.7 * W, samples)
    close(client.private["v"], V - 0.5 * 0.3 * at_mixture)
    close(reply["w"], W - 0.5 * slopes(W, samples))
    alpha = 0.3 - 0.5 * float((V - W) @ at_mixture)
    assert 0 < alpha < 1
    assert float(client.private["alpha"]) == pytest.approx(0.3 if adapt == "never" else alpha, abs=1e-12)


def test_alpha_stays_between_nothing_and_all() -> None:
    """A huge step to either side ends at the border."""
    for v in (V, 2 * W - V):
        method, client, samples = bare("apfl", {"v": v, "alpha": numbers(0.3)[0]}, lr=1e6)
        method.local(client, {"w": W.clone()})
        down = float((v - W) @ slopes(0.3 * v + 0.7 * W, samples)) > 0
        assert float(client.private["alpha"]) == (0 if down else 1)


def test_the_server_averages_what_is_shared_by_samples() -> None:
    layout = Layout(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)))
    training = prepare("fedavg", data=make_blobs()).config.training
    fed = Overview(3, 1, 0, 1, layout, numbers(1, 2, 3, 4), training)
    for name, start in (("fedper", (1, 2)), ("lg-fedavg", (3, 4))):
        method = make(name)
        state = method.start(fed)
        close(state["w"], numbers(*start))
        sent: list[Message] = [{"w": numbers(8, 0), "n": 10}, {"w": numbers(0, 4), "n": 30}]
        mixed = method.aggregate(state, Replies("train", [2, 0], sent))
        assert mixed is not None
        close(state["w"], numbers(2, 3))
        close(mixed["shared"][1], numbers(0.75, 0, 0.25))
        close(mixed["private"], torch.eye(3, dtype=torch.float64))
        assert method.global_model(state) is None


# Whole rounds.


@pytest.mark.parametrize(("method", "kept"), [("fedper", HEAD), ("lg-fedavg", BODY)])
def test_rounds_of_fedper_and_lg_fedavg(blobs: Federation, method: str, kept: list[str]) -> None:
    """Two of four clients at a time, so that one has not taken part after two rounds."""
    ours = run(method, blobs, rounds=3, join=0.5)
    reference = Reference(blobs, SETTINGS | {"join": 0.5})
    shared = [name for name in (*BODY, *HEAD) if name not in kept]
    w = weights(reference.initial())
    own = {i: only(w, kept) for i in range(4)}
    for t in (1, 2, 3):
        who = reference.who(t)
        trained = {i: weights(reference.sgd(reference.loaded(w | own[i]), i, t)) for i in who}
        own |= {i: only(trained[i], kept) for i in who}
        total = sum(reference.n[i] for i in who)
        w = w | combine([(reference.n[i] / total, trained[i]) for i in who], shared)
    for i in range(4):
        close(ours.models[i], flat(w | own[i], MLP))


@pytest.mark.parametrize(("head", "body"), [(None, 1), (2, 3)])
def test_rounds_of_fedrep(blobs: Federation, head: int | None, body: int) -> None:
    """With the run's epochs on the head and one on the body, and with FedSimSup's setting; with momentum."""
    settings = SETTINGS | {"momentum": 0.5, "weight_decay": 0.01, "epochs": 4}
    ours = run("fedrep", blobs, **settings | {"head_epochs": head, "body_epochs": body})
    reference = Reference(blobs, settings)
    w = weights(reference.initial())
    heads = {i: only(w, HEAD) for i in range(4)}

    def frozen(w: Weights, names: list[str]) -> nn.Module:
        model = reference.loaded(w)
        for name, p in model.named_parameters():
            p.requires_grad_(name not in names)
        return model

    for t in (1, 2):
        who = reference.who(t)
        trained = {}
        for i in who:
            model = reference.sgd(frozen(w | heads[i], BODY), i, t, epochs=head or 4)
            model = reference.sgd(frozen(weights(model), HEAD), i, t, epochs=body, key="train/body")
            trained[i] = weights(model)
        heads |= {i: only(trained[i], HEAD) for i in who}
        total = sum(reference.n[i] for i in who)
        w = w | combine([(reference.n[i] / total, trained[i]) for i in who], BODY)
    for i in range(4):
        close(ours.models[i], flat(w | heads[i], MLP))


class Whitened(nn.Module):
    """Its batch norm does not say so in its name, and another layer says so in vain."""

    def __init__(self) -> None:
        super().__init__()
        self.bn_like = nn.Linear(6, 5)
        self.whiten = nn.BatchNorm1d(5)
        self.out = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(self.whiten(self.bn_like(x)).relu())
        return scores


def test_rounds_of_fedbn(blobs: Federation) -> None:
    """With state dictionaries: running statistics and the norm's weights stay, all else is averaged."""
    ours = run("fedbn", blobs, model=Whitened, rounds=3)
    reference = Reference(blobs)
    with randomness.seeded_globally(SETTINGS["seed"], "init"):
        start = Whitened().double()
    clients = {i: copy.deepcopy(start) for i in range(4)}
    shared = copy.deepcopy(start.state_dict())
    layout = Layout(start)

    def takes(model: nn.Module) -> None:
        model.load_state_dict({k: v for k, v in shared.items() if not k.startswith("whiten")}, strict=False)

    for t in (1, 2, 3):
        who = reference.who(t)
        for i in who:
            takes(clients[i])
            clients[i].train()
            optimizer = torch.optim.SGD(clients[i].parameters(), SETTINGS["lr"])
            order = randomness.generator(SETTINGS["seed"], "train/batches", t, i)
            for _ in range(SETTINGS["epochs"]):
                shuffled = reference.train[i][torch.randperm(reference.n[i], generator=order)]
                batches = list(shuffled.split(8))
                if len(batches[-1]) == 1:
                    batches[-2:] = [torch.cat(batches[-2:])]
                for batch in batches:
                    optimizer.zero_grad()
                    cross_entropy(clients[i](reference.x[batch]), reference.y[batch]).backward()
                    optimizer.step()
        total = sum(reference.n[i] for i in who)
        for name in shared:
            if "num_batches" not in name:
                shared[name] = sum(
                    (reference.n[i] / total * clients[i].state_dict()[name] for i in who), torch.zeros(())
                )
    for i in range(4):
        takes(clients[i])
        close(ours.models[i], layout.flatten(clients[i]))
    assert len({tuple(layout.norm_statistics.of(ours.models[i]).tolist()) for i in range(4)}) == 4


@pytest.mark.parametrize("adapt", ["never", "round", "step"])
def test_rounds_of_apfl(blobs: Federation, adapt: str) -> None:
    """alpha is a number that autograd differentiates by, as it does by v."""
    settings = SETTINGS | {"momentum": 0.5, "weight_decay": 0.01}
    ours = run("apfl", blobs, **settings, alpha=0.4, adapt=adapt)
    reference = Reference(blobs, settings)
    w = weights(reference.initial())
    own: dict[int, Weights] = {}
    alpha = dict.fromkeys(range(4), 0.4)
    for t in (1, 2):
        trained = {}
        for i in reference.who(t):
            w_i = reference.loaded(w)
            v = {name: p.clone().requires_grad_() for name, p in own.get(i, w).items()}
            plain = {"momentum": 0.5, "weight_decay": 0.01}
            optimizers = [torch.optim.SGD(ps, 0.1, **plain) for ps in (w_i.parameters(), v.values())]
            order = randomness.generator(3, "train/batches", t, i)
            steps = 0
            for _ in range(2):
                for batch in reference.train[i][torch.randperm(reference.n[i], generator=order)].split(8):
                    x, y = reference.x[batch], reference.y[batch]
                    a = torch.tensor(alpha[i], dtype=torch.float64, requires_grad=True)
                    fixed = weights(w_i)
                    mixed = {name: a * v[name] + (1 - a) * fixed[name] for name in v}
                    for optimizer in optimizers:
                        optimizer.zero_grad()
                    cross_entropy(torch.func.functional_call(reference.initial(), mixed, (x,)), y).backward()
                    cross_entropy(w_i(x), y).backward()
                    for optimizer in optimizers:
                        optimizer.step()
                    assert a.grad is not None
                    if adapt == "step" or (adapt == "round" and steps == 0):
                        alpha[i] = min(1.0, max(0.0, alpha[i] - 0.1 * float(a.grad)))
                    steps += 1
            trained[i] = w_i
            own[i] = {name: p.detach() for name, p in v.items()}
        w = weights(reference.mean(trained))
    assert (len(set(alpha.values())) > 1) == (adapt != "never")
    for i in range(4):
        mixed = combine([(alpha[i], own[i]), (1 - alpha[i], w)]) if i in own else w
        close(ours.models[i], flat(mixed, MLP))
    assert ours.score.moment == "after aggregation"


def test_rounds_of_ditto(blobs: Federation) -> None:
    ours = run("ditto", blobs, lam=0.7, personal_epochs=3, join=0.5, rounds=3)
    reference = Reference(blobs, SETTINGS | {"join": 0.5})
    w = reference.initial()
    own: dict[int, nn.Module] = {}
    for t in (1, 2, 3):
        anchor = [p.detach().clone() for p in w.parameters()]

        def pull(m: nn.Module, anchor: list[Tensor] = anchor) -> Tensor:
            return 0.7 / 2 * sum(((p - q).square().sum() for p, q in zip(m.parameters(), anchor, strict=True)), 0.0)

        who = reference.who(t)
        own |= {i: reference.sgd(own.get(i, w), i, t, epochs=3, penalty=pull) for i in who}
        w = reference.mean({i: reference.sgd(w, i, t) for i in who})
    for i in range(4):
        close(ours.models[i], vector(own.get(i, w)))


# Limits.


def test_without_norm_layers_fedbn_is_fedavg(blobs: Federation) -> None:
    ours, theirs = run("fedbn", blobs), run("fedavg", blobs)
    assert torch.equal(ours.models.rows, theirs.models.rows)
    assert ours.models.row_of == theirs.models.row_of
    assert ours.global_score == theirs.global_score


def test_keeping_everything_is_local_only_and_sharing_everything_fedavg(blobs: Federation) -> None:
    alone, together = run("local-only", blobs).models, run("fedavg", blobs).models
    everything = "fc1+fc2+classifier"
    for i in range(4):
        assert torch.equal(run("fedper", blobs, private_layers=everything).models[i], alone[i])
        assert torch.equal(run("lg-fedavg", blobs, shared_layers=everything).models[i], together[i])
    with pytest.raises(FedkinError, match="fc3"):
        run("fedper", blobs, private_layers="fc3")


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9, "weight_decay": 0.01}])
def test_apfl_lies_between_fedavg_and_local_only(blobs: Federation, settings: dict[str, Any]) -> None:
    """To the last bit, with everybody present; and whatever alpha is, the global model takes FedAvg's steps."""
    settings = {"join": 1.0, **settings}
    alone, together = run("local-only", blobs, **settings).models, run("fedavg", blobs, **settings)
    none, full = (run("apfl", blobs, alpha=a, adapt="never", **settings) for a in (0.0, 1.0))
    for i in range(4):
        assert torch.equal(none.models[i], together.models[i])
        assert torch.equal(full.models[i], alone[i])
    for ours in (none, full, run("apfl", blobs, alpha=0.6, adapt="step", **settings)):
        assert ours.global_score == together.global_score


def test_ditto_without_its_term_is_local_only_beside_fedavg(blobs: Federation) -> None:
    ours = run("ditto", blobs, lam=0.0, join=1.0)
    alone, together = run("local-only", blobs, join=1.0), run("fedavg", blobs, join=1.0)
    for i in range(4):
        assert torch.equal(ours.models[i], alone.models[i])
    assert ours.global_score == together.global_score


def test_dittos_personal_models_come_nearer_as_the_pull_grows(blobs: Federation) -> None:
    together = run("fedavg", blobs, join=1.0).models[0]
    apart = []
    for lam in (0.0, 0.3, 1.0, 5.0):
        ours = run("ditto", blobs, lam=lam, join=1.0).models
        apart.append(float(torch.stack([ours[i] - together for i in range(4)]).norm()))
    assert apart == sorted(apart, reverse=True)


def test_a_model_that_is_all_classifier_leaves_fedper_nothing_to_share(blobs: Federation) -> None:
    ours = run("fedper", blobs, model=Linear)
    assert {r.bytes_down for r in ours.history} == {0}
    alone = run("local-only", blobs, model=Linear).models
    for i in range(4):
        assert torch.equal(ours.models[i], alone[i])


class Linear(nn.Linear):
    def __init__(self) -> None:
        super().__init__(6, 3)


# Norm layers and their statistics.


@pytest.mark.parametrize("name", ["mobilenetv2", "lenet5-bn"])
def test_fedbn_knows_norm_layers_by_their_type(name: str) -> None:
    """FedBN by the letters `bn` in a name does nothing on a network whose layers are called otherwise."""
    module = models.build(name, (3, 32, 32), 10)
    layout = Layout(module)
    kept = make("fedbn").kept(layout)  # type: ignore[attr-defined]
    norms = [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._NormBase)]
    floats = [t for part in norms for t in (*part.parameters(), *part.buffers()) if t.is_floating_point()]
    assert norms
    assert len(kept) == sum(t.numel() for t in floats)
    assert not (kept & layout.classifier).ranges


@pytest.mark.parametrize("name", PARTED)
def test_what_is_kept_differs_and_what_is_shared_does_not(name: str, pictures: Federation) -> None:
    result = run(name, pictures, model="lenet5-bn", dtype="float32", join=1.0, epochs=1)
    layout = Layout(models.build("lenet5-bn", pictures.shape, 2))
    method = make(name)
    assert isinstance(method, Parted)
    kept, shared = method.kept(layout), method.shared(layout)
    assert len(kept) + len(shared) == layout.size
    assert kept.ranges
    assert not (kept & shared).ranges
    for i in (1, 2, 3):
        assert torch.equal(shared.of(result.models[i]), shared.of(result.models[0]))
        assert not torch.equal(kept.of(result.models[i]), kept.of(result.models[0]))


@pytest.mark.parametrize("name", ["apfl", "ditto"])
def test_own_models_have_norm_statistics_of_their_own(name: str, pictures: Federation) -> None:
    """Those of the model that is used: after a round at lr so small that nothing else moves, both passes agree."""
    common = {"model": "lenet5-bn", "join": 1.0, "epochs": 1, "rounds": 1, "lr": 1e-12}
    ours, alone = run(name, pictures, **common), run("local-only", pictures, **common)
    layout = Layout(models.build("lenet5-bn", pictures.shape, 2))
    for i in range(4):
        close(layout.norm_statistics.of(ours.models[i]), layout.norm_statistics.of(alone.models[i]))


# Privacy, and private state from round to round.


@pytest.mark.parametrize("name", ALL)
def test_private_state_is_in_no_message(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cls = registry()[name]
    federation = make_pictures()
    layout = Layout(models.build("lenet5-bn", federation.shape, 2))
    method = make(name)
    expected = len(method.shared(layout)) if isinstance(method, Parted) else layout.size
    messages: list[bytes] = []
    private: list[Tensor] = []
    local = cls.local

    def watched(self: Any, client: Client, message: Message) -> Message:
        reply = local(self, client, message)
        assert set(message) == {"w"}
        assert set(reply) == {"w", "n"}
        assert reply["w"].shape == message["w"].shape == (expected,)
        messages.extend(m["w"].contiguous().numpy().tobytes() for m in (message, reply))
        # Of a whole model the classifier: numbers that no step has moved yet are those that everybody starts from.
        mine = client.private["kept"] if "kept" in client.private else layout.classifier.of(client.private["v"])
        private.append(mine.clone())
        return reply

    monkeypatch.setattr(cls, "local", watched)
    run(name, federation, model="lenet5-bn", join=0.5, rounds=3, dtype="float32", epochs=2)
    everything = b"".join(messages)
    assert private
    for mine in private:
        fours = mine[: len(mine) // 4 * 4].view(-1, 4)
        moved = [four for four in fours if four.unique().numel() > 1]
        assert moved
        for four in moved:
            assert four.numpy().tobytes() not in everything


@pytest.mark.parametrize("name", ALL)
def test_bytes_are_those_of_the_shared_columns(name: str, blobs: Federation) -> None:
    result = run(name, blobs)
    layout, method = Layout(models.build("mlp", (6,), 3)), make(name)
    size = 8 * (len(method.shared(layout)) if isinstance(method, Parted) else layout.size)
    assert [(r.bytes_down, r.bytes_up) for r in result.history] == [(3 * size, 3 * (size + 8))] * 2


@pytest.mark.parametrize("name", ALL)
def test_who_never_took_part_has_what_the_server_serves(name: str) -> None:
    """One round with half of the clients: the others have the shared part, and the initial rest."""
    federation = make_blobs()
    result = run(name, federation, rounds=1, join=0.5)
    layout, method = Layout(models.build("mlp", (6,), 3)), make(name)
    start = vector(Reference(federation).initial())
    missing = sorted(set(range(4)) - set(result.history[0].participants))
    for i in missing:
        if isinstance(method, Parted):
            kept, shared = method.kept(layout), method.shared(layout)
            assert torch.equal(kept.of(result.models[i]), kept.of(start))
            assert torch.equal(shared.of(result.models[i]), shared.of(result.models[0]))
        else:
            close(result.models[i], run("fedavg", federation, rounds=1, join=0.5).models[0])


@pytest.mark.parametrize("adapt", ["round", "step"])
def test_alpha_survives_a_checkpoint(adapt: str, tmp_path: Path, blobs: Federation) -> None:
    class Stop(Exception):
        pass

    def stop(happened: Any, _seconds: float) -> None:
        if happened.round == 2:
            raise Stop

    settings = {"rounds": 4, "join": 0.5, "adapt": adapt, "checkpoint_every": 1}
    whole = run("apfl", blobs, **settings)
    with pytest.raises(Stop):
        run("apfl", blobs, out=tmp_path / "run", watch=stop, **settings)
    assert torch.equal(fedkin.resume(tmp_path / "run", data=blobs).models.rows, whole.models.rows)


def test_each_says_truthfully_when_it_is_judged() -> None:
    assert {name: registry()[name].judged.moment for name in ALL} == dict.fromkeys(ALL, "after aggregation") | {
        "ditto": "after local training"
    }
    assert (APFL.judged.model, Ditto.judged.model) == ("personalised", "personalised")


# They learn.

learned = partial(on_digits, rounds=12, lr=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "least", "margin"),
    [
        ("fedper", 0.95, 0.10), ("fedrep", 0.87, 0.10), ("lg-fedavg", 0.95, 0.10), ("apfl", 0.95, 0.10),
        ("ditto", 0.95, 0.10),
    ],
)  # fmt: skip
def test_each_beats_fedavg_on_digits(method: str, least: float, margin: float) -> None:
    assert learned(method) > max(least, learned("fedavg") + margin)


class Dense(nn.Module):
    """Two layers for pictures of 64 pixels, with batch norm between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.norm = nn.BatchNorm1d(64)
        self.classifier = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.norm(self.first(x)).relu())
        return scores


@pytest.mark.slow
def test_fedbn_beats_fedavg_where_features_differ() -> None:
    """The paper's case: the same digits for everybody, taken by cameras of different brightness and contrast."""
    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    order, pairs = rng.permutation(len(x)), []
    for i in range(6):
        rows = order[i::6]
        gain, offset = np.exp(rng.normal()), 16 * rng.normal(size=64)
        pairs.append(((gain * x[rows] + offset).astype(np.float32), y[rows]))
    federation = Federation.from_arrays(pairs, name="cameras")
    common: dict[str, Any] = {"model": Dense, "engine": "inline", "lr": 0.05, "rounds": 15, "epochs": 1}
    ours, theirs = (fedkin.run(name, data=federation, **common).accuracy for name in ("fedbn", "fedavg"))
    assert ours > 0.90
    assert ours > theirs + 0.15
