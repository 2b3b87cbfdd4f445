"""`fedkin export` and `fedkin predict`: what a run's models are good for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedkin.errors import FedkinError

Client = Annotated[int | None, typer.Option(help="Number of the client of a run, from 0.")]


def export(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    client: Annotated[int, typer.Option(help="Number of the client, from 0.")],
    to: Annotated[Path, typer.Option(help="File to write, such as model.safetensors.")],
) -> None:
    """Write one client's model to a file that works without the run."""
    from fedkin.export import Personal
    from fedkin.runs.folder import RunFolder

    personal = Personal.from_run(RunFolder.open(run), client)
    if to.exists():
        raise FedkinError(f"{to} is there already: choose another name")
    personal.save(to)
    print(f"{to}: model {personal.about['model']} of {personal.about['client']}")


def predict(
    run: Annotated[Path, typer.Argument(help="Run folder, or a model written by [b]fedkin export[/b].")],
    sample: Annotated[Path, typer.Argument(help="An image, or a .npy array for other data.")],
    client: Client = None,
    as_json: Annotated[bool, typer.Option("--json", help="Probabilities as one line of JSON.")] = False,
) -> None:
    """Classify a sample with one client's model."""
    from fedkin.export import Personal
    from fedkin.runs.folder import RunFolder

    if run.is_dir():
        if client is None:
            raise FedkinError("whose model? A run has one per client: give --client")
        personal = Personal.from_run(RunFolder.open(run), client)
    elif client is not None:
        raise FedkinError(f"--client chooses from a run folder, but {run} is not one")
    else:
        personal = Personal.from_file(run)
    chances = personal.predict(personal.read(sample))
    if as_json:
        print(json.dumps(chances))
        return
    title = f"{sample.name} by the model of {personal.about['client']}"
    table = Table("class", "probability", title=escape(title))
    for name, chance in list(chances.items())[:5]:
        table.add_row(escape(name), f"{100 * chance:.1f} %")
    Console().print(table)
