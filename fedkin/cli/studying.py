"""`fedkin study`: the papers' figures from fresh runs."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from fedkin.cli.options import Json, free_folder, pairs
from fedkin.cli.progress import shown


def study(
    name: Annotated[str, typer.Argument(help="A study, or [b]list[/b].")],
    set: Annotated[list[str], typer.Option(help="A setting of the study, as key=value; may be repeated.")] = [],  # noqa: B006 (typer reads it)
    out: Annotated[Path | None, typer.Option(help="Folder for the picture and the numbers.")] = None,
    as_json: Json = False,
) -> None:
    """Make a figure or table of a paper from a fresh run.

    [dim]fedkin study layer-cka --set data=digits --set rounds=10[/dim]
    """
    from fedkin import studies

    if name == "list":
        _list(as_json)
        return
    found = studies.make(name, pairs(set)).run(shown)
    folder = out or free_folder(f"study-{name}")
    paths = found.write(folder, name)
    if as_json:
        print(json.dumps({"study": name, "table": found.table, "says": found.says}))
        return
    _print(found.table, studies.registry()[name].paper)
    for sentence in found.says:
        print(sentence)
    print(f"picture: {paths[0]}")


def _list(as_json: bool) -> None:
    from fedkin import studies

    rows = [
        {"study": name, "paper": cls.paper, "shows": cls.about, "settings": _settings(cls)}
        for name, cls in studies.registry().items()
    ]
    if as_json:
        print(json.dumps(rows))
        return
    console = Console(highlight=False)
    for row in rows:
        console.print(f"[bold]{escape(row['study'])}[/bold]  {escape(row['paper'])}")
        console.print(Padding(escape(row["shows"]), (0, 0, 0, 2)))
        console.print(Padding(f"[dim]{escape(row['settings'])}[/dim]", (0, 0, 1, 2)))


def _settings(cls: type) -> str:
    """As `--set` takes them; those that have no value unless they are given are shown without one."""
    plain = {field.name: field.default for field in fields(cls)}
    shown = {k: json.dumps(v) if isinstance(v, tuple | list) else v for k, v in plain.items()}
    return "  ".join(f"{name}={'' if value is None else value}" for name, value in shown.items())


def _print(rows: list[dict[str, Any]], title: str) -> None:
    table = Table(title=escape(title))
    for k, column in enumerate(rows[0] if rows else {}):
        table.add_column(escape(str(column)), justify="left" if k == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(escape(_shown(value)) for value in row.values()))
    Console().print(table)


def _shown(value: Any) -> str:
    """Three decimals, or as many digits where they would hide the number."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3f}" if abs(value) >= 0.01 or value == 0 else f"{value:.2e}"
