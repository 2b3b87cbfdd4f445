"""How alike clients' updates are, layer by layer, when clients have the same classes and when they do not.

Personalized Heterogeneous FL with Gradient Similarity, Appendix C, Figures 4 and 5: for FedAvg, the mean cosine
of each client's update with those of the others, on every layer, for IID and non-IID clients with k classes each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from fedkin.api import prepare
from fedkin.config import Count, Positive
from fedkin.engine import shared_workers
from fedkin.errors import FedkinError
from fedkin.layout import Block, Layout
from fedkin.method import Mixing, Replies, State
from fedkin.methods.fedavg import FedAvg
from fedkin.result import Round
from fedkin.setup import Setup
from fedkin.similarity import cosine
from fedkin.simulate import Show, Simulation, Watch, one_thread, play, running, watched
from fedkin.studies.base import Found, Study

FORMS = {"IID": ",form=iid", "non-IID": ""}
COLOURS = {"IID": "#3b7dd8", "non-IID": "#d9822b"}
LINES = {"IID": "-", "non-IID": "--"}
NAMED = 8
"""Most layers that all have a name in the legend."""


@dataclass(frozen=True)
class GradientSimilarity(Study):
    """`classes` lists numbers of classes a client: a row of panels for each."""

    name: ClassVar[str] = "gradient-similarity"
    paper: ClassVar[str] = "SPFL, Figures 4 and 5"
    about: ClassVar[str] = "cosines between clients' updates, layer by layer, under IID and non-IID data"

    data: str = "digits"
    classes: tuple[Count, ...] = (4, 6)
    clients: int = 10
    rounds: Count = 20
    epochs: Count = 1
    batch: Count = 32
    lr: Positive = 0.05
    model: str | None = None
    """Otherwise one that fits the data."""
    stages: str | None = None
    """Layers taken together, as in SPFL's `stages`; otherwise each by itself."""

    def run(self, show: Show | None = None) -> Found:
        """One run of FedAvg for every number of classes, IID and non-IID."""
        if self.clients < 2 or not self.classes:
            raise FedkinError(
                f"{self.name} compares at least two clients, for at least one number of classes, but clients is "
                f"{self.clients} and classes {list(self.classes)}"
            )
        setups = {(k, form): self._setup(k, form) for k, form in product(dict.fromkeys(self.classes), FORMS)}
        layout = Layout(next(iter(setups.values())).module)
        stages = layout.stages(self.stages or str(len(layout.layers)))
        # Layers of norms without parameters have nothing that an update could change.
        blocks = {name: block & layout.parameters for name, block in stages.items()}
        blocks = {name: block for name, block in blocks.items() if block.ranges}
        alike: dict[tuple[int, str], np.ndarray[Any, Any]] = {}
        with shared_workers(self.workers):
            for (k, form), setup in setups.items():
                label = f"{form}, {k} classes a client"
                with watched(show, label, self.rounds) as watch:
                    updates = recorded(setup, watch)
                alike[k, form] = torch.stack([kinship(rows, list(blocks.values())) for rows in updates]).numpy()
        names = list(blocks)
        return Found(_table(alike, names), _figure(alike, names, self.data), _says(alike, names))

    def _setup(self, k: int, form: str) -> Setup:
        own = ("data", "clients", "rounds", "epochs", "batch", "lr", "model", "seed", "workers")
        settings = {name: getattr(self, name) for name in own}
        partition = f"classes:{k}{FORMS[form]}"
        return prepare(Remembering(), partition=partition, evaluate_every=self.rounds, **settings)


@dataclass(frozen=True)
class Remembering(FedAvg):
    """FedAvg whose server keeps the last round's updates [N, D]."""

    def aggregate(self, state: State, replies: Replies) -> Mixing:
        """FedAvg's step, after a note of what every client's training changed."""
        state["updates"] = replies["w"] - state["w"]
        return super().aggregate(state, replies)


def recorded(setup: Setup, watch: Watch | None = None) -> list[Tensor]:
    """The updates [N, D] of every round of a run of `Remembering`."""
    updates: list[Tensor] = []

    def note(happened: Round, seconds: float) -> None:
        updates.append(simulation.state["updates"])
        if watch:
            watch(happened, seconds)

    with one_thread(), running(setup) as engine:
        simulation = Simulation(setup, engine)
        play(simulation, watch=note)
    return updates


