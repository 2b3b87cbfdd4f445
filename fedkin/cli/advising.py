"""`fedkin advise`."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedkin.cli.options import Json, free_folder, takes
from fedkin.cli.progress import shown
from fedkin.errors import Stopped

if TYPE_CHECKING:
    from fedkin.advise import Advice


@takes("Federation", "Training", "Where it runs")
def advise(
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods to try, separated by commas; otherwise one or more of each family. "
            "fedavg and local-only are always tried."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Trials of each method, with seeds counting up from --seed.", min=1)] = 2,
    budget: Annotated[
        float | None,
        typer.Option(help="Minutes of training at most; where they do not suffice, fewer methods go on.", min=0.01),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write to; with that of advice that was stopped it goes on. Default: a new one under runs/.",
            rich_help_panel="Output",
        ),
    ] = None,
    as_json: Json = False,
    **settings: Any,
) -> None:
    """Find out which method suits your data: short trials, the better half of which goes on.

    Methods are chosen by validation samples, held out of every client's training samples; the test samples are only
    used to report on the choice. Without [b]--lr[/b] a learning rate is looked for first.

    [dim]fedkin advise --data digits --partition dirichlet:0.1 --clients 20 --rounds 20[/dim]
    """
    from fedkin import advise as adviser

    folder = out or free_folder(f"advise-{Path(settings.get('data', 'digits')).name}")
    named = [name.strip() for name in methods.split(",") if name.strip()] if methods else None
    try:
        advice = adviser.advise(folder, methods=named, seeds=seeds, budget=budget, show=shown, **settings)
    except KeyboardInterrupt:
        raise Stopped(
            f"stopped; the same command with --out {shlex.quote(str(folder))} goes on where it stopped"
        ) from None
    advice.plot().savefig(folder / "advice.png", dpi=150)
    if as_json:
        print(json.dumps(advice.summary()))
        return
    _tell(advice)


def _tell(advice: Advice) -> None:
    for method, reason in advice.left_out.items():
        print(f"{method} is left out: {reason}", file=sys.stderr)
    Console().print(table(advice))
    for note in advice.notes:
        print(f"note: {note}")
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"[bold]{escape(advice.recommendation)}[/bold]")
    print(f"picture: {advice.folder / 'advice.png'}")
    print(f"its models: {advice.results[advice.method].folder}")


def table(advice: Advice) -> Table:
    """The evidence for a terminal of 80 columns, the method that is recommended in bold."""
    from fedkin.report.summary import brief, headed

    made = headed(
        "Accuracy in % on validation samples",
        "sd: standard deviation over clients; vs alone: % of clients that are better (+) and worse (−) off "
        "than with local-only for as many rounds; kB: sent and received per client and round; work: gradient steps per "
        "client and round; time: of all trials",
        *("method", "mean", "sd", "worst", "vs alone", "rounds", "kB", "work", "time"),
    )
    for row in advice.table:
        numbers = (row.accuracy, row.spread, row.worst)
        made.add_row(
            escape(row.method),
            *(f"{100 * number:.1f}" for number in numbers),
            f"+{100 * row.better:.0f} −{100 * row.worse:.0f}",
            str(row.rounds),
            f"{row.bytes / 1e3:.1f}",
            f"{row.steps:.0f}",
            brief(row.seconds),
            style="bold" if row.method == advice.method else None,
        )
    return made
