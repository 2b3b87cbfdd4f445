"""`fedkin methods`, `datasets`, `partitions`, `models`, `presets` and `data`: what there is."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import pstdev
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from fedkin.cli.options import takes
from fedkin.config import Config
from fedkin.errors import FedkinError

Json = Annotated[bool, typer.Option("--json", help="As JSON.")]


def methods(as_json: Json = False) -> None:
    """List the methods: what they personalise and send, and what they cost compared with FedAvg (measured)."""
    from fedkin.report.methods import facts

    rows = facts()
    if as_json:
        _show(rows, as_json, "")
        return
    console = Console(highlight=False)
    for row in rows:
        cost = f"{row['bytes down']:g}x bytes down, {row['bytes up']:g}x up, {row['gradient steps']:g}x gradient steps"
        console.print(f"[bold]{escape(row['name'])}[/bold]  {escape(row['paper'])}")
        about = [
            f"personal: {row['personal']}; judged by the {row['judged']}",
            f"clients send {row['sends']}; {cost} of FedAvg's",
            f"--set {_text(row['settings']).replace(',', '')}" if row["settings"] else "",
        ]
        for line in filter(None, about):
            console.print(Padding(escape(line), (0, 0, 0, 4)))


def datasets(as_json: Json = False) -> None:
    """List the datasets and whether their files are here."""
    from fedkin.data import catalogue

    rows = []
    for name in catalogue.names():
        entry = catalogue.entry(name)
        rows.append(
            {
                "name": name,
                "what": entry.description,
                "classes": entry.classes,
                "samples": entry.samples,
                "shape": "x".join(map(str, entry.shape)),
                "natural clients": entry.clients,
                "here": catalogue.is_ready(name),
                **({"source": entry.source, "home": entry.home, "licence": entry.licence} if as_json else {}),
            }
        )
    _show(rows, as_json, f"Datasets under {catalogue.data_root()}")


def partitions(as_json: Json = False) -> None:
    """List the ways to split a dataset among clients that --partition takes."""
    from fedkin.data.partition import rules

    rows = [
        {
            "rule": rule.syntax,
            "what": rule.description,
            "from": rule.paper,
            "test ratio": rule.test_ratio,
            "samples": rule.pool,
        }
        for rule in rules()
    ]
    if as_json:
        _show(rows, as_json, "")
        return
    console = Console(highlight=False)
    for row in rows:
        ratio = "" if row["test ratio"] is None else f", {row['test ratio']:g} of a client's for testing"
        files = "all samples" if row["samples"] == "all" else "samples of the train files"
        console.print(f"[bold]{escape(str(row['rule']))}[/bold]  {escape(str(row['from']))}")
        console.print(Padding(escape(f"{row['what']} Default: {files}{ratio}."), (0, 0, 0, 4)))


def presets(as_json: Json = False) -> None:
    """List the papers' settings that --preset takes."""
    from fedkin.presets import presets as known

    rows = [{"name": name, "what": p.about, "settings": p.settings, "set": p.set} for name, p in known().items()]
    if not as_json:
        rows = [{"name": row["name"], "what": row["what"]} for row in rows]
    _show(rows, as_json, "Presets")


def models(as_json: Json = False) -> None:
    """List the networks."""
    from fedkin import models as zoo

    rows = []
    for name in zoo.names():
        card = zoo.describe(name)
        rows.append({"name": name, "source": card.source, "what": card.about, "input": card.takes})
    _show(rows, as_json, "Models")


data = typer.Typer(help="Get datasets, and look at how they are split.", no_args_is_help=True)


@data.command()
def prepare(name: Annotated[str, typer.Argument(help="A dataset.")]) -> None:
    """Download a dataset from its publisher, unless it is here."""
    from fedkin.data import catalogue

    catalogue.prepare(name)
    print(f"{name} is ready in {catalogue.data_root()}")


@takes("Split")
def show(
    name: Annotated[str, typer.Argument(help="A dataset, or a folder with one sub-folder per client.")],
    to: Annotated[Path | None, typer.Option(help="Also draw the bubble chart to this .png, .svg or .pdf.")] = None,
    **settings: Any,
) -> None:
    """Show how a dataset is split: sizes, and a bubble for each class of each client."""
    from fedkin.data import chart
    from fedkin.data.federation import Federation
    from fedkin.runs.files import CannotWrite

    if to is not None and to.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise FedkinError(f"the chart is drawn to .png, .svg or .pdf, but {to.name} was given")
    federation = Federation.of(Config.of({"data": name, **settings}))
    sizes = [len(train) + len(test) for _, train, test in federation.owned]
    learn = sum(len(rows) for rows in federation.split.train)
    used = f"{sum(sizes)} of {len(federation.data)} samples, {learn} to learn from"
    print(f"{name}: {len(federation)} clients, {used}")
    mean, deviation = sum(sizes) / len(sizes), pstdev(sizes)
    print(f"samples a client: {min(sizes)} to {max(sizes)}, mean {mean:.1f}, deviation {deviation:.1f}")
    largest = chart.class_table(federation.data.y, federation.split).max(axis=1).sum() / sum(sizes)
    print(f"samples in their client's largest class: {100 * largest:.1f} %")
    print(chart.text_chart(federation.data.y, federation.split, federation.data.classes))
    if to is not None:
        figure = chart.bubble_chart(federation.data.y, federation.split, federation.data.classes)
        try:
            figure.savefig(to)
        except OSError as error:
            raise CannotWrite(to, error) from error
        print(f"chart: {to}")


data.command()(show)


@takes("Split")
def folders(
    name: Annotated[str, typer.Argument(help="A dataset.")],
    to: Annotated[Path, typer.Argument(help="Folder to write to; it must be empty or new.")],
    **settings: Any,
) -> None:
    """Split a dataset into a folder for each client, to try out a federation with.

    [dim]fedkin data folders digits samples --clients 3 --partition dirichlet:0.5[/dim]
    """
    from fedkin.data.federation import Federation
    from fedkin.data.folder import write_folder
    from fedkin.runs.folder import refuse_full

    refuse_full(to)
    federation = Federation.of(Config.of({"data": name, **settings}))
    write_folder(federation.data, federation.split, to)
    for client, train, test in federation.owned:
        print(f"{to / client}: {len(train)} samples to learn from, {len(test)} to test on")


data.command()(folders)


def _show(rows: list[dict[str, Any]], as_json: bool, title: str) -> None:
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table(title=escape(title), title_justify="left")
    for name in rows[0]:
        table.add_column(name, no_wrap=name == "name")
    for row in rows:
        table.add_row(*(escape(_text(value)) for value in row.values()))
    Console().print(table)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    return str(value)
