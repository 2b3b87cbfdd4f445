"""Where FedSimSup's personalised model looks, and where its supervisor does.

Personalized Federated Learning with Similarity Information Supervisor, Figure 4: an image, the class activation map
of the personalised model, and that of the supervisor. The maps are Grad-CAM's (Selvaraju et al., ICCV 2017):

    alpha_k = mean over i, j of  d y^c / d A^k_ij        how much channel k counts for class c     (1)
    L       = ReLU(sum_k alpha_k A^k)                    where in the image                        (2)

with A the activations of a convolutional layer, y^c the score of class c: here the image's true class.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import interpolate

from fedkin import models
from fedkin.api import describe, prepare
from fedkin.config import Config, Count, Fraction, Positive
from fedkin.data.federation import Federation
from fedkin.errors import FedkinError
from fedkin.export import BESIDE, Personal
from fedkin.models import Shape
from fedkin.randomness import numpy_generator
from fedkin.result import Result
from fedkin.setup import Setup
from fedkin.simulate import Show, simulate, watched
from fedkin.studies.base import Found, Study

MAPS = (nn.Conv2d, nn.BatchNorm2d, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Tanh)
"""Layers whose output is a map to look at: convolutions and what norms or bends them."""
CELLS = 4
"""Least height and width of a map: below that it hardly says where."""
ROWS = {"": "personalised model", BESIDE: "supervisor"}
"""The two networks by their prefix in `Personal`."""


@dataclass(frozen=True)
class Look:
    """What both networks make of one image."""

    client: str
    image: npt.NDArray[Any]
    """[c, h, w] as in the data."""
    label: str
    says: dict[str, str]
    """Predicted class of each network by prefix, and of both together as `together`."""
    maps: dict[str, npt.NDArray[np.float64]]
    """[h, w] of each network, stretched to the image."""

    def row(self) -> dict[str, Any]:
        """As a row of the table."""
        areas = {f"area, {what}": area(self.maps[prefix]) for prefix, what in ROWS.items()}
        return {
            "client": self.client,
            "class": self.label,
            **{what: self.says[prefix] for prefix, what in ROWS.items()},
            "together": self.says["together"],
            "correlation": correlation(*self.maps.values()),
            **areas,
        }


@dataclass(frozen=True)
class SupervisorCam(Study):
    """`images` are drawn and listed; what is said is measured on `measured` test images of all clients in turn."""

    name: ClassVar[str] = "supervisor-cam"
    paper: ClassVar[str] = "FedSimSup, Figure 4"
    about: ClassVar[str] = "Grad-CAM of the personalised model and of its supervisor on the same images"

    data: str = "digits"
    partition: str = "dirichlet:0.5,form=client"
    clients: int = 10
    join: Fraction = 0.3
    rounds: Count = 20
    epochs: Count = 5
    batch: Count = 32
    lr: Positive = 0.1
    model: str | None = None
    supervisor: str | None = None
    """Convolutional networks; otherwise lenet5 and lenet5-sixth, or small-cnn for both on smaller images."""
    images: Count = 8
    measured: Count = 200

    def run(self, show: Show | None = None) -> Found:
        """Train FedSimSup, then look through both networks of every client."""
        setup = self._setup()
        with watched(show, f"fedsimsup on {self.data}", self.rounds) as watch:
            result = simulate(setup, watch=watch)
        looks = self._look(setup, result)
        drawn = looks[: self.images]
        return Found([look.row() for look in drawn], _figure(drawn), _says(looks))

    def _setup(self) -> Setup:
        where = {name: getattr(self, name) for name in ("data", "partition", "clients", "seed")}
        federation = Federation.of(Config.of(where))
        if len(federation.shape) != 3:
            raise FedkinError(f"{self.name} needs images, but {self.data} has samples of shape {federation.shape}")
        usual = networks_for(federation.shape)
        model, supervisor = self.model or usual[0], self.supervisor or usual[1]
        for name in (model, *map(str.strip, supervisor.split(","))):
            network = models.build(name, federation.shape, federation.classes).eval()
            map_layer(network, torch.zeros(1, *federation.shape), name)
        own = ("join", "rounds", "epochs", "batch", "lr", "seed", "workers")
        settings = {name: getattr(self, name) for name in own}
        return prepare(
            "fedsimsup", data=federation, model=model, supervisor=supervisor, evaluate_every=self.rounds, **settings
        )

    def _look(self, setup: Setup, result: Result) -> list[Look]:
        """Test images of one client after the other, in an order of its own for each."""
        # Who never took part has a supervisor that has not learnt anything yet.
        took_part = sorted({i for happened in result.history for i in happened.participants})
        federation, described, model = setup.federation, describe(setup), setup.config.model
        orders = {
            i: numpy_generator(self.seed, self.name, client=i).permutation(federation.split.test[i]) for i in took_part
        }
        longest = max(map(len, orders.values()))
        turns = [(i, order[k]) for k in range(longest) for i, order in orders.items() if k < len(order)]
        chosen = turns[: max(self.measured, self.images)]
        people = {
            i: Personal.of(described, model, i, result.models[i], result.models.beside[i])
            for i in {owner for owner, _ in chosen}
        }
        return [look(people[i], federation.data.x[row], federation.data.y[row]) for i, row in chosen]


def networks_for(shape: Shape) -> tuple[str, str]:
    """Convolutional networks for model and supervisor that can work on images of this shape."""
    fits = min(shape[1:]) >= models.describe("lenet5").smallest
    return ("lenet5", "lenet5-sixth") if fits else ("small-cnn", "small-cnn")


def grad_cam(network: nn.Module, layer: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """Maps [B, h, w] of where a network in evaluation mode finds `classes` [B] in `x` [B, c, H, W] (1), (2).

    `layer` is the part of the network whose output [B, K, h, w] is looked at.
    """
    seen: list[Tensor] = []
    hook = layer.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    try:
        with torch.enable_grad():
            scores = network(x.detach().requires_grad_())
            (gradient,) = torch.autograd.grad(scores.gather(1, classes[:, None]).sum(), seen[-1])
    finally:
        hook.remove()
    alpha = gradient.mean((2, 3), keepdim=True)
    return (alpha * seen[-1].detach()).sum(1).relu()


def map_layer(network: nn.Module, x: Tensor, name: str) -> nn.Module:
    """The last layer with a map of at least 4 x 4 cells for inputs [B, c, H, W]; `name` is for what is told."""
    found: list[nn.Module] = []

    def note(module: nn.Module, _inputs: Any, output: Tensor) -> None:
        if output.ndim == 4 and min(output.shape[2:]) >= CELLS:
            found.append(module)

    hooks = [part.register_forward_hook(note) for part in network.modules() if isinstance(part, MAPS)]
    with torch.no_grad():
        network(x)
    for hook in hooks:
        hook.remove()
    if not found:
        raise FedkinError(
            f"a class activation map needs a convolutional network whose maps have at least {CELLS} x {CELLS} cells, "
            f"but {name} has none on images of {x.shape[2]} x {x.shape[3]} pixels"
        )
    return found[-1]


def look(personal: Personal, image: npt.NDArray[Any], label: int) -> Look:
    """What both networks of a client make of an image [c, h, w] with class number `label`."""
    x, names = personal.inputs(image), personal.about["classes"]
    scores, maps = {}, {}
    for prefix, network in personal.networks.items():
        with torch.no_grad():
            scores[prefix] = network(x)[0, : len(names)]
        cam = grad_cam(network, map_layer(network, x, ROWS[prefix]), x, torch.tensor([int(label)]))
        stretched = interpolate(cam[None], image.shape[1:], mode="bilinear", align_corners=False)
        maps[prefix] = stretched[0, 0].double().numpy()
    scores["together"] = torch.stack(list(scores.values())).sum(0)
    says = {which: names[int(s.argmax())] for which, s in scores.items()}
    return Look(personal.about["client"], image, names[int(label)], says, maps)


def correlation(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> float | None:
    """Pearson's, of two maps [h, w]; None where one of them is flat."""
    if min(one.std(), other.std()) == 0:
        return None
    return float(np.corrcoef(one.ravel(), other.ravel())[0, 1])


