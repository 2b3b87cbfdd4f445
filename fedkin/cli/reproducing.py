"""`fedkin reproduce`: the papers' tables."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from fedkin.cli.progress import clock, shown
from fedkin.errors import FedkinError, Stopped

if TYPE_CHECKING:
    from fedkin.reproduce.cells import Cell

Results = Annotated[Path, typer.Option(help="Folder that keeps the results, a small JSON file a run.")]


def reproduce(
    table: Annotated[
        str,
        typer.Argument(
            help="A table, as in pfedsim-table3; [b]list[/b] shows all cells of all tables; "
            "[b]page[/b] writes docs/RESULTS.md from what is kept."
        ),
    ],
    of: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="For list: the cells of this table only.")] = None,
    row: Annotated[
        list[str] | None, typer.Option(help="Only this row, by its name in the paper; may be repeated.")
    ] = None,
    column: Annotated[list[str] | None, typer.Option(help="Only this column; may be repeated.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each cell, with seeds counting up from 0.")] = 1,
    results: Results = Path("results"),
    work: Annotated[Path, typer.Option(help="Folder for runs under way: interrupted ones go on.")] = Path(
        "runs/reproduce"
    ),
    to: Annotated[Path, typer.Option(help="For page: the file to write.")] = Path("docs/RESULTS.md"),
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes; otherwise one a core.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Regenerate the papers' tables and print ours beside theirs.

    [dim]fedkin reproduce pfedsim-table3 --row pFedSim --column "CIFAR-10 Dir(0.1)" --seeds 1[/dim]
    """
    if of and table != "list":
        raise FedkinError(f"reproduce takes one table at a time, not {table} and {of}")
    if table == "list":
        _list(of, row or (), column or (), results, as_json)
    elif table == "page":
        from fedkin.reproduce import page

        page.write(results, to)
        print(f"page: {to}")
    else:
        _run(table, row or (), column or (), seeds, results, work, workers, as_json)


def _list(of: str | None, rows: Collection[str], columns: Collection[str], results: Path, as_json: bool) -> None:
    from fedkin.reproduce.cells import table, tables
    from fedkin.reproduce.running import estimate, kept

    if of is None and (rows or columns):
        raise FedkinError("rows and columns are those of a table: name it, as in list pfedsim-table3")
    grids, lines = [], []
    for each in [table(of)] if of else tables().values():
        grid = Grid(title=f"[b]{each.name}[/b]: {escape(each.about)}", title_justify="left", title_style="")
        for name in ("row", "column", "needs", "paper", "time", "done"):
            grid.add_column(name, justify="right" if name in ("paper", "time", "done") else "left")
        chosen = each.chosen(rows, columns)
        reasons = Counter(cell.reason for cell in chosen if cell.reason)
        for cell in chosen:
            seconds, done = None if cell.reason else round(estimate(cell)), len(kept(cell, results))
            lines.append(
                {
                    "table": cell.table,
                    "row": cell.row,
                    "column": cell.column,
                    "paper": cell.mean,
                    "data": cell.settings.get("data", ""),
                    "seconds": seconds,
                    "missing": cell.missing,
                    "seeds done": done,
                }
            )
            if seconds is None:
                continue
            needs = ", ".join(name if here else f"{name} (not here)" for _, name, here in cell.needs)
            paper = "" if cell.mean is None else f"{cell.mean:.2f}"
            words = (escape(word) for word in (cell.row, cell.column, needs))
            grid.add_row(*words, paper, clock(seconds), str(done or ""))
        cannot = (f"{count} more cannot be run: {reason}" for reason, count in reasons.items())
        grid.caption, grid.caption_justify = escape("\n".join(cannot)) or None, "left"
        grids.append(grid)
    if as_json:
        print(json.dumps(lines))
        return
    for grid in grids:
        Console().print(grid)
    print("time: one seed on this machine; done: seeds that are kept")


def _run(
    name: str, rows: Collection[str], columns: Collection[str], seeds: int, results: Path, work: Path,
    workers: int | None, as_json: bool,
) -> None:  # fmt: skip
    from fedkin.engine import shared_workers
    from fedkin.reproduce import page
    from fedkin.reproduce.cells import table
    from fedkin.reproduce.running import path_of, reproduce

    chosen = table(name).chosen(rows, columns)
    skipped: dict[str, list[Cell]] = {}
    ready = []
    for cell in chosen:
        # What is kept can be shown without the data that it was made from.
        done = not cell.reason and all(path_of(cell, seed, results).exists() for seed in range(seeds))
        if cell.missing and not done:
            skipped.setdefault(cell.missing, []).append(cell)
        else:
            ready.append(cell)
    for reason, cells in skipped.items():
        typer.echo(f"{len(cells)} {'cell is' if len(cells) == 1 else 'cells are'} skipped: {reason}", err=True)
    if not ready:
        raise FedkinError(f"none of the {len(chosen)} cells can be run here")
    lines = []
    try:
        with shared_workers(workers):
            for cell in ready:
                finished = [reproduce(cell, seed, results, work, workers, shown) for seed in range(seeds)]
                lines.append(page.Compared(cell, [f.measured(cell.measure) for f in finished]))
    except KeyboardInterrupt:
        raise Stopped("stopped; the same command goes on where it stopped") from None
    if as_json:
        print(
            json.dumps(
                [{"row": c.cell.row, "column": c.cell.column, "paper": c.cell.mean, "ours": c.ours} for c in lines]
            )
        )
        return
    whole = table(name)
    print(whole.about)
    for group, own in page.groups(whole, lines).items():
        headings, texts = page.comparison(whole, own)
        grid = Grid(title=f"[b]{escape(group)}[/b]", title_justify="left", title_style="")
        grid.add_column("")
        for heading in headings:
            grid.add_column(heading, justify="right")
        for c, text in zip(own, texts, strict=True):
            grid.add_row(escape(whole.compared(c.cell)), *text)
        Console().print(grid)
