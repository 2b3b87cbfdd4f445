"""`fedkin plot` and `fedkin report`: pictures of runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedkin.errors import FedkinError


class What(StrEnum):
    """What a picture shows."""

    curves = "curves"
    clients = "clients"
    time = "time"
    similarity = "similarity"
    timeline = "timeline"


def plot(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    to: Annotated[Path, typer.Option("--to", "-o", help="Picture to write: .png, .svg or .pdf.")],
    what: Annotated[
        What,
        typer.Option(
            help="curves: accuracy over rounds; clients: also of each client; time: accuracy over virtual time; "
            "similarity: who learns from whom, beside the overlap of labels (one run); timeline: who trained when, and "
            "how late (one run)."
        ),
    ] = What.curves,
    until: Annotated[float | None, typer.Option(help="Where a timeline ends, in virtual time.")] = None,
    round: Annotated[int | None, typer.Option(help="The round whose similarity is shown, if not the last.")] = None,
) -> None:
    """Draw a picture of one or several runs.

    [dim]fedkin plot runs/first --what timeline --until 30 -o timeline.png[/dim]
    """
    from fedkin import api
    from fedkin.report import figures
    from fedkin.runs.files import make_folder

    if to.suffix not in (".png", ".svg", ".pdf"):
        raise FedkinError(f"a picture is a .png, .svg or .pdf file, but {to} was given")
    if until is not None and what is not What.timeline:
        raise FedkinError("--until is for --what timeline")
    if round is not None and what is not What.similarity:
        raise FedkinError("--round is for --what similarity")
    if what in (What.timeline, What.similarity) and len(runs) > 1:
        raise FedkinError(f"--what {what} is of one run, but {len(runs)} were given")
    results = [api.load(run, finished=False) for run in runs]
    for run, result in zip(runs, results, strict=True):
        if not result.evaluated:
            raise FedkinError(f"{run} has no round that was judged yet")
    if what is What.timeline:
        figure = figures.timeline(results[0], until)
    elif what is What.similarity:
        figure = figures.similarity(results[0], round)
    elif what is What.clients:
        figure = figures.compare(results)
    else:
        figure = figures.curves(results, "time" if what is What.time else "rounds")
    make_folder(to.parent)
    figure.savefig(to, dpi=150)
    print(f"picture: {to}")


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of runs such as [b]compare[/b] makes.")],
    to: Annotated[Path, typer.Option("--to", "-o", help="Page to write.")] = Path("report.html"),
) -> None:
    """Write one page about one or several runs, which opens in a browser with no network.

    [dim]fedkin report runs/compare-digits -o report.html[/dim]
    """
    from fedkin import api
    from fedkin.report import html
    from fedkin.runs.folder import CONFIG

    if to.suffix not in (".html", ".htm"):
        raise FedkinError(f"a report is an .html file, but {to} was given")
    folders = [found for run in runs for found in ([run] if (run / CONFIG).exists() else _below(run, CONFIG))]
    results = html.gathered(api.load(folder, finished=False) for folder in folders)
    for label, each in results.items():
        if not all(run.evaluated for run in each):
            raise FedkinError(f"{label} has no round that was judged yet")
    html.write(results, to)
    print(f"report: {to}")


def _below(folder: Path, config: str) -> list[Path]:
    found = sorted(path.parent for path in folder.glob(f"*/{config}"))
    if not found:
        raise FedkinError(f"{folder} is not a run folder, and there is none in it")
    return found
