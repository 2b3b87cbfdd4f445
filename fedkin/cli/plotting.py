"""`fedkin plot`: pictures of runs."""

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
    timeline = "timeline"


def plot(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs.")],
    to: Annotated[Path, typer.Option("--to", "-o", help="Picture to write: .png, .svg or .pdf.")],
    what: Annotated[
        What,
        typer.Option(
            help="curves: accuracy over rounds; clients: also of each client; time: accuracy over virtual time; "
            "timeline: who trained when, and how late (one run)."
        ),
    ] = What.curves,
    until: Annotated[float | None, typer.Option(help="Where a timeline ends, in virtual time.")] = None,
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
    results = [api.load(run) for run in runs]
    if what is What.timeline:
        if len(results) > 1:
            raise FedkinError(f"a timeline is of one run, but {len(results)} were given")
        figure = figures.timeline(results[0], until)
    elif what is What.clients:
        figure = figures.compare(results)
    else:
        figure = figures.curves(results, "time" if what is What.time else "rounds")
    make_folder(to.parent)
    figure.savefig(to, dpi=150)
    print(f"picture: {to}")
