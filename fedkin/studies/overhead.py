"""What methods cost: seconds of local training per sample, and bytes a round.

    xi_p = mean over rounds t and participants i of  LocalTrainingTime_i / |D_i|

Seconds are those of the processor, on one thread, so that other programs hardly count. The methods take turns, round
by round with the same participants, so that a change in the machine's speed meets all of them. The first round is
not counted: it warms up, and some methods have nothing extra to do or to send in it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from statistics import median
from typing import Annotated, Any, ClassVar

import numpy as np
from matplotlib.figure import Figure
from pydantic import Field

from fedkin.api import prepare
from fedkin.config import Config, Count
from fedkin.data.federation import Federation
from fedkin.engine.inline import Inline
from fedkin.reproduce import cells
from fedkin.result import Round
from fedkin.setup import Setup
from fedkin.simulate import Show, Simulation, one_thread, watched
from fedkin.studies.base import Found, Study
from fedkin.studies.enlarging import fitted

BASE = "FedAvg"
METHODS, SETTINGS = "pfedsim-table3", "pfedsim-table7"
"""The paper measures four of its methods; here are all twelve, as they are set in the table of accuracies."""


@dataclass(frozen=True)
class Overhead(Study):
    """Every method runs in this process, one client after another; `workers` is of no use here."""

    name: ClassVar[str] = "overhead"
    paper: ClassVar[str] = "pFedSim, Table 7"
    about: ClassVar[str] = "Time of local training per sample and bytes a round, compared with FedAvg"

    data: str = "digits"
    partition: str = "dirichlet:0.1"
    clients: Count = 20
    join: Annotated[float, Field(gt=0, le=1)] = 0.25
    rounds: Annotated[int, Field(ge=2)] = 8
    epochs: Count = 5
    model: str = "lenet5-bn"
    """With batch norm, which f-FedAP needs."""

    def run(self, show: Show | None = None) -> Found:
        """A round of each method in turn."""
        split = {"data": self.data, "partition": self.partition, "clients": self.clients, "seed": self.seed}
        federation = fitted(Federation.of(Config.of(split)), self.model)
        ledgers = {name: Ledger(setup) for name, setup in self.setups(federation).items()}
        begin = time.perf_counter()
        with one_thread(), watched(show, f"{len(ledgers)} methods", self.rounds) as watch:
            for _ in range(self.rounds):
                happened = [ledger.round() for ledger in ledgers.values()]
                if watch:
                    watch(happened[0], time.perf_counter() - begin)
        rows = [{"method": name, **ledger.row(ledgers[BASE])} for name, ledger in ledgers.items()]
        title = f"{federation.data.name}, {self.partition}, {len(federation)} clients, {self.model}"
        return Found(rows, draw(rows, title), says(rows))

    def setups(self, federation: Federation) -> dict[str, Setup]:
        """All methods of the paper by their names in its tables, FedAvg first."""
        common: dict[str, Any] = dict(cells.table(SETTINGS).cells[0].settings) | {
            "data": federation, "model": self.model, "join": self.join, "rounds": self.rounds, "epochs": self.epochs,
            "evaluate_every": self.rounds, "seed": self.seed, "vectorize": "off", "device": "cpu", "workers": None,
            "partition": self.partition, "clients": len(federation),
        }  # fmt: skip
        table = cells.table(METHODS)
        chosen = sorted(table.chosen(columns=table.columns[:1]), key=lambda cell: cell.row != BASE)
        return {cell.row: prepare(cell.method, set=dict(cell.set), **common) for cell in chosen}


@dataclass
class Ledger:
    """A run under way, and what it has cost after its first round."""

    setup: Setup
    per_sample: list[float] = field(default_factory=list)
    """Round by round, the mean over participants of seconds per sample."""
    up: int = 0
    down: int = 0
    replies: int = 0

    def __post_init__(self) -> None:
        self.simulation = Simulation(self.setup, Inline(self.setup.site()))

    def round(self) -> Round:
        """Play a round."""
        happened, seconds = self.simulation.round()
        if happened.round > 1:
            self.per_sample.append(seconds["local"])
            self.up += happened.bytes_up
            self.down += happened.bytes_down
            self.replies += len(happened.participants)
        return happened

    def row(self, base: Ledger) -> dict[str, Any]:
        """In numbers, beside those of the base."""
        # Of the rounds' ratios the middle one, which a few disturbed rounds do not move; and how far they spread.
        ratios = [ours / theirs for ours, theirs in zip(self.per_sample, base.per_sample, strict=True)]
        return {
            "1e-4 s per sample": 1e4 * float(np.mean(self.per_sample)),
            "time, x FedAvg": median(ratios),
            "least": min(ratios),
            "most": max(ratios),
            "kB down a round": self.down / self.replies / 1000,
            "kB up a round": self.up / self.replies / 1000,
        }


def says(rows: list[dict[str, Any]]) -> list[str]:
    """What stands out."""
    by_name = {row["method"]: row for row in rows}
    ours, others = by_name["pFedSim"], [row for row in rows if row["method"] != BASE]
    slowest = max(others, key=lambda row: row["time, x FedAvg"])
    heaviest = max(others, key=lambda row: row["kB down a round"] + row["kB up a round"])
    base = by_name[BASE]
    times = {
        name: (row["kB down a round"] + row["kB up a round"]) / (base["kB down a round"] + base["kB up a round"])
        for name, row in by_name.items()
    }
    return [
        f"pFedSim takes {ours['time, x FedAvg']:.2f} times FedAvg's time per sample ({ours['least']:.2f} to "
        f"{ours['most']:.2f} from round to round) and sends {times['pFedSim']:.2f} times its bytes.",
        f"{slowest['method']} takes the most time, {slowest['time, x FedAvg']:.2f} times FedAvg's "
        f"({slowest['least']:.2f} to {slowest['most']:.2f}).",
        f"{heaviest['method']} sends the most, {times[heaviest['method']]:.2f} times FedAvg's bytes: "
        f"{heaviest['kB down a round']:.0f} kB down and {heaviest['kB up a round']:.0f} kB up for each client a round.",
    ]


def draw(rows: list[dict[str, Any]], title: str) -> Figure:
    """Times on the left, bytes on the right, a bar a method."""
    names, at = [row["method"] for row in rows], np.arange(len(rows))
    figure = Figure(figsize=(11, 0.32 * len(rows) + 1.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    middle, least, most = (np.array([row[key] for row in rows]) for key in ("time, x FedAvg", "least", "most"))
    left.barh(at, middle, color="tab:blue")
    left.hlines(at, least, most, color="black", linewidth=1)
    for y, value, end in zip(at, middle, most, strict=True):
        # On white, so that the dotted line does not cross the number.
        left.annotate(
            f"{value:.2f}", (end, y), (4, 0), textcoords="offset points", va="center", fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )  # fmt: skip
    left.axvline(1, color="black", linewidth=0.8, linestyle=":")
    left.set(
        xlabel="time per sample, as a multiple of FedAvg's", title="Local training (lines: least to most of a round)"
    )
    left.set_yticks(at, names)
    left.invert_yaxis()
    for shift, way, colour in ((-0.2, "down", "tab:orange"), (0.2, "up", "tab:green")):
        bars = right.barh(
            at + shift, [row[f"kB {way} a round"] for row in rows], 0.4, color=colour,
            label={"down": "from the server", "up": "to the server"}[way],
        )  # fmt: skip
        right.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=7)
    right.set(xlabel="kB for each participant a round", title="Communication")
    right.legend(frameon=False, loc="lower right")
    for axes in (left, right):
        axes.margins(x=0.12)
        axes.grid(axis="x", alpha=0.3)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=10)
    return figure
