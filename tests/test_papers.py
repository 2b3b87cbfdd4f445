"""The four papers' methods: each equation by hand, two whole rounds by a slow reference, and their limits."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import blobs as make_blobs
from conftest import pictures
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
    run,
    vector,
    weights,
)
from scipy.cluster.hierarchy import fcluster, ward
from torch import Tensor, nn

from fedkin import Federation, FedkinError, models, randomness
from fedkin.data.dataset import Split
from fedkin.export import Personal
from fedkin.layout import Layout
from fedkin.methods.fedalp import layer_weights
from fedkin.methods.fedalp import ward as grouped
from fedkin.methods.fedsimsup import FedSimSup, sat_out
from fedkin.methods.pfedsim import minus_log
from fedkin.methods.spfl import SPFL
from fedkin.runs.folder import RunFolder
from fedkin.similarity import boundary_cosine, cosine, label_cosine, loss_gain, norm_distance


def angle(a: Tensor, b: Tensor) -> float:
    return float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))


# Equations, one by one.


def test_cosines_by_hand() -> None:
    rows = torch.tensor([[3.0, 4.0], [4.0, 3.0], [-3.0, -4.0], [0.0, 0.0]], dtype=torch.float64)
    expected = [[1, 0.96, -1, 0], [0.96, 1, -0.96, 0], [-1, -0.96, 1, 0], [0, 0, 0, 0]]
    close(cosine(rows), torch.tensor(expected, dtype=torch.float64))


def test_spfl_softmax_by_hand() -> None:
    """(6) with cosines 1 and 0: e / (e + 1) for oneself."""
    g = torch.eye(2, dtype=torch.float64)
    layout = Layout(nn.Linear(1, 1))
    similarity = SPFL().similarity(g, layout.all, layout)
    close(similarity.softmax(1)[0], torch.tensor([math.e, 1.0], dtype=torch.float64) / (math.e + 1))


def test_pfedsim_similarity_by_hand() -> None:
    """(3): rows (1, 0) and (3, 4) have cosine 0.6; opposite rows count as 0; the mean is over classes."""
    layout = Layout(nn.Linear(2, 2, bias=True))
    models_ = torch.tensor([[1, 0, 0, 2, 9, 9], [3, 4, 0, -1, -9, 9]], dtype=torch.float64)
    cosines = boundary_cosine(models_, layout)
    close(cosines[:, 0, 1], torch.tensor([0.6, -1.0], dtype=torch.float64))
    expected = (-math.log(1 - 0.6) - math.log(1 - 0)) / 2
    assert minus_log(cosines).mean(0)[0, 1].item() == pytest.approx(expected, abs=1e-12)
    assert minus_log(torch.ones((), dtype=torch.float64)).item() == pytest.approx(9.2103, abs=1e-4)


def test_wasserstein_distance_of_norm_statistics_by_hand() -> None:
    """Means 3 apart, deviations 4 apart (variances 1 and 25): distance 5."""
    module = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    layout = Layout(module)
    rows = torch.zeros(2, layout.size, dtype=torch.float64)
    rows[:, layout.columns["1.running_mean"][0]] = torch.tensor([1.0, 4.0], dtype=torch.float64)
    rows[:, layout.columns["1.running_var"][0]] = torch.tensor([1.0, 25.0], dtype=torch.float64)
    close(norm_distance(rows, layout), torch.tensor([[0.0, 5.0], [5.0, 0.0]], dtype=torch.float64))
    with pytest.raises(FedkinError, match="needs a model with batch norm"):
        norm_distance(torch.zeros(2, 2), Layout(nn.Linear(1, 1)))


def test_loss_gain_by_hand() -> None:
    """Model 2 is 5 away from model 1 and lowers client 1's loss from 2 to 1: a gain of 0.2."""
    models_ = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64)
    losses = torch.tensor([[2.0, 1.0], [4.0, 3.0]], dtype=torch.float64)
    close(loss_gain(losses, models_), torch.tensor([[0.0, 0.2], [-0.2, 0.0]], dtype=torch.float64))


