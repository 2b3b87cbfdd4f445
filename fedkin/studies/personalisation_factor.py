"""How personal FedALP's models become with beta, and what that costs the global one.

Xie et al., FedALP, Figure 4: accuracy over rounds for beta in {0, 0.3, 0.6, 0.9, 1}, solid for the mean over
clients of their own models, dash-dotted for the global model. Here also with several numbers of groups, and after
the last round against beta.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedkin.api import prepare
from fedkin.config import Count, Fraction, Positive
from fedkin.engine import shared_workers
from fedkin.errors import FedkinError
from fedkin.result import Result
from fedkin.simulate import Show, simulate, watched
from fedkin.studies.base import Found, Study

Runs = dict[tuple[int, float], Result]
"""(groups, beta) to a run."""
LINES = {"personalised": "-", "global": "-."}
BELOW: dict[str, Any] = {
    "frameon": False, "fontsize": "small", "loc": "upper center", "bbox_to_anchor": (0.5, -0.15), "ncols": 3,
}  # fmt: skip
"""Where a legend cannot hide a line."""


@dataclass(frozen=True)
class PersonalisationFactor(Study):
    """`betas` and `groups` are lists; every pair of them is a run."""

    name: ClassVar[str] = "personalisation-factor"
    paper: ClassVar[str] = "FedALP, Figure 4"
    about: ClassVar[str] = "accuracy of FedALP's personalised and global models for several beta"

    data: str = "digits"
    partition: str = "dirichlet:0.001,form=client"
    clients: int = 20
    join: Fraction = 1.0
    rounds: Count = 20
    epochs: Count = 5
    batch: Count = 32
    lr: Positive = 0.05
    model: str | None = None
    """Otherwise one that fits the data."""
    betas: tuple[Fraction, ...] = (0.0, 0.3, 0.6, 0.9, 1.0)
    groups: tuple[Count, ...] = (5, 10)
    warm_up: Fraction = 0.5

    def run(self, show: Show | None = None) -> Found:
        """A run of FedALP for every beta and number of groups."""
        # There are no more groups than clients.
        groups = sorted({min(m, self.clients or m) for m in self.groups})
        pairs = list(product(groups, sorted(set(self.betas))))
        if not pairs:
            raise FedkinError(f"{self.name} needs at least one of betas and one of groups, but a list is empty")
        own = ("data", "partition", "clients", "join", "rounds", "epochs", "batch", "lr", "model", "warm_up")
        settings = {name: getattr(self, name) for name in (*own, "seed", "workers")}
        setups = {(m, beta): prepare("fedalp", groups=m, beta=beta, **settings) for m, beta in pairs}
        runs: Runs = {}
        with shared_workers(self.workers):
            for (m, beta), setup in setups.items():
                label = f"fedalp, {m} groups, beta {beta:g}"
                with watched(show, label, self.rounds) as watch:
                    runs[m, beta] = simulate(setup, watch=watch)
        starts = round(self.warm_up * self.rounds)
        return Found([_row(*key, run) for key, run in runs.items()], _figure(runs, starts, self.data), _says(runs))


def _accuracies(run: Result) -> dict[str, list[float]]:
    """In percent after each round: the personalised models on their own test sets, the global one on all of them."""
    scores = [(r.scores[0], r.scores[1]) for r in run.evaluated]
    return {kind: [100 * pair[k].headline for pair in scores] for k, kind in enumerate(LINES)}


def _row(groups: int, beta: float, run: Result) -> dict[str, Any]:
    accuracies = _accuracies(run)
    return {
        "groups": groups,
        "beta": beta,
        "personalised (%)": accuracies["personalised"][-1],
        "global (%)": accuracies["global"][-1],
        "worst client (%)": 100 * min(run.score.clients),
    }


def _says(runs: Runs) -> list[str]:
    says = []
    for m in dict.fromkeys(m for m, _ in runs):
        ends = {beta: {k: v[-1] for k, v in _accuracies(run).items()} for (n, beta), run in runs.items() if n == m}
        low, high = min(ends), max(ends)
        best = max(ends, key=lambda beta: ends[beta]["personalised"])
        says.append(
            f"With {m} groups the personalised models end at {ends[low]['personalised']:.1f} % for beta {low:g} and at "
            f"{ends[high]['personalised']:.1f} % for beta {high:g} (best: {ends[best]['personalised']:.1f} % for beta "
            f"{best:g}); the global model at {ends[low]['global']:.1f} % and {ends[high]['global']:.1f} %."
        )
    return says


def _figure(runs: Runs, starts: int, data: str) -> Figure:
    groups = list(dict.fromkeys(m for m, _ in runs))
    betas = list(dict.fromkeys(beta for _, beta in runs))
    figure = Figure(figsize=(4.2 * (len(groups) + 1), 4.5), layout="constrained")
    panels = figure.subplots(1, len(groups) + 1, sharey=True, squeeze=False)[0]
    colours = dict(zip(betas, matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(betas))), strict=True))
    for m, axes in zip(groups, panels, strict=False):
        for beta in betas:
            run = runs[m, beta]
            for kind, values in _accuracies(run).items():
                label = f"β = {beta:g}" if kind == "personalised" else None
                axes.plot([r.round for r in run.evaluated], values, LINES[kind], color=colours[beta], label=label)
        axes.axvline(starts + 0.5, color="grey", linewidth=0.8, linestyle=":")
        axes.set(xlabel="round", title=f"{data}, {m} groups (dotted: warm-up ends)")
        axes.title.set_fontsize("medium")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for kind, line in LINES.items():
        panels[0].plot([], [], line, color="grey", label=kind)
    panels[0].legend(**BELOW)
    _draw_ends(panels[-1], runs, groups, betas)
    panels[0].set(ylabel="accuracy (%)")
    for axes in panels:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_ends(axes: Axes, runs: Runs, groups: list[int], betas: list[float]) -> None:
    """Accuracy after the last round against beta."""
    for k, m in enumerate(groups):
        for kind, line in LINES.items():
            ends = [_accuracies(runs[m, beta])[kind][-1] for beta in betas]
            axes.plot(betas, ends, f"o{line}", color=f"C{k}", markersize=4, label=f"{kind}, {m} groups")
    axes.set(xlabel="β", title="After the last round")
    axes.title.set_fontsize("medium")
    axes.legend(**BELOW | {"ncols": 2})