def area(cam: npt.NDArray[np.float64]) -> float | None:
    """The smallest share of the image that holds half of a map [h, w]: small for details; None for an empty map."""
    if cam.sum() <= 0:
        return None
    held = np.sort(cam.ravel())[::-1].cumsum() / cam.sum()
    return float((np.searchsorted(held, 0.5) + 1) / cam.size)


def _says(looks: list[Look]) -> list[str]:
    rows = [look.row() for look in looks]
    alike = [row["correlation"] for row in rows if row["correlation"] is not None]
    right = {what: fmean(row[what] == row["class"] for row in rows) for what in (*ROWS.values(), "together")}
    empty = {what: sum(row[f"area, {what}"] is None for row in rows) for what in ROWS.values()}
    areas = {
        what: fmean([row[f"area, {what}"] for row in rows if row[f"area, {what}"] is not None] or [math.nan])
        for what in ROWS.values()
    }
    model, supervisor = ROWS.values()
    says = [
        f"Of {len(rows)} test images of clients that took part in training, the personalised models alone get "
        f"{100 * right[model]:.1f} % right, the supervisors alone {100 * right[supervisor]:.1f} %, both "
        f"together {100 * right['together']:.1f} %.",
        f"The map is empty (no weighted sum of activations is above 0) for {empty[model]} images with the "
        f"personalised model and for {empty[supervisor]} with the supervisor.",
    ]
    if alike:
        says.append(f"The two maps of an image have a mean correlation of {fmean(alike):.2f} ({len(alike)} images).")
    if not any(map(math.isnan, areas.values())):
        says.append(
            f"Half of a map that is not empty lies on {100 * areas[model]:.1f} % of the image with the personalised "
            f"model and on {100 * areas[supervisor]:.1f} % with the supervisor, on average."
        )
    return says


