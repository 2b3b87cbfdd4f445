"""One self-contained page about one or several runs: it works from the disk, with no network."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, select_autoescape
from plotly.offline import get_plotlyjs

from fedkin.report import charts
from fedkin.report.summary import lines
from fedkin.result import Result
from fedkin.runs.files import make_folder, write_whole


def write(results: Mapping[str, Sequence[Result]], path: Path) -> None:
    """Write the report of runs, given by label, those of several seeds under one."""
    pages = Environment(loader=PackageLoader("fedkin.report"), autoescape=select_autoescape())
    configs = {
        f"{label}, seed {run.config.seed}": json.dumps(run.config.model_dump(), indent=1)
        for label, runs in results.items()
        for run in runs
    }
    timed = all(run.evaluated and run.evaluated[0].time is not None for runs in results.values() for run in runs)
    page = pages.get_template("report.html").render(
        lines=lines(results),
        curves=_part(charts.curves(results)),
        time=_part(charts.curves(results, "time")) if timed else "",
        clients=_part(charts.clients(results)),
        costs=_part(charts.costs(results)),
        kin={label: _about_kin(runs[0]) for label, runs in results.items()},
        timelines={label: part for label, runs in results.items() if (part := _part(charts.timeline(runs[0])))},
        configs=configs,
        plotly=get_plotlyjs(),
        data=next(iter(results.values()))[0].config.data_name,
    )
    make_folder(path.parent)
    write_whole(path, page.encode())


def _about_kin(result: Result) -> dict[str, object]:
    """Who learns from whom in a run."""
    return {
        "seed": result.config.seed,
        "matrices": _part(charts.kin(result)),
        "layers": _part(charts.layers(result)),
        "groups": charts.groups(result),
    }


def _part(figure: go.Figure | None) -> str:
    if figure is None:
        return ""
    part: str = figure.to_html(include_plotlyjs=False, full_html=False, config={"displaylogo": False})
    return part


def gathered(runs: Iterable[Result]) -> dict[str, list[Result]]:
    """Runs by label: those that differ in nothing but the seed are one, and a label says what the others differ in."""
    alike: dict[str, list[Result]] = {}
    for run in runs:
        settings = {k: v for k, v in run.config.matters.items() if k not in ("seed", "vectorize")}
        alike.setdefault(json.dumps([run.method, settings], sort_keys=True), []).append(run)
    labels: dict[str, list[Result]] = {}
    for group in alike.values():
        policy = f"@{group[0].config.late}" if group[0].config.late != "stale" else ""
        plain = label = f"{group[0].method}{policy}"
        if label in labels and group[0].folder:
            plain = label = f"{plain} ({group[0].folder.name})"
        k = 1
        while label in labels:
            k += 1
            label = f"{plain}, {k}"
        labels[label] = sorted(group, key=lambda run: run.config.seed)
    return labels
