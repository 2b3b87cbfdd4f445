"""Charts of runs that people can point at, drawn with plotly: for the report and for the dashboard.

Each takes results by label, several seeds under one, or a single result. A run need not be finished.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go
from plotly.colors import qualitative
from plotly.subplots import make_subplots
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from fedkin.method import Mixing
from fedkin.report.figures import FATES, MANY
from fedkin.result import Result
from fedkin.runs.mixing import MixingRecord

Matrix = npt.NDArray[np.float64]
Results = Mapping[str, Sequence[Result]]
COLOURS = qualitative.D3
CELLS = 400_000
"""Cells of heat maps in one chart, over all rounds of its slider."""
STEPS = 25
"""Rounds of a slider."""
PANELS = 3
"""Blocks of columns that get a heat map."""


def escape(text: str) -> str:
    """A name as plotly shows it as it is: it takes some tags for its own, but shows the names of quotes."""
    return html.escape(text, quote=False)


def styled(figure: go.Figure, height: int = 420) -> go.Figure:
    """In the style of all charts."""
    return figure.update_layout(template="simple_white", margin={"t": 50, "r": 10, "l": 60}, height=height)


def curves(results: Results, against: str = "round") -> go.Figure:
    """Accuracy over rounds (or over `time`), with a band of one standard deviation over seeds."""
    figure = go.Figure()
    for k, (label, runs) in enumerate(results.items()):
        colour = COLOURS[k % len(COLOURS)]
        # Runs of several seeds that are under way are as long as the shortest of them.
        length = min(len(run.evaluated) for run in runs)
        judged = [run.evaluated[:length] for run in runs]
        at = [r.round if against == "round" else r.time for r in judged[0]]
        values = 100 * np.array([[r.scores[0].headline for r in rounds] for rounds in judged])
        middle = values.mean(0) if length else np.zeros(0)
        if len(runs) > 1 and length:
            spread = values.std(0, ddof=1)
            figure.add_scatter(
                x=[*at, *at[::-1]],
                y=[*(middle + spread), *(middle - spread)[::-1]],
                fill="toself",
                fillcolor=colour,
                opacity=0.2,
                line={"width": 0},
                hoverinfo="skip",
                showlegend=False,
                legendgroup=label,
            )
        mode = "lines+markers" if length < 40 else "lines"
        figure.add_scatter(
            x=at, y=middle, name=escape(label), mode=mode, line={"color": colour}, legendgroup=label, showlegend=True
        )
    time = "time (s)" if against == "time" else "round"
    return styled(figure.update_layout(xaxis_title=time, yaxis_title="accuracy (%), mean over clients"))


def clients(results: Results) -> go.Figure:
    """Each client's accuracy: from worst to best by method, and beside FedAvg's where that was run."""
    finished = {label: runs for label, runs in results.items() if all(run.evaluated for run in runs)}
    beside = next((label for label, runs in finished.items() if runs[0].method == "fedavg"), None)
    others = [label for label in finished if label != beside]
    right = bool(beside and others)
    titles = ["Clients from worst to best", f"Each client beside {escape(beside or '')}"]
    figure = make_subplots(1, 2 if right else 1, subplot_titles=titles[: 1 + right], horizontal_spacing=0.16)
    for k, (label, runs) in enumerate(finished.items()):
        colour = COLOURS[k % len(COLOURS)]
        accuracy = 100 * np.mean([run.score.clients for run in runs], axis=0)
        order = np.argsort(accuracy, kind="stable")
        names = [escape(runs[0].client_names[i]) for i in order]
        common = {"name": escape(label), "legendgroup": label, "marker": {"color": colour, "size": 7}}
        figure.add_scatter(
            x=list(range(1, len(order) + 1)), y=accuracy[order], text=names, mode="lines+markers",
            line={"color": colour, "width": 1}, hovertemplate="%{text}: %{y:.1f} %", row=1, col=1, **common,
        )  # fmt: skip
        if right and beside is not None and label != beside:
            theirs = 100 * np.mean([run.score.clients for run in finished[beside]], axis=0)
            if len(theirs) == len(accuracy):
                figure.add_scatter(
                    x=theirs, y=accuracy, text=[escape(name) for name in runs[0].client_names], mode="markers",
                    hovertemplate="%{text}: %{y:.1f} % against %{x:.1f} %", showlegend=False, row=1, col=2, **common,
                )  # fmt: skip
    figure.update_xaxes(title="clients", row=1, col=1)
    figure.update_yaxes(title="accuracy (%) on its own test set", row=1, col=1)
    if right:
        lowest = min(min(trace.y) for trace in figure.data)
        figure.add_scatter(
            x=[lowest, 100], y=[lowest, 100], mode="lines", line={"color": "#999", "dash": "dot"}, showlegend=False,
            hoverinfo="skip", row=1, col=2,
        )  # fmt: skip
        figure.update_xaxes(title=f"accuracy (%) under {escape(beside or '')}", row=1, col=2)
        figure.update_yaxes(title="accuracy (%): above the line is better", row=1, col=2)
    return styled(figure, 440)


def costs(results: Results) -> go.Figure:
    """Megabytes and seconds of a run, by method."""
    figure = make_subplots(1, 2, subplot_titles=("Megabytes sent in a run", "Seconds of a run"))
    labels = [escape(label) for label in results]
    sent = [np.mean([sum(r.bytes_up + r.bytes_down for r in run.history) for run in runs]) for runs in results.values()]
    took = [np.mean([run.seconds for run in runs]) for runs in results.values()]
    colours = [COLOURS[k % len(COLOURS)] for k in range(len(labels))]
    for column, values in enumerate((np.array(sent) / 1e6, took), start=1):
        figure.add_bar(x=labels, y=values, marker={"color": colours}, showlegend=False, row=1, col=column)
    figure.update_xaxes(type="category")
    return styled(figure, 340)


def matrices(result: Result, until: int | None = None) -> dict[int, dict[str, Matrix]]:
    """Mixing matrices [N, N] by round and block; blocks that are mixed alike are one, and the rounds are a choice."""
    record = result.record
    rounds = [r for r in record.rounds() if until is None or r <= until] if record else []
    if record is None or not rounds:
        return {}
    clients = len(result.client_names)
    most = max(1, min(STEPS, CELLS // (clients * clients * PANELS)))
    chosen = [rounds[k] for k in np.unique(np.linspace(0, len(rounds) - 1, min(most, len(rounds))).round().astype(int))]
    by_round = {r: {name: m.double().numpy() for name, m in _blocks(record, r).items()} for r in chosen}
    return {r: _merged(found, _alike(list(by_round.values()))) for r, found in by_round.items()}


def _blocks(record: MixingRecord, round: int) -> Mixing:
    """Matrices by block. A file gives them back in any order, so they are put in that of their names."""
    found = record.at(round)
    return dict(sorted(found.items())) if record.folder else found


def _alike(rounds: Sequence[Mapping[str, Matrix]]) -> dict[str, list[str]]:
    """Blocks in groups whose matrices are the same in all rounds, by the name of the group."""
    groups: list[list[str]] = []
    for name in rounds[-1]:
        for group in groups:
            if all(name in r and group[0] in r and np.array_equal(r[name], r[group[0]]) for r in rounds):
                group.append(name)
                break
        else:
            groups.append([name])
    return {name if len(group) == 1 else f"{name} … {group[-1]}": group for group in groups for name in group[:1]}


def _merged(found: Mapping[str, Matrix], groups: Mapping[str, list[str]]) -> dict[str, Matrix]:
    shown = list(groups.items())[: PANELS - 1] + list(groups.items())[PANELS - 1 :][-1:]
    return {label: found[group[0]] for label, group in shown if group[0] in found}


def label_overlap(result: Result) -> Matrix | None:
    """[N, N] cosine of the clients' label proportions; None where nobody knows them."""
    if result.label_counts is None:
        return None
    counts = np.array(result.label_counts, dtype=np.float64)
    unit = counts / np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1e-12)
    return np.asarray(unit @ unit.T)