def _figure(looks: list[Look]) -> Figure:
    """Rows: the image, the personalised model's map, the supervisor's map. A column an image."""
    figure = Figure(figsize=(1.2 + 1.35 * len(looks), 5.2), layout="constrained")
    panels = figure.subplots(3, len(looks), squeeze=False)
    for column, look in zip(panels.T, looks, strict=True):
        _draw(column[0], look.image)
        column[0].set_title(f"{look.client}\nclass {look.label}", fontsize=9)
        for axes, prefix in zip(column[1:], ROWS, strict=True):
            _draw(axes, look.image, look.maps[prefix])
            empty = "" if look.maps[prefix].any() else " (empty map)"
            axes.set_xlabel(f"says {look.says[prefix]}{empty}", fontsize=8)
    for axes, what in zip(panels[:, 0], ("image", *ROWS.values()), strict=True):
        axes.set_ylabel(what, fontsize=9)
    figure.suptitle("Where the image's class is seen: from dark (nowhere) to bright (most)", fontsize=10)
    return figure


def _draw(axes: Axes, image: npt.NDArray[Any], cam: npt.NDArray[np.float64] | None = None) -> None:
    """An image [c, h, w], under a map [h, w] if there is one."""
    pixels = image.astype(np.float64)
    low, high = pixels.min(), pixels.max()
    pixels = (pixels - low) / (high - low if high > low else 1)
    shown = pixels.transpose(1, 2, 0) if len(pixels) == 3 else pixels.mean(0)
    if cam is None:
        axes.imshow(shown, cmap="gray")
    else:
        axes.imshow(shown if shown.ndim == 2 else shown.mean(-1), cmap="gray")
        axes.imshow(cam, cmap="inferno", vmin=0, vmax=cam.max() or 1, alpha=0.65, interpolation="bilinear")
    axes.set_xticks([])
    axes.set_yticks([])
