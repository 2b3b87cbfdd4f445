"""The commands."""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.text import Text

from fedkin.cli import advising, dashing, federating, looking, plotting, reproducing, running, studying, using
from fedkin.errors import FedkinError, Stopped

app = typer.Typer(
    help="Personalised federated learning among kin: every client gets its own model and learns most "
    "from the clients whose data are like its own.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(running.run)
app.command()(running.compare)
app.command()(running.demo)
app.command()(looking.methods)
app.command()(looking.datasets)
app.command()(looking.partitions)
app.command()(looking.models)
app.command()(looking.presets)
app.add_typer(looking.data, name="data")
app.command()(plotting.plot)
app.command()(plotting.report)
app.command()(dashing.dashboard)
app.command()(reproducing.reproduce)
app.command()(studying.study)
app.command()(advising.advise)
app.add_typer(federating.federation, name="federation")
app.command()(federating.server)
app.command()(federating.client)
app.command()(federating.start)
app.command()(using.export)
app.command()(using.predict)


def main() -> None:
    """Run a command; a mistake, or a disk that fails, is one sentence on stderr and exit code 2."""
    try:
        app()
    except (FedkinError, OSError) as error:
        _tell(("error:", "bold red"), f" {one_line(error)}")
        sys.exit(2)
    except Stopped as stop:
        _tell(one_line(stop))
        sys.exit(130)


def _tell(*parts: str | tuple[str, str]) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False).print(Text.assemble(*parts))


def one_line(error: Exception) -> str:
    """What an error says, with nothing in it that could break the line or the terminal."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(error)).split())