def order_of(matrix: Matrix) -> list[int]:
    """An order of clients [N] in which those that are alike in a matrix [N, N] stand side by side."""
    if len(matrix) < 3 or np.allclose(matrix, matrix[0, 0]):
        return list(range(len(matrix)))
    both = (matrix + matrix.T) / 2
    np.fill_diagonal(both, 0.0)
    distance = both.max() - both
    np.fill_diagonal(distance, 0.0)
    order: list[int] = leaves_list(
        linkage(squareform(distance, checks=False), "average", optimal_ordering=True)
    ).tolist()
    return order


def order_for(blocks: Mapping[str, Matrix], overlap: Matrix | None) -> list[int]:
    """An order of clients by the block in which they differ most, or by their labels where they do not differ."""
    telling = max(blocks.values(), key=lambda m: float((m - np.diag(m.diagonal())).std()))
    same = np.allclose(telling, telling[0])
    return order_of(overlap if same and overlap is not None else telling)


def kin(result: Result) -> go.Figure | None:
    """Who learns from whom, block by block with a slider over rounds, beside the true overlap of labels."""
    found = matrices(result)
    if not found:
        return None
    rounds = list(found)
    last = found[rounds[-1]]
    overlap = label_overlap(result)
    order = order_for(last, overlap)
    names = [escape(result.client_names[i]) for i in order]
    panels = [*last, *([] if overlap is None else ["overlap of labels (cosine)"])]
    figure = make_subplots(1, len(panels), subplot_titles=[escape(p) for p in panels], horizontal_spacing=0.04)

    def values(matrix: Matrix) -> Matrix:
        return np.round(matrix[np.ix_(order, order)], 4)

    def maps(blocks: Mapping[str, Matrix]) -> list[Matrix]:
        return [values(blocks[name]) for name in last if name in blocks]

    highest = [max(float(values(r[name]).max()) for r in found.values() if name in r) for name in last]
    for k, matrix in enumerate(maps(last)):
        figure.add_heatmap(
            z=matrix, x=names, y=names, coloraxis=None, colorscale="Blues", zmin=0, zmax=highest[k] or 1,
            showscale=False, hovertemplate="%{y} takes %{z:.3f} from %{x}<extra></extra>", row=1, col=k + 1,
        )  # fmt: skip
    if overlap is not None:
        figure.add_heatmap(
            z=values(overlap), x=names, y=names, colorscale="Greens", zmin=0, zmax=1, showscale=False,
            hovertemplate="%{y} and %{x}: %{z:.2f}<extra></extra>", row=1, col=len(panels),
        )  # fmt: skip
    steps = [
        {
            "label": str(r),
            "method": "restyle",
            "args": [{"z": [m.tolist() for m in maps(found[r])]}, list(range(len(maps(found[r]))))],
        }
        for r in rounds
    ]
    # Names of clients stand upright between the maps and the slider.
    room = max(90, 30 + 7 * max(map(len, names))) if len(names) <= 30 else 90
    if len(rounds) > 1:
        slider = {"active": len(rounds) - 1, "steps": steps, "currentvalue": {"prefix": "round "}, "pad": {"t": room}}
        figure.update_layout(sliders=[slider])
    figure.update_xaxes(showticklabels=len(names) <= 30, tickangle=90, type="category")
    figure.update_yaxes(showticklabels=False, autorange="reversed", type="category")
    figure.update_yaxes(showticklabels=len(names) <= 30, row=1, col=1)
    return styled(figure, 550 + room if len(rounds) > 1 else 500)


