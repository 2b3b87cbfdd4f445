"""How fast methods learn, and what similarity adds to FedSimSup.

Personalized Federated Learning with Similarity Information Supervisor, Figure 2 (accuracy over rounds of several
methods) and Figure 3 (FedSimSup with and without similarity information); in numbers, the rounds it takes each to
reach given accuracies. Without similarity, who sat out moves towards all participants alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedkin.api import prepare
from fedkin.config import Count, Fraction, Positive
from fedkin.engine import shared_workers
from fedkin.result import Result
from fedkin.simulate import Show, simulate, watched
from fedkin.studies.base import Found, Study

OURS, WITHOUT = "fedsimsup", "fedsimsup without similarity"
NOT_REACHED = "not reached"


@dataclass(frozen=True)
class Convergence(Study):
    """`methods` and `reach` (accuracies from 0 to 1) are lists; FedSimSup is always among the runs."""

    name: ClassVar[str] = "convergence"
    paper: ClassVar[str] = "FedSimSup, Figures 2 and 3"
    about: ClassVar[str] = "accuracy over rounds, and the rounds it takes to reach given accuracies"

    methods: tuple[str, ...] = ("fedavg", "fedprox", "fedrep", OURS)
    reach: tuple[Fraction, ...] = (0.7, 0.8, 0.9)
    data: str = "digits"
    partition: str = "dirichlet:0.5,form=client"
    clients: int = 20
    join: Fraction = 0.2
    rounds: Count = 30
    epochs: Count = 5
    batch: Count = 32
    lr: Positive = 0.1
    model: str | None = None
    """Otherwise one that fits the data."""

    def run(self, show: Show | None = None) -> Found:
        """One run for every method, and one of FedSimSup without similarity, all with the same settings."""
        own = ("data", "partition", "clients", "join", "rounds", "epochs", "batch", "lr", "model", "seed", "workers")
        settings = {name: getattr(self, name) for name in own}
        setups = {name: prepare(name, **settings) for name in dict.fromkeys((*self.methods, OURS))}
        setups[WITHOUT] = prepare(OURS, similarity="none", **settings)
        runs: dict[str, Result] = {}
        with shared_workers(self.workers):
            for label, setup in setups.items():
                with watched(show, label, self.rounds) as watch:
                    runs[label] = simulate(setup, watch=watch)
        reach = sorted(set(self.reach))
        table = [_row(label, run, reach) for label, run in runs.items()]
        return Found(table, _figure(runs, reach, self.methods, self.data), _says(runs, reach))


def first_at(rounds: Sequence[tuple[int, float]], accuracy: float) -> int | None:
    """The first round whose accuracy is at least this, of pairs (round, accuracy); None if there is none."""
    return next((round for round, reached in rounds if reached >= accuracy), None)


def _curve(run: Result) -> list[tuple[int, float]]:
    return [(r.round, r.scores[0].headline) for r in run.evaluated]


def _row(label: str, run: Result, reach: Sequence[float]) -> dict[str, Any]:
    needed = {f"rounds to {100 * a:g} %": first_at(_curve(run), a) or NOT_REACHED for a in reach}
    best_round, best = run.best
    return {
        "method": label,
        **needed,
        "last (%)": 100 * run.accuracy,
        "best (%)": 100 * best,
        "best round": best_round,
        "model": run.score.model,
    }


def _says(runs: dict[str, Result], reach: Sequence[float]) -> list[str]:
    rounds = next(iter(runs.values())).config.rounds
    says = []
    for a in reach:
        at = {label: first_at(_curve(run), a) for label, run in runs.items()}
        there = sorted((round, label) for label, round in at.items() if round)
        missing = [label for label, round in at.items() if not round]
        reached = ", ".join(f"{label} in round {round}" for round, label in there) or "by none"
        never = f"; not within {rounds} rounds: {', '.join(missing)}" if there and missing else ""
        says.append(f"{100 * a:g} % is first reached {'by ' if there else ''}{reached}{never}.")
    says.append(
        f"FedSimSup ends at {100 * runs[OURS].accuracy:.1f} % with the similarity of labels and at "
        f"{100 * runs[WITHOUT].accuracy:.1f} % without; averaged over all rounds at {_mean(runs[OURS]):.1f} % and "
        f"{_mean(runs[WITHOUT]):.1f} %."
    )
    judged: dict[str, list[str]] = {}
    for label, run in runs.items():
        judged.setdefault(run.score.describe(), []).append(label)
    return [*says, *(f"Judged of {', '.join(labels)}: {what}." for what, labels in judged.items())]


def _mean(run: Result) -> float:
    """Percent, averaged over rounds: who learns faster has more of it."""
    curve = _curve(run)
    return 100 * sum(accuracy for _, accuracy in curve) / len(curve)


def _figure(runs: dict[str, Result], reach: Sequence[float], methods: Sequence[str], data: str) -> Figure:
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    ours = {OURS: "with similarity of labels", WITHOUT: "without similarity"}
    shown = [{name: name for name in methods if name in runs}, ours]
    colours = {label: f"C{k}" for k, label in enumerate(runs)}
    for axes, labels, title in zip(panels, shown, (f"Methods on {data}", "FedSimSup"), strict=True):
        for name, label in labels.items():
            at, accuracy = zip(*_curve(runs[name]), strict=True)
            axes.plot(at, [100 * a for a in accuracy], color=colours[name], label=label)
        for a in reach:
            axes.axhline(100 * a, color="grey", linewidth=0.8, linestyle=":")
        axes.set(xlabel="round", title=title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="x", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3)
    panels[0].set(ylabel="accuracy (%), mean over clients")
    return figure
