"""Baselines that look for kin: FedFomo, FedAP and FedProto, by hand, by references, and at their limits."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from digits import on_digits
from reference import SETTINGS, Reference, Weights, close, combine, double, flat, replied, run, server, vector, weights
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedkin import Federation, randomness
from fedkin.layout import Layout
from fedkin.method import Method
from fedkin.methods import fedap, fedfomo
from fedkin.methods.fedap import FedAP
from fedkin.methods.fedfomo import FedFomo
from fedkin.methods.fedproto import FedProto, class_means

learned = partial(on_digits, rounds=15, epochs=2, lr=0.05)


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
                gain = reference.loss(before[i], judge[i]) - reference.loss(last[j], judge[i])
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
    assert learned("fedfomo") > max(0.92, learned("fedavg") + 0.2)


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
    assert learned("fedap") > max(0.93, learned("fedavg") + 0.2)
    norm = with_norm(64, 10).float()
    assert learned("fedap", model=norm) > max(0.75, learned("fedavg", model=norm) + 0.2)


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


def test_fedproto_pulls_by_hand() -> None:
    """Class 0 is 5 away, its samples by squares 9 + 16 + 9 + 16; class 1 has no prototype, class 2 no sample."""
    message = {"prototypes": double([[0, 0], [0, 0], [8, 8]]), "known": double([1, 0, 1])}
    z, y = double([[3, 4], [3, 4], [9, 9]]), torch.tensor([0, 0, 1])
    close(FedProto().apart(z, y, message), double(5))
    close(FedProto(pull="samples").apart(z, y, message), double(50 / 6))


def proto_rounds(
    reference: Reference, rounds: int, strength: float, pull: str = "means"
) -> tuple[dict[int, nn.Module], dict[int, Tensor]]:
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
                        mine = z[reference.y[batch] == c]
                        if pull == "means":
                            total = total + strength * (mine.mean(0) - shared[c]).square().sum().sqrt()
                        else:
                            total = total + strength * (mine - shared[c]).square().sum() / z.numel()
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


def test_rounds_of_fedproto_as_public_code_has_it(blobs: Federation) -> None:
    """Samples are drawn to prototypes, and the classifier labels; fine-tuned, it does so too."""
    settings = SETTINGS | {"join": 0.25, "rounds": 3}
    public = {"pull": "samples", "label": "classifier"}
    ours = run("fedproto", blobs, **settings, strength=0.7, **public, finetune_steps=1, finetune_lr=1e-12)
    reference = Reference(blobs, settings)
    models, _ = proto_rounds(reference, 3, 0.7, "samples")
    for i, (_, _, test) in enumerate(blobs.owned):
        close(ours.models[i], vector(models[i]))
        said = models[i](reference.x[test]).argmax(1)
        assert ours.score.correct[i] == int((said == reference.y[test]).sum())
    assert ours.finetuned is not None
    assert ours.finetuned.correct == ours.score.correct  # A step that moves nothing changes nothing.


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
    assert learned("fedproto") > max(0.92, learned("fedavg") + 0.2)
    assert learned("fedproto", join=0.5) > learned("fedavg", join=0.5) + 0.2
