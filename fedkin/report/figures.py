"""Figures for papers and notebooks, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedkin.errors import FedkinError
from fedkin.result import Result

FATES = {"in time": "#4c9f70", "late": "#e0a030", "leapt": "#3b7dd8", "dropped": "#b0b0b0", "lost": "#c8453b"}
"""What became of a task, in the order of the legend."""
MANY = 60
"""Clients that get a line of their own in a timeline."""
NARROWEST = 3.0
"""Points that the axis of compared numbers shows at least, lest tenths of a point look like much."""


def curves(results: Sequence[Result], against: Literal["rounds", "time"] = "rounds") -> Figure:
    """Accuracy over rounds, or over the virtual time of runs with a schedule."""
    drawn = []
    for result in results:
        rounds = result.evaluated
        if against == "time" and rounds[0].time is None:
            raise FedkinError(f"{result.folder or result.method} has no virtual time: it ran with --schedule sync")
        at = [r.round if against == "rounds" else r.time or 0.0 for r in rounds]
        label = f"{result.method}, {result.config.late}" if against == "time" else result.method
        drawn.append((label, at, [r.scores[0].headline for r in rounds]))
    return lines(drawn, "round" if against == "rounds" else _time(results[0]))


def lines(
    drawn: Sequence[tuple[str, Sequence[float], Sequence[float]]], along: str = "round", over: str = "clients"
) -> Figure:
    """Accuracies in [0, 1] over rounds or time: (label, where, accuracy) a line."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for label, at, accuracy in drawn:
        axes.plot(at, [100 * a for a in accuracy], label=label)
    axes.set(xlabel=along, ylabel=f"accuracy (%), mean over {over}")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


def beside(panels: Mapping[str, Sequence[tuple[str, float, float | None, float]]]) -> Figure:
    """Printed numbers beside ours, in percent, a panel a column: (label, printed, its deviation, ours) a line."""
    most = max(map(len, panels.values()))
    figure = Figure(figsize=(5 * len(panels), 1.4 + 0.28 * most), layout="constrained")
    for axes, (title, given) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        rows = sorted(given, key=lambda row: row[1])
        at, labels = range(len(rows)), [label for label, *_ in rows]
        printed, ours = [row[1] for row in rows], [row[3] for row in rows]
        axes.errorbar(printed, at, xerr=[row[2] or 0 for row in rows], fmt="o", color="#9a9a9a", label="paper")
        axes.plot(ours, at, "D", color="#3b7dd8", label="ours")
        axes.hlines(at, printed, ours, color="#3b7dd8", linewidth=1, alpha=0.5)
        axes.set_yticks(at, labels)
        left, right = axes.get_xlim()
        spare = max(0.0, NARROWEST - (right - left)) / 2
        axes.set(xlabel="accuracy (%)", title=title, xlim=(left - spare, right + spare), ylim=(-0.6, len(rows) - 0.4))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def _time(result: Result) -> str:
    """What time is in a run: virtual, in rounds or seconds, or that of the clock on the wall in a real federation."""
    if result.config.schedule.startswith("stragglers"):
        return "virtual time (rounds)"
    return "time (s)" if result.config.data == "federation" else "virtual time (s)"


def similarity(result: Result, round: int | None = None) -> Figure:
    """Who learns from whom after a round, block by block, beside the overlap of labels; clients that are kin adjoin."""
    from fedkin.report import charts

    found = charts.matrices(result, round)
    if not found:
        raise FedkinError(f"{result.method} mixes nothing, or does not say what")
    at = max(found)
    blocks, overlap = found[at], charts.label_overlap(result)
    order = charts.order_for(blocks, overlap)
    panels = [(name, matrix, "Blues", float(matrix.max())) for name, matrix in blocks.items()]
    if overlap is not None:
        panels.append(("overlap of labels", overlap, "Greens", 1.0))
    figure = Figure(figsize=(0.6 + 3.2 * len(panels), 3.9), layout="constrained")
    for k, (axes, (name, matrix, colours, most)) in enumerate(
        zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True)
    ):
        image = axes.imshow(matrix[np.ix_(order, order)], cmap=colours, vmin=0, vmax=most or 1.0)
        axes.set_title(name, fontsize=10)
        few = len(order) <= 30
        names = [result.client_names[i] for i in order] if few else []
        ticks = range(len(order)) if few else []
        axes.set_xticks(ticks, names, rotation=90, fontsize=6)
        axes.set_yticks(ticks if k == 0 else [], names if k == 0 else [], fontsize=6)
        figure.colorbar(image, ax=axes, shrink=0.7, aspect=25)
    figure.suptitle(f"{result.method}, round {at}: row i is what client i's model is made of", fontsize=10)
    return figure


def timeline(result: Result, until: float | None = None) -> Figure:
    """Who trained when, and what became of it: a bar a task, the rounds it is late; lines where the server acts."""
    history = [r for r in result.history if r.time is not None and (until is None or r.time <= until)]
    tasks = [(task, r.round - task.sent) for r in history for task in r.tasks]
    if not tasks:
        raise FedkinError(
            "there is no timeline without a virtual clock: run with --schedule stragglers:5 or latency:..."
        )
    clients = sorted({task.client for task, _ in tasks})[:MANY]
    row = {client: k for k, client in enumerate(clients)}
    figure = Figure(figsize=(10, 1.2 + 0.28 * len(clients)), layout="constrained")
    axes = figure.subplots()
    shown = [(task, late) for task, late in tasks if task.client in row]
    for fate, colour in FATES.items():
        own = [(task, late) for task, late in shown if task.fate == fate]
        if not own:
            continue
        axes.barh(
            [row[task.client] for task, _ in own],
            [task.end - task.start for task, _ in own],
            left=[task.start for task, _ in own],
            height=0.7, color=colour, edgecolor="white", linewidth=0.6, label=fate,
        )  # fmt: skip
        for task, late in own:
            if late and len(shown) <= 400:
                axes.text(task.end, row[task.client], f"{late} ", ha="right", va="center", fontsize=7, color="white")
    acts = [r.time for r in history if r.time is not None]
    if len(acts) <= 200:
        axes.vlines(acts, -0.5, len(clients) - 0.5, color="black", linewidth=0.4, alpha=0.4, label="server acts")
    axes.set_yticks(range(len(clients)), [result.client_names[client] for client in clients], fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel=_time(result), title=f"{result.method}, {result.config.schedule}: numbers are rounds late")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.margins(x=0.01, y=0.01)
    axes.legend(
        frameon=False, ncols=6, loc="upper left", bbox_to_anchor=(0, -0.12 - 1 / (3 + len(clients))), fontsize=8
    )
    return figure


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
