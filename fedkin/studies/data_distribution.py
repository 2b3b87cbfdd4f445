"""Who has how many samples of which class, for several concentrations of the Dirichlet distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedkin.config import Config, Count, Positive
from fedkin.data.chart import POINTS_PER_INCH, class_table
from fedkin.data.dataset import Indices
from fedkin.data.federation import Federation
from fedkin.errors import FedkinError
from fedkin.simulate import Show
from fedkin.studies.base import Found, Study

NAMED = 30
"""Classes that are called by their names; more are numbered."""


@dataclass(frozen=True)
class DataDistribution(Study):
    """`alphas` are the concentrations, a panel each."""

    name: ClassVar[str] = "data-distribution"
    paper: ClassVar[str] = "pFedSim, Figure 3"
    about: ClassVar[str] = "How the samples of each class are spread over clients by Dirichlet distributions"

    data: str = "digits"
    clients: Count = 20
    alphas: tuple[Positive, ...] = (0.1, 0.5)

    def run(self, show: Show | None = None) -> Found:
        """Share the data out, once for every alpha."""
        if not self.alphas:
            raise FedkinError("data-distribution needs one alpha or more, but none was given")
        tables: dict[str, Indices] = {}
        for alpha in self.alphas:
            rule = f"dirichlet:{alpha:g}"
            split = {"data": self.data, "partition": rule, "clients": self.clients, "seed": self.seed}
            federation = Federation.of(Config.of(split))
            tables[rule] = class_table(federation.data.y, federation.split, federation.classes)
        rows = [spread(rule, table) for rule, table in tables.items()]
        return Found(
            table=rows,
            figure=bubbles(tables, federation.data.classes, self.data),
            says=[
                f"Under {row['partition']} a client has samples of {row['classes of a client']:.1f} of the "
                f"{len(federation.data.classes)} classes on average, its largest class makes up "
                f"{100 * row['share of its largest']:.0f} % of them, and clients have {row['least samples']} to "
                f"{row['most samples']} samples."
                for row in rows
            ],
        )


def spread(rule: str, table: Indices) -> dict[str, Any]:
    """A line on samples per client and class [N, K]."""
    sizes = table.sum(axis=1)
    return {
        "partition": rule,
        "classes of a client": float((table > 0).sum(axis=1).mean()),
        "share of its largest": float((table.max(axis=1) / sizes).mean()),
        "mean samples": float(sizes.mean()),
        "std of samples": float(sizes.std()),
        "least samples": int(sizes.min()),
        "most samples": int(sizes.max()),
    }


def bubbles(tables: dict[str, Indices], classes: tuple[str, ...], data: str) -> Figure:
    """A panel for each table [N, K], side by side: circles whose areas are numbers of samples, on one scale."""
    clients, k = next(iter(tables.values())).shape
    width, height = np.clip(0.26 * clients, 3, 9), np.clip(0.3 * k, 2.5, 8)
    figure = Figure(figsize=(width * len(tables) + 2, height + 1.2), layout="constrained")
    panels = figure.subplots(1, len(tables), squeeze=False, sharex=True, sharey=True)[0]
    most = max(int(table.max()) for table in tables.values())
    cell = POINTS_PER_INCH * min(width / clients, height / k)
    # A circle as wide as its cell; where cells are tiny, large circles overlap, which transparency keeps visible.
    area = max(0.95 * cell, 5.0) ** 2 / most
    for axes, (rule, table) in zip(panels, tables.items(), strict=True):
        client, label = np.nonzero(table)
        axes.scatter(client, label, area * table[client, label], color="tab:blue", alpha=0.6, linewidths=0)
        axes.set(title=f"{data}, {rule}", xlabel="client", xlim=(-0.8, clients - 0.2), ylim=(-0.8, k - 0.2))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.2)
        axes.set_axisbelow(True)
    panels[0].set_ylabel("class")
    if k <= NAMED:
        panels[0].set_yticks(range(k), [name.replace("$", r"\$") for name in classes])
    for samples in sorted({max(1, most // 10), max(1, most // 3), most}):
        panels[0].scatter([], [], area * samples, color="tab:blue", alpha=0.6, linewidths=0, label=f"{samples:,}")
    figure.legend(title="samples", loc="outside right upper", frameon=False)
    return figure
