"""Figures for papers and notebooks, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedkin.result import Result


def compare(results: Sequence[Result]) -> Figure:
    """Accuracy over rounds (left) and per client, sorted (right); several seeds of a method as a band."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    rounds, clients = figure.subplots(1, 2, sharey=True)
    by_method: dict[str, list[Result]] = {}
    for result in results:
        by_method.setdefault(result.method, []).append(result)
    for method, runs in by_method.items():
        at = [r.round for r in runs[0].evaluated]
        curves = 100 * np.array([[r.scores[0].headline for r in run.evaluated] for run in runs])
        middle = curves.mean(0)
        (line,) = rounds.plot(at, middle, label=method)
        if len(runs) > 1:
            spread = curves.std(0, ddof=1)
            rounds.fill_between(at, middle - spread, middle + spread, color=line.get_color(), alpha=0.2, linewidth=0)
        ordered = 100 * np.mean([sorted(run.score.clients) for run in runs], axis=0)
        clients.plot(np.arange(1, len(ordered) + 1), ordered, ".-", color=line.get_color(), label=method)
    rounds.set(xlabel="round", ylabel="accuracy (%)", title="Mean over clients, own test sets")
    clients.set(xlabel="clients, from worst to best", title="Each client after the last round")
    for axes in (rounds, clients):
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
    rounds.legend(frameon=False)
    return figure