def test_fedalp_layer_weights_by_hand() -> None:
    """(7), (8): layers that moved by 5 and by 2.5 get beta and beta / 2."""
    layout = Layout(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)))
    d = torch.tensor([[3.0, 4.0, 1.5, 2.0]], dtype=torch.float64)
    expected = torch.tensor([[0.6, 0.6, 0.3, 0.3]], dtype=torch.float64)
    close(layer_weights(d, layout, beta=0.6), expected)


def test_fedalp_groups_are_those_of_wards_method() -> None:
    updates = torch.tensor([[1, 0, 0.1], [1, 0.1, 0], [0, 1, 0.1], [0.1, 1, 0], [0, 0, 1]], dtype=torch.float64)
    a, b, c, d, e = grouped(cosine(updates), 3).tolist()
    assert a == b != c == d != e != a
    rho = cosine(torch.randn(12, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).numpy()
    upper = (1 - rho)[np.triu_indices(12, 1)]
    assert grouped(torch.from_numpy(rho), 4).tolist() == (fcluster(ward(upper), 4, "maxclust") - 1).tolist()


def test_fedsimsup_mixing_by_hand() -> None:
    """(8), (9) with K = 2 participants of 10 and 30 samples, and an outsider with 20."""
    s = torch.tensor([[1, 0.2, 0.6], [0.2, 1, 0.3], [0.6, 0.3, 1]], dtype=torch.float64)
    m = torch.tensor([10.0, 30.0, 20.0], dtype=torch.float64)
    alpha = 2 * 20 / (10 + 30 + 2 * 20)
    expected = [[1, 0, 0], [0, 1, 0], [(1 - alpha) * 0.6 / 0.9, (1 - alpha) * 0.3 / 0.9, alpha]]
    close(sat_out(s, m, [0, 1]), torch.tensor(expected, dtype=torch.float64))
    # An outsider who is like nobody stays as it is.
    s[2, :2] = 0
    close(sat_out(s, m, [0, 1]), torch.eye(3, dtype=torch.float64))


def test_label_cosine_by_hand() -> None:
    proportions = torch.tensor([[0.5, 0.5, 0], [1, 0, 0], [0, 0, 1]], dtype=torch.float64)
    expected = torch.tensor([[1, math.sqrt(0.5), 0], [math.sqrt(0.5), 1, 0], [0, 0, 1]], dtype=torch.float64)
    close(label_cosine(proportions), expected)


# Two rounds of each algorithm.


@pytest.mark.parametrize(("method", "head", "steps", "compare"), [
    ("spfl", "mixed", 2, "updates"), ("spfl", "private", 2, "updates"), ("spfl", "mixed", 1, "updates"),
    ("spfl-w", "mixed", 2, "updates"), ("spfl-w", "mixed", 2, "models"),
])  # fmt: skip
def test_rounds_of_spfl(blobs: Federation, method: str, head: str, steps: int, compare: str) -> None:
    """Three rounds with a refresh before rounds 1 and 3."""
    ours = run(method, blobs, head=head, local_steps=steps, compare=compare, refresh=2, rounds=3, join=1.0)
    reference = Reference(blobs, SETTINGS | {"join": 1.0})
    clients = range(len(blobs))
    w = {i: weights(reference.initial()) for i in clients}
    for t in (1, 2, 3):
        if t in (1, 3):
            middle = combine([(1 / len(blobs), w[i]) for i in clients])
            compared = {}
            for i in clients:
                key = "similarity/batches"
                trained = weights(reference.sgd(reference.loaded(middle), i, t, key=key, epochs=1, repeats=steps))
                compared[i] = trained if compare == "models" else combine([(1.0, middle), (-1.0, trained)])
                w[i] = middle
            table = {}
            for names in (BODY, HEAD):
                for i in clients:
                    e = [math.exp(angle(flat(compared[i], names), flat(compared[j], names))) for j in clients]
                    table[i, names is HEAD] = [x / sum(e) for x in e]
        trained_ = {i: weights(reference.sgd(reference.loaded(w[i]), i, t, repeats=steps)) for i in clients}
        g = {i: combine([(1.0, w[i]), (-1.0, trained_[i])]) for i in clients}
        new = {}
        for i in clients:
            row = {False: table[i, False], True: table[i, True]}
            if head == "private":
                row[True] = [float(i == j) for j in clients]
            if method == "spfl-w":
                pieces = [
                    combine([(row[names is HEAD][j], trained_[j]) for j in clients], names) for names in (BODY, HEAD)
                ]
            else:
                pieces = [
                    combine([(1.0, w[i]), *((-row[names is HEAD][j], g[j]) for j in clients)], names)
                    for names in (BODY, HEAD)
                ]
            new[i] = pieces[0] | pieces[1]
        w = new
    for i in clients:
        close(ours.models[i], flat(w[i], MLP))


@pytest.mark.parametrize("log", ["per-class", "of-mean"])
def test_rounds_of_pfedsim(blobs: Federation, log: str) -> None:
    """One round of FedAvg and three personal ones, three of four clients at a time."""
    ours = run("pfedsim", blobs, rho=0.25, rounds=4, log=log)
    reference = Reference(blobs)
    start = reference.fedavg(1)
    w = {i: weights(start) for i in range(4)}
    phi = {(i, j): -math.log(1 - 0.9999) * (i == j) for i in range(4) for j in range(4)}
    for t in (2, 3, 4):
        who = reference.who(t)
        trained = {}
        for i in who:
            total = sum(phi[i, j] for j in range(4))
            body = combine([(phi[i, j] / total, w[j]) for j in range(4)], BODY)
            trained[i] = weights(reference.sgd(reference.loaded(body | {n: w[i][n] for n in HEAD}), i, t))
        w |= trained
        for i in who:
            for j in who:
                if i != j:
                    rows = zip(w[i][HEAD[0]], w[j][HEAD[0]], strict=True)
                    cosines = [max(0.0, angle(a, b)) for a, b in rows]
                    if log == "of-mean":
                        phi[i, j] = -math.log(1 - sum(cosines) / 3)
                    else:
                        phi[i, j] = sum(-math.log(1 - c) for c in cosines) / 3
    for i in range(4):
        close(ours.models[i], flat(w[i], MLP))
    matrix = ours.mixing(4)["extractor"]
    for i in range(4):
        total = sum(phi[i, j] for j in range(4))
        close(matrix[i], torch.tensor([phi[i, j] / total for j in range(4)], dtype=torch.float64))


def test_rounds_of_fedalp(blobs: Federation) -> None:
    """One round of warm-up, then two with two groups."""
    ours = run("fedalp", blobs, warm_up=1 / 3, rounds=3, groups=2, beta=0.6)
    reference = Reference(blobs)
    w_g = weights(reference.fedavg(1))
    layers = [[f"{name}.weight", f"{name}.bias"] for name in ("fc1", "fc2", "classifier")]
    delta = {}
    for i in range(4):
        trained = weights(reference.sgd(reference.loaded(w_g), i, 2, key="similarity/batches"))
        delta[i] = combine([(1.0, trained), (-1.0, w_g)])
    distances = [1 - angle(flat(delta[i]), flat(delta[j])) for i in range(4) for j in range(i + 1, 4)]
    member = [int(m) - 1 for m in fcluster(ward(distances), 2, "maxclust")]
    assert len(set(member)) == 2
    psi = {}
    for m in (0, 1):
        d = combine([(float(reference.n[i]), delta[i]) for i in range(4) if member[i] == m])
        norms = [float(flat(d, names).norm()) for names in layers]
        psi[m] = [0.6 * x / max(norms) for x in norms]
    groups = {0: w_g, 1: w_g}

    def mixed(m: int) -> Weights:
        out: Weights = {}
        for p, names in zip(psi[m], layers, strict=True):
            out |= combine([(p, groups[m]), (1 - p, w_g)], names)
        return out

    for t in (2, 3):
        new = dict(groups)
        for m in (0, 1):
            here = [i for i in reference.who(t) if member[i] == m]
            start = mixed(m)
            total = sum(reference.n[i] for i in here)
            for i in here:
                trained = weights(reference.sgd(reference.loaded(start), i, t))
                share = reference.n[i] / total
                new[m] = combine([(1.0, new[m]), (share, trained), (-share, start)])
        groups = new
        share_of = [sum(reference.n[i] for i in range(4) if member[i] == m) / sum(reference.n) for m in (0, 1)]
        w_g = combine([(share_of[m], groups[m]) for m in (0, 1)])
    for i in range(4):
        close(ours.models[i], flat(mixed(member[i])))


def test_rounds_of_fedsimsup(blobs: Federation) -> None:
    ours = run("fedsimsup", blobs, rounds=3, epochs=3, join=0.5)
    reference = Reference(blobs, SETTINGS | {"join": 0.5})
    theta = {i: weights(reference.initial()) for i in range(4)}
    supervisor = {i: reference.initial("mlp-sixth", "init/mlp-sixth", i) for i in range(4)}
    counts = [torch.bincount(reference.y[rows], minlength=3).double() for rows in reference.train]
    for t in (1, 2, 3):
        who = reference.who(t)
        for i in who:
            model = reference.loaded(theta[i])
            supervisor[i] = reference.sgd(supervisor[i], i, t, key="train/supervisor", epochs=2, beside=model)
            theta[i] = weights(reference.sgd(model, i, t, epochs=1, beside=supervisor[i]))
        together = sum(reference.n[j] for j in who)
        new = {}
        for i in set(range(4)) - set(who):
            alpha = len(who) * reference.n[i] / (together + len(who) * reference.n[i])
            s = {j: angle(counts[i], counts[j]) for j in who}
            pull = [((1 - alpha) * s[j] / sum(s.values()), theta[j]) for j in who]
            new[i] = combine([(alpha, theta[i]), *pull])
        theta |= new
    for i in range(4):
        close(ours.models[i], flat(theta[i]))
    # Judged by the sum of both networks' scores.
    for i, (_, _, test) in enumerate(blobs.owned):
        scores = reference.loaded(theta[i])(reference.x[test]) + supervisor[i](reference.x[test])
        assert ours.score.correct[i] == int((scores.argmax(1) == reference.y[test]).sum())


# Limits that must hold.


def test_pfedsim_without_personalisation_is_fedavg(blobs: Federation) -> None:
    assert torch.equal(run("pfedsim", blobs, rho=1.0).models.rows, run("fedavg", blobs).models.rows)
    settings = SETTINGS | {"dtype": "float32", "model": "lenet5-bn"}
    a = run("pfedsim", pictures(), rho=1.0, norm_statistics="mixed", **settings)
    assert torch.equal(a.models.rows, run("fedavg", pictures(), **settings).models.rows)


def test_fedalp_without_personalisation_gives_everybody_the_fedavg_model(blobs: Federation) -> None:
    ours = run("fedalp", blobs, beta=0.0, warm_up=0.5, rounds=4, groups=2, join=1.0)
    theirs = run("fedavg", blobs, rounds=4, join=1.0)
    for i in range(4):
        close(ours.models[i], theirs.models[0])


def test_spfl_with_a_flat_similarity_moves_everybody_alike(blobs: Federation) -> None:
    ours = run("spfl", blobs, temperature=1e12, join=1.0)
    for i in range(4):
        close(ours.models[i], ours.models[0])
    close(ours.mixing(1)["classifier"], torch.full((4, 4), 0.25, dtype=torch.float64))


def test_spfl_as_printed_hardly_moves(blobs: Federation) -> None:
    """(7) taken literally: alpha = 0.01 and |D_j| / |D|."""
    start = vector(Reference(blobs).initial())
    settings: dict[str, Any] = {"rounds": 1, "join": 1.0}
    literal = run("spfl", blobs, server_lr=0.01, weight_by_samples=True, **settings).models[0] - start
    default = run("spfl", blobs, **settings).models[0] - start
    assert literal.norm() < 0.01 * default.norm()


def test_fedsimsup_with_everybody_present_mixes_nothing(blobs: Federation) -> None:
    ours = run("fedsimsup", blobs, join=1.0)
    close(ours.mixing(2)["all"], torch.eye(4, dtype=torch.float64))


def test_who_sits_out_learns_from_its_kin_alone() -> None:
    """Labels that do not overlap: nothing passes between the two kinds of client."""
    federation = make_blobs(clients=6)
    y = federation.data.y.copy()
    for i, (_, train, test) in enumerate(federation.owned):
        y[np.concatenate([train, test])] = i % 2
    federation = Federation(replace(federation.data, y=y), federation.split)
    ours = run("fedsimsup", federation, join=0.5, rounds=3)
    for t in (1, 2, 3):
        matrix = ours.mixing(t)["all"]
        kin = torch.tensor([[(i - j) % 2 == 0 for j in range(6)] for i in range(6)])
        assert (matrix[~kin] == 0).all()


@pytest.mark.parametrize("method", ["spfl", "spfl-w", "pfedsim", "fedalp", "fedsimsup"])
def test_renumbering_the_clients_renumbers_the_result(
    method: str, blobs: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random draws follow the client, not its number."""
    order = [2, 0, 3, 1]
    split = blobs.split
    renumbered = Federation(
        blobs.data,
        Split(*(tuple(part[i] for i in order) for part in (split.train, split.test, split.names))),
    )
    settings: dict[str, Any] = {"rounds": 4, "join": 1.0, **({"groups": 2} if method == "fedalp" else {})}
    ours = run(method, blobs, **settings)
    draw = randomness.key
    monkeypatch.setattr(
        randomness, "key", lambda seed, purpose, round=0, client=0: draw(
            seed, purpose, round, order[client] if "batches" in purpose or "supervisor" in purpose or "init/" in purpose
            else client)
    )  # fmt: skip
    theirs = run(method, renumbered, **settings)
    for new, old in enumerate(order):
        close(theirs.models[new], ours.models[old])


# Privacy.


def test_no_message_holds_the_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte that is sent is read: none of the supervisors' numbers is among them."""
    federation = pictures()
    messages: list[bytes] = []
    local = FedSimSup.local
    supervisors: list[Tensor] = []

    def watched(self: FedSimSup, client: Any, message: dict[str, Any]) -> dict[str, Any]:
        reply = local(self, client, message)
        messages.extend(v.numpy().tobytes() for m in (message, reply) for v in m.values() if isinstance(v, Tensor))
        if "supervisor" in client.private:
            supervisors.append(client.private["supervisor"].clone())
        return reply

    monkeypatch.setattr(FedSimSup, "local", watched)
    run("fedsimsup", federation, model="lenet5", join=0.5, rounds=3, dtype="float32", epochs=1)
    assert supervisors
    assert messages
    everything = b"".join(messages)
    for s in supervisors:
        # Four numbers in a row are enough to know a supervisor by.
        for four in s[: len(s) // 4 * 4].view(-1, 4):
            assert four.numpy().tobytes() not in everything


def test_each_client_may_have_its_own_kind_of_supervisor(pictures: Federation) -> None:
    kinds = "lenet5-sixth,small-cnn,small-transformer"
    result = run("fedsimsup", pictures, model="lenet5", dtype="float32", supervisor=kinds, join=1.0, epochs=1)
    assert len(result.models) == 4


@pytest.mark.parametrize("model", ["lenet5", "lenet5-bn"])
def test_the_usual_supervisor_has_batch_norm_where_the_model_has(pictures: Federation, model: str) -> None:
    settings = {"model": model, "dtype": "float32", "join": 1.0, "epochs": 1}
    usual, named = (
        run("fedsimsup", pictures, **settings),
        run("fedsimsup", pictures, supervisor=f"{model}-sixth", **settings),
    )
    assert usual.history == named.history


@pytest.mark.parametrize("model", ["lenet5", "lenet5-bn"])
def test_an_exported_model_takes_its_supervisor_along(tmp_path: Path, pictures: Federation, model: str) -> None:
    """What the client was judged by is what it keeps."""
    result = run("fedsimsup", pictures, model=model, dtype="float32", join=1.0, epochs=1, out=tmp_path / "run")
    for i, (_, _, test) in enumerate(pictures.owned):
        personal = Personal.from_run(RunFolder.open(tmp_path / "run"), i)
        personal.save(tmp_path / f"{i}.safetensors")
        for model in (personal, Personal.from_file(tmp_path / f"{i}.safetensors")):
            said = [next(iter(model.predict(pictures.data.x[row]))) for row in test]
            right = sum(int(name) == y for name, y in zip(said, pictures.data.y[test], strict=True))
            assert right == result.score.correct[i]


def test_noise_on_label_proportions_grows_as_epsilon_shrinks(blobs: Federation) -> None:
    exact, noisy, wild = (run("fedsimsup", blobs, epsilon=e, join=0.5) for e in (0.0, 10.0, 0.01))
    assert exact.history != noisy.history
    draws = []
    for epsilon in (10.0, 0.1):
        method = FedSimSup(epsilon=epsilon)

        class Anybody:
            label_counts = torch.tensor([100.0, 100.0, 100.0], dtype=torch.float64)

            def __init__(self, k: int) -> None:
                self.k = k

            def generator(self, purpose: str) -> torch.Generator:
                return torch.Generator().manual_seed(self.k)

        labels = torch.stack([method.labels(Anybody(k)) for k in range(400)])  # type: ignore[arg-type]
        draws.append(float(labels.std(0).mean()))
    # Laplace noise of scale 1 / epsilon on counts has deviation sqrt(2) / epsilon.
    assert draws[0] == pytest.approx(math.sqrt(2) / 10 / 300, rel=0.3)
    assert draws[1] > 20 * draws[0]
    assert wild.history != exact.history


# Options.


@pytest.mark.parametrize("measure", ["wdb", "mdb", "ldb"])
def test_pfedsim_with_other_similarities(measure: str, pictures: Federation) -> None:
    result = run("pfedsim", pictures, similarity=measure, model="lenet5-bn", dtype="float32", rounds=4, rho=0.25)
    matrix = result.mixing(4)["extractor"]
    assert not torch.equal(matrix, torch.eye(4))


@pytest.mark.parametrize("measure", ["classifier", "updates"])
def test_fedsimsup_with_a_similarity_that_changes(measure: str, blobs: Federation) -> None:
    result = run("fedsimsup", blobs, similarity=measure, join=0.5, rounds=6)
    assert len({str(result.mixing(t)["all"].tolist()) for t in range(1, 7)}) >= 5
    assert "labels" not in str(result.history[0])


def test_stages_are_any_grouping_of_layers(blobs: Federation) -> None:
    layout = Layout(models.build("mlp", (6,), 3))
    assert list(layout.stages("2")) == ["fc1+fc2", "classifier"]
    assert list(layout.stages("3")) == ["fc1", "fc2", "classifier"]
    assert [len(block) for block in layout.stages("fc1+classifier|fc2").values()] == [6 * 64 + 64 + 195, 64 * 65]
    for text, complaint in [
        ("fc1|fc2", "leave out classifier"),
        ("9", "cannot have 9"),
        ("fc1+fc1|fc2|classifier", ""),
    ]:
        if complaint:
            with pytest.raises(FedkinError, match=complaint):
                layout.stages(text)
    assert set(run("spfl", blobs, stages="fc1|fc2+classifier").mixing(1)) == {"fc1", "fc2+classifier"}


def test_spfl_by_weighted_layers(blobs: Federation) -> None:
    """The authors' reading: a weighted sum of per-layer cosines, biases left out."""
    layout = Layout(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1)))
    g = torch.tensor([[1.0, 5, 1, 5, 0, 0], [1.0, -5, -1, 5, 0, 0]], dtype=torch.float64)
    similarity = SPFL(layer_weights=(0.7, 0.3)).similarity(g, layout.stages("2")["0+1"], layout)
    assert similarity[0, 1].item() == pytest.approx(0.7 - 0.3)
    with pytest.raises(FedkinError, match="layer_weights has 3 numbers, but the stage has 2 layers"):
        run("spfl", blobs, layer_weights="[0.5,0.3,0.2]")
    run("spfl", blobs, layer_weights="[0.5,0.5]")


@pytest.mark.parametrize("norm", ["local", "mixed"])
def test_pfedsim_keeps_norm_statistics_local_or_mixes_them(norm: str, pictures: Federation) -> None:
    settings = {"model": "lenet5-bn", "dtype": "float32", "rho": 1.0, "join": 1.0}
    result = run("pfedsim", pictures, norm_statistics=norm, **settings)
    layout = Layout(models.build("lenet5-bn", pictures.shape, 2))
    rows = [result.models[i] for i in range(4)]
    for row in rows[1:]:
        assert torch.equal(layout.parameters.of(row), layout.parameters.of(rows[0]))
        same = torch.equal(layout.norm_statistics.of(row), layout.norm_statistics.of(rows[0]))
        assert same == (norm == "mixed")
