"""One self-contained page about one or several runs: it works from the disk, with no network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, select_autoescape
from plotly.colors import qualitative
from plotly.offline import get_plotlyjs

from fedkin.report.summary import lines
from fedkin.result import Result
from fedkin.runs.files import make_folder, write_whole

COLOURS = qualitative.D3


def write(results: Mapping[str, Sequence[Result]], path: Path) -> None:
    """Write the report of runs, given by method."""
    pages = Environment(loader=PackageLoader("fedkin.report"), autoescape=select_autoescape())
    configs = {
        f"{method}, seed {run.config.seed}": json.dumps(run.config.model_dump(), indent=1)
        for method, runs in results.items()
        for run in runs
    }
    page = pages.get_template("report.html").render(
        lines=lines(results),
        curves=_part(_curves(results)),
        clients=_part(_clients(results)),
        configs=configs,
        plotly=get_plotlyjs(),
        data=next(iter(results.values()))[0].config.data_name,
    )
    make_folder(path.parent)
    write_whole(path, page.encode())


def _part(figure: go.Figure) -> str:
    figure.update_layout(template="simple_white", margin={"t": 40, "r": 10}, height=420, legend={"x": 1.02})
    part: str = figure.to_html(include_plotlyjs=False, full_html=False, config={"displaylogo": False})
    return part


def _curves(results: Mapping[str, Sequence[Result]]) -> go.Figure:
    """Accuracy over rounds, with a band of one standard deviation over seeds."""
    figure = go.Figure()
    for k, (method, runs) in enumerate(results.items()):
        colour = COLOURS[k % len(COLOURS)]
        at = [r.round for r in runs[0].evaluated]
        curves = 100 * np.array([[r.scores[0].headline for r in run.evaluated] for run in runs])
        middle = curves.mean(0)
        if len(runs) > 1:
            spread = curves.std(0, ddof=1)
            figure.add_scatter(
                x=[*at, *at[::-1]],
                y=[*(middle + spread), *(middle - spread)[::-1]],
                fill="toself",
                fillcolor=colour,
                opacity=0.2,
                line={"width": 0},
                hoverinfo="skip",
                showlegend=False,
                legendgroup=method,
            )
        figure.add_scatter(x=at, y=middle, name=escape(method), line={"color": colour}, legendgroup=method)
    return figure.update_layout(xaxis_title="round", yaxis_title="accuracy (%), mean over clients")


def _clients(results: Mapping[str, Sequence[Result]]) -> go.Figure:
    """Accuracy of each client after the last round, first seed."""
    figure = go.Figure()
    for k, (method, runs) in enumerate(results.items()):
        run = runs[0]
        figure.add_scatter(
            x=[escape(name) for name in run.client_names],
            y=[100 * a for a in run.score.clients],
            name=escape(method),
            mode="markers",
            marker={"color": COLOURS[k % len(COLOURS)], "size": 9},
        )
    # Names are names, even if they look like numbers or dates.
    figure.update_xaxes(title="client", type="category")
    return figure.update_layout(yaxis_title="accuracy (%) on its own test set")
