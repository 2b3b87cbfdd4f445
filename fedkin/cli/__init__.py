"""The commands."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from fedkin.cli import looking, running, using
from fedkin.errors import FedkinError

app = typer.Typer(
    help="Personalised federated learning among kin: every client gets its own model and learns most "
    "from the clients whose data are like its own.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(running.run)
app.command()(running.compare)
app.command()(looking.methods)
app.command()(looking.datasets)
app.command()(looking.models)
app.add_typer(looking.data, name="data")
app.command()(using.export)
app.command()(using.predict)


def main() -> None:
    """Run a command; a user's mistake is one sentence on stderr and exit code 2."""
    try:
        app()
    except FedkinError as error:
        Console(stderr=True, soft_wrap=True).print(
            f"[bold red]error:[/bold red] {_plain(error)}", highlight=False
        )
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit("stopped; a run with a folder goes on with: fedkin run --resume FOLDER")


def _plain(error: FedkinError) -> str:
    return str(error).replace("[", r"\[")