def groups(result: Result) -> list[list[str]]:
    """Clients that share a model in some block, by name, where some do and others do not; otherwise nothing."""
    found = matrices(result)
    best: list[list[str]] = []
    for matrix in found[max(found)].values() if found else ():
        _, which = np.unique(matrix.round(9), axis=0, return_inverse=True)
        members = [np.flatnonzero(which.ravel() == k) for k in range(int(which.max()) + 1)]
        if 1 < len(members) < len(matrix) and len(members) > len(best):
            best = [[result.client_names[i] for i in own] for own in members]
    return sorted(best, key=lambda own: (-len(own), own))


def layers(result: Result) -> go.Figure | None:
    """Block by block, how much of a client's new model is its own and how much comes from others."""
    record = result.record
    if record is None or not record.rounds():
        return None
    last = _blocks(record, record.rounds()[-1])
    own = [float(m.diagonal().mean()) for m in last.values()]
    figure = go.Figure()
    names = [escape(name) for name in last]
    figure.add_bar(x=names, y=own, name="own", marker={"color": "#3b7dd8"})
    figure.add_bar(x=names, y=[1 - share for share in own], name="from others", marker={"color": "#cfd8e3"})
    figure.update_xaxes(type="category")
    return styled(figure.update_layout(barmode="stack", yaxis_title="share, mean over clients"), 340)


def timeline(result: Result) -> go.Figure | None:
    """Who trained when, and what became of it; None without a clock."""
    tasks = [(task, r.round - task.sent) for r in result.history for task in r.tasks]
    if not tasks:
        return None
    shown = sorted({task.client for task, _ in tasks})[:MANY]
    figure = go.Figure()
    for fate, colour in FATES.items():
        own = [(task, late) for task, late in tasks if task.fate == fate and task.client in shown][:4000]
        if own:
            figure.add_bar(
                orientation="h", name=fate, marker={"color": colour},
                y=[escape(result.client_names[task.client]) for task, _ in own],
                x=[task.end - task.start for task, _ in own], base=[task.start for task, _ in own],
                text=[f"sent in round {task.sent}, {late} rounds late" for task, late in own], textposition="none",
                hovertemplate="%{y}: %{text}<extra></extra>",
            )  # fmt: skip
    figure.update_yaxes(type="category", autorange="reversed")
    rounds = "rounds" if result.config.schedule.startswith("stragglers") else "s"
    figure.update_layout(barmode="overlay", xaxis_title=f"time ({rounds})", bargap=0.25)
    return styled(figure, 160 + 22 * len(shown))


def as_json(figure: go.Figure | None) -> dict[str, Any] | None:
    """For a page that draws it."""
    return figure.to_plotly_json() if figure is not None else None
