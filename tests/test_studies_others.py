"""The studies of SPFL, FedALP and FedSimSup show what was measured; Grad-CAM agrees with finite differences."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedkin import models, studies
from fedkin.api import prepare
from fedkin.errors import FedkinError
from fedkin.layout import Layout
from fedkin.simulate import simulate
from fedkin.studies.convergence import WITHOUT, first_at
from fedkin.studies.gradient_similarity import Remembering, kinship, recorded
from fedkin.studies.supervisor_cam import area, correlation, grad_cam, map_layer, networks_for

QUICK = {"workers": 1, "rounds": 2, "epochs": 1}


def network(name: str = "small-cnn", shape: tuple[int, ...] = (1, 8, 8), classes: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    built = models.build(name, shape, classes)
    assert isinstance(built, nn.Sequential)
    return built.double().eval()


def after(net: nn.Sequential, layer: nn.Module) -> nn.Sequential:
    """What follows a layer of a sequential network."""
    parts = list(net)
    return nn.Sequential(*parts[parts.index(layer) + 1 :])


def slow_cam(rest: nn.Module, a: Tensor, label: int, step: float = 1e-6) -> Tensor:
    """Equations (1) and (2) for activations [K, h, w], each derivative by a central difference."""
    k, h, w = a.shape
    alpha = torch.zeros(k, dtype=torch.float64)
    for c in range(k):
        for i in range(h):
            for j in range(w):
                up, down = a.clone(), a.clone()
                up[c, i, j] += step
                down[c, i, j] -= step
                with torch.no_grad():
                    slope = (rest(up[None])[0, label] - rest(down[None])[0, label]) / (2 * step)
                alpha[c] += slope / (h * w)
    total = torch.zeros(h, w, dtype=torch.float64)
    for c in range(k):
        total += alpha[c] * a[c]
    return total.clamp(min=0)


@pytest.mark.parametrize(("name", "shape"), [("small-cnn", (1, 8, 8)), ("lenet5-sixth", (3, 16, 16))])
def test_grad_cam_is_that_of_finite_differences_of_the_class_score(name: str, shape: tuple[int, ...]) -> None:
    net = network(name, shape)
    x = torch.rand(3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([0, 1, 2])
    # Before the ReLU: behind it zeros tie in the pool, where a class score has no derivative.
    layer = net.get_submodule("conv2")
    maps = grad_cam(net, layer, x, labels)
    parts = list(net)
    with torch.no_grad():
        activations = nn.Sequential(*parts[: parts.index(layer) + 1])(x)
    slow = torch.stack([slow_cam(after(net, layer), a, int(c)) for a, c in zip(activations, labels, strict=True)])
    assert slow.any()
    torch.testing.assert_close(maps, slow, rtol=1e-6, atol=1e-9)


def test_grad_cam_leaves_no_hook_and_no_gradient() -> None:
    net = network()
    layer = net.get_submodule("conv2_relu")
    with torch.no_grad():
        grad_cam(net, layer, torch.rand(1, 1, 8, 8, dtype=torch.float64), torch.tensor([0]))
    assert not layer._forward_hooks
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("small-cnn", (1, 8, 8), "conv2_relu"),  # the third has 2 x 2 cells
        ("small-cnn", (3, 32, 32), "conv3_relu"),
        ("lenet5", (3, 32, 32), "conv2_relu"),
    ],
)
def test_the_map_is_that_of_the_last_layer_with_enough_cells(name: str, shape: tuple[int, ...], expected: str) -> None:
    net = network(name, shape)
    x = torch.zeros(1, *shape, dtype=torch.float64)
    assert map_layer(net, x, name) is net.get_submodule(expected)
    assert not any(part._forward_hooks for part in net.modules())


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 15, 15), (1, 16, 16), (3, 32, 32)])
def test_both_usual_networks_have_a_map(shape: tuple[int, ...]) -> None:
    for name in networks_for(shape):
        assert map_layer(network(name, shape), torch.zeros(1, *shape, dtype=torch.float64), name)


def test_half_of_a_map_lies_on_its_largest_cells() -> None:
    assert area(np.ones((4, 4))) == 0.5
    one_cell = np.zeros((4, 4))
    one_cell[1, 2] = 3
    assert area(one_cell) == 1 / 16
    assert area(np.array([[4.0, 3.0], [2.0, 1.0]])) == 0.5
    assert area(np.zeros((4, 4))) is None


def test_the_correlation_of_maps() -> None:
    one = np.array([[0.0, 1.0], [2.0, 3.0]])
    assert correlation(one, 2 * one + 1) == pytest.approx(1)
    assert correlation(one, 3 - one) == pytest.approx(-1)
    assert correlation(one, np.zeros((2, 2))) is None


def test_kinship_is_the_mean_cosine_with_the_others_on_each_layer() -> None:
    layout = Layout(network("mlp"))
    updates = torch.randn(4, layout.size, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    blocks = list(layout.layers.values())
    got = kinship(updates, blocks)
    assert got.shape == (len(blocks), 4)
    for layer, (start, stop) in enumerate(block.ranges[0] for block in blocks):
        for i in range(4):
            cosines = []
            for j in range(4):
                if j != i:
                    a, b = updates[i, start:stop].numpy(), updates[j, start:stop].numpy()
                    cosines.append(float(a @ b) / float(np.sqrt(a @ a) * np.sqrt(b @ b)))
            assert float(got[layer, i]) == pytest.approx(sum(cosines) / 3, rel=1e-10)


def test_what_is_recorded_are_the_updates_of_plain_fedavg() -> None:
    settings: dict[str, Any] = {
        "data": "digits", "clients": 3, "rounds": 2, "epochs": 1, "partition": "classes:4", "dtype": "float64",
        "workers": 1,
    }  # fmt: skip
    setup = prepare(Remembering(), **settings)
    first, second = recorded(setup)
    assert first.shape == second.shape == (3, Layout(setup.module).size)
    n = torch.tensor([len(rows) for rows in setup.federation.split.train], dtype=torch.float64)
    moved = Layout(setup.module).flatten(setup.module) + (n / n.sum()) @ (first + second)
    plain = simulate(prepare("fedavg", **settings))
    torch.testing.assert_close(moved, plain.models[0])


def test_iid_clients_have_more_alike_updates_than_others() -> None:
    study = studies.make("gradient-similarity", {**QUICK, "clients": 4, "classes": "[4]"})
    found = study.run()
    means = {(row["split"], row["layer"]): row["similarity"] for row in found.table}
    layers = ["fc1", "fc2", "classifier"]
    assert list(means) == [(form, layer) for form in ("IID", "non-IID") for layer in layers]
    assert all(means["IID", layer] > means["non-IID", layer] + 0.2 for layer in layers)
    assert f"{means['non-IID', 'fc1']:.3f} on the first layer (fc1)" in found.says[1]


def test_layers_can_be_taken_together() -> None:
    study = studies.make("gradient-similarity", {**QUICK, "clients": 3, "classes": "[4]", "stages": "2"})
    assert [row["layer"] for row in study.run().table] == ["fc1+fc2", "classifier"] * 2


def test_with_beta_zero_every_client_has_the_global_model() -> None:
    study = studies.make(
        "personalisation-factor", {**QUICK, "rounds": 4, "clients": 6, "betas": "[1, 0]", "groups": "[3]", "lr": 0.1}
    )
    found = study.run()
    rows = {row["beta"]: row for row in found.table}
    assert list(rows) == [0, 1]
    plain = simulate(
        prepare("fedalp", beta=1.0, groups=3, data="digits", partition="dirichlet:0.001,form=client", clients=6,
                join=1.0, rounds=4, epochs=1, batch=32, lr=0.1, workers=1)
    )  # fmt: skip
    assert rows[1]["personalised (%)"] == pytest.approx(100 * plain.accuracy)
    assert plain.global_score is not None
    assert rows[1]["global (%)"] == pytest.approx(100 * plain.global_score.headline)
    # One model: on clients of about the same size the mean over clients is that over samples.
    by_rounds = found.figure.axes[0].lines
    own, shared = (np.asarray(by_rounds[k].get_ydata(), dtype=float) for k in (0, 1))
    np.testing.assert_allclose(own, shared, atol=1)
    assert f"{rows[1]['personalised (%)']:.1f} % for beta 1" in found.says[0]


def test_the_first_round_that_reaches_an_accuracy() -> None:
    curve = [(2, 0.5), (4, 0.8), (6, 0.7), (8, 0.9)]
    assert first_at(curve, 0.5) == 2
    assert first_at(curve, 0.75) == 4
    assert first_at(curve, 0.85) == 8
    assert first_at(curve, 0.95) is None


def test_convergence_tells_rounds_from_the_curves_it_draws() -> None:
    settings = {**QUICK, "rounds": 4, "clients": 5, "join": 0.4, "methods": '["fedavg"]', "reach": "[0.0, 1.0, 0.2]"}
    found = studies.make("convergence", settings).run()
    assert [row["method"] for row in found.table] == ["fedavg", "fedsimsup", WITHOUT]
    methods, ours = found.figure.axes
    drawn = [methods.lines[0], *ours.lines[:2]]
    for row, line in zip(found.table, drawn, strict=True):
        accuracies = np.asarray(line.get_ydata(), dtype=float)
        assert row["rounds to 0 %"] == 1
        assert row["rounds to 100 %"] == "not reached"
        above = np.flatnonzero(accuracies >= 20)
        assert row["rounds to 20 %"] == (above[0] + 1 if len(above) else "not reached")
        assert row["last (%)"] == pytest.approx(accuracies[-1])
    assert found.says[0].startswith("0 % is first reached by fedavg in round 1, ")
    assert found.says[2] == "100 % is first reached by none."
    assert found.table[1] | {"method": ""} != found.table[2] | {"method": ""}


def test_supervisor_cam_looks_through_both_networks_of_a_client(tmp_path: Path) -> None:
    settings = {**QUICK, "clients": 3, "join": 1.0, "images": 4, "measured": 6}
    found = studies.make("supervisor-cam", settings).run()
    assert [row["client"] for row in found.table] == ["client-00", "client-01", "client-02", "client-00"]
    assert len(found.figure.axes) == 3 * 4
    assert found.says[0].startswith("Of 6 test images ")
    paths = found.write(tmp_path, "supervisor-cam")
    assert all(path.stat().st_size for path in paths)
    # No NaN, which JSON does not know.
    json.loads(paths[2].read_text("utf-8"), parse_constant=pytest.fail)


def test_supervisor_cam_leaves_out_clients_whose_supervisor_never_trained() -> None:
    settings = {**QUICK, "rounds": 1, "clients": 3, "join": 0.3, "images": 3, "measured": 3}
    found = studies.make("supervisor-cam", settings).run()
    assert len({row["client"] for row in found.table}) == 1


@pytest.mark.parametrize(
    ("name", "settings", "told"),
    [
        ("supervisor-cam", {"supervisor": "mlp-sixth"}, "mlp-sixth has none on images of 8 x 8 pixels"),
        ("supervisor-cam", {"model": "lenet5"}, "'lenet5' cannot take samples of shape"),
        ("gradient-similarity", {"clients": 1}, "at least two clients"),
        ("gradient-similarity", {"classes": "[]"}, "at least one number of classes"),
        ("personalisation-factor", {"betas": "[]"}, "a list is empty"),
        ("personalisation-factor", {"betas": "[2]"}, "less than or equal to 1"),
        ("convergence", {"methods": '["fedavgg"]'}, "fedavgg"),
        ("convergence", {"reach": "[80]"}, "less than or equal to 1"),
    ],
)
def test_mistakes_are_told_before_anything_runs(name: str, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(FedkinError, match=re.escape(told)):
        studies.make(name, settings).run()