def kinship(updates: Tensor, blocks: Sequence[Block]) -> Tensor:
    """Mean cosines [L, N] of each client's update [D] with those of all others, on each of L blocks of columns."""
    cosines = torch.stack([cosine(block.of(updates.double())) for block in blocks])
    return (cosines.sum(-1) - cosines.diagonal(dim1=1, dim2=2)) / (len(updates) - 1)


def _table(alike: dict[tuple[int, str], np.ndarray[Any, Any]], names: list[str]) -> list[dict[str, Any]]:
    """A row for each run and layer; what has no word of its own is a mean over clients and rounds."""
    return [
        {
            "classes a client": k,
            "split": form,
            "layer": name,
            "similarity": float(values.mean()),
            "least client": float(values.mean(0).min()),
            "greatest client": float(values.mean(0).max()),
            "first round": float(values[0].mean()),
            "last round": float(values[-1].mean()),
        }
        for (k, form), all_layers in alike.items()
        for name, values in zip(names, all_layers.transpose(1, 0, 2), strict=True)
    ]


def _says(alike: dict[tuple[int, str], np.ndarray[Any, Any]], names: list[str]) -> list[str]:
    says = []
    for (k, form), values in alike.items():
        clients = values.mean((0, 1))
        says.append(
            f"{form}, {k} classes a client: the mean cosine of a client's update with the others' is "
            f"{values.mean():.3f} over all layers and rounds ({clients.min():.3f} to {clients.max():.3f} from "
            f"client to client); {values[:, 0].mean():.3f} on the first layer ({names[0]}), "
            f"{values[:, -1].mean():.3f} on the last ({names[-1]})."
        )
    return says


def _figure(alike: dict[tuple[int, str], np.ndarray[Any, Any]], names: list[str], data: str) -> Figure:
    rows = list(dict.fromkeys(k for k, _ in alike))
    figure = Figure(figsize=(10.5, 0.6 + 3.2 * len(rows)), layout="constrained")
    panels = figure.subplots(len(rows), 2, sharey=True, squeeze=False, width_ratios=(1, 1.15))
    for k, (by_layer, by_round) in zip(rows, panels, strict=True):
        runs = {form: alike[k, form] for form in FORMS}
        _draw_layers(by_layer, runs, names)
        _draw_rounds(by_round, runs, names)
        by_layer.set(ylabel="cosine with the others' updates", title=f"{data}, {k} classes a client: mean over rounds")
        by_round.set(title="Mean over clients, round by round")
    panels[-1, 1].set(xlabel="round")
    panels[0, 0].legend(frameon=False, title="dots: clients")
    for form, line in LINES.items():
        panels[0, 1].plot([], [], line, color="grey", label=form)
    panels[0, 1].legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    for axes in panels.flat:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_layers(axes: Axes, runs: dict[str, np.ndarray[Any, Any]], names: list[str]) -> None:
    """Layers on one axis, similarity on the other; IID beside non-IID."""
    at = np.arange(len(names))
    for (form, values), aside in zip(runs.items(), (-0.12, 0.12), strict=True):
        clients = values.mean(0)
        axes.plot(at + aside, clients.mean(1), LINES[form], color=COLOURS[form], label=form)
        axes.plot(at + aside, clients, ".", color=COLOURS[form], alpha=0.5, markersize=5)
    many = len(names) > NAMED
    axes.set_xticks(at, names, rotation=90 if many else 0, fontsize=6 if many else None)


def _draw_rounds(axes: Axes, runs: dict[str, np.ndarray[Any, Any]], names: list[str]) -> None:
    """A line for each layer, the deeper the lighter."""
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(names)))
    for form, values in runs.items():
        for layer, name in enumerate(names):
            named = form == "IID" and (len(names) <= NAMED or layer in (0, len(names) - 1))
            rounds = np.arange(1, len(values) + 1)
            label = name if named else None
            axes.plot(rounds, values[:, layer].mean(1), LINES[form], color=colours[layer], label=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
