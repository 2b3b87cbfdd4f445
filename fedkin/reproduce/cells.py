"""Cells of the papers' tables: what is printed, what to run for it, and which of a run's numbers to compare."""

from __future__ import annotations

import csv
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from fedkin.config import Config
from fedkin.data import catalogue
from fedkin.errors import FedkinError, unknown
from fedkin.models.weights import located

TIME = "time per sample"
"""The measure that is no accuracy, and that no other run can stand in for."""
OWN_KEYS = {"method", "set", "measure", "run", "missing", "client"}
"""Keys of a row or column that are not settings of a run."""


@dataclass(frozen=True)
class Cell:
    """One number of a table."""

    table: str
    row: str
    column: str
    mean: float | None
    std: float | None
    """As printed; None where nothing is."""
    method: str
    set: Mapping[str, Any]
    settings: Mapping[str, Any]
    measure: str
    """Which number of the run it is: see `fedkin.reproduce.running.measured`."""
    run: str
    """Name of the run, which several cells may share."""
    reason: str
    """Why it cannot be run anywhere, or nothing."""
    study: str = ""
    """Not a run but a study of its own, by name."""
    share: float = 0.8
    """About which share of the data clients learn from: what its time is estimated by."""

    @property
    def percent(self) -> bool:
        """Whether its number is an accuracy."""
        return not self.study and self.measure != TIME

    @property
    def needs(self) -> list[tuple[str, str, bool]]:
        """The data and the weights that it needs: kind, name, whether they are here."""
        data, weights = self.settings.get("data"), self.settings.get("weights")
        found = [] if data is None else [("data", data, catalogue.is_ready(data))]
        return found if weights is None else [*found, ("weights", weights, located(weights).exists())]

    @property
    def missing(self) -> str:
        """Why it cannot be run here, or nothing."""
        if self.reason:
            return self.reason
        lacks = [f"the {kind} {name}" for kind, name, here in self.needs if not here]
        return f"{' and '.join(lacks)} are not here" if lacks else ""


@dataclass(frozen=True)
class Table:
    """A table, or a figure, of a paper."""

    name: str
    about: str
    seeds: int
    """How many the paper ran; 1 where it does not say."""
    ours: str | None
    """The row of the paper's own method; the column if methods are `across`."""
    open: tuple[str, ...]
    """What the paper leaves open."""
    notes: tuple[str, ...]
    """What was found out about differences."""
    cells: tuple[Cell, ...] = field(repr=False)
    across: bool = False
    """Whether what is compared stands in columns, not in rows."""
    curves: bool = False
    """Whether it is a figure in the paper, of accuracy over rounds."""

    @property
    def rows(self) -> list[str]:
        """Names of rows, in the paper's order."""
        return list(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> list[str]:
        """Names of columns, in the paper's order."""
        return list(dict.fromkeys(cell.column for cell in self.cells))

    def compared(self, cell: Cell) -> str:
        """Which of the things that the table compares a cell is about."""
        return cell.column if self.across else cell.row

    def where(self, cell: Cell) -> str:
        """On what they are compared there."""
        return cell.row if self.across else cell.column

    def chosen(self, rows: Collection[str] = (), columns: Collection[str] = ()) -> list[Cell]:
        """The cells of these rows and columns; none named is all."""
        for kind, wanted, names in (("row", rows, self.rows), ("column", columns, self.columns)):
            for name in wanted:
                if name not in names:
                    raise unknown(f"{kind} of {self.name}", name, names)
        return [c for c in self.cells if c.row in (rows or self.rows) and c.column in (columns or self.columns)]


def _lines(name: str) -> list[dict[str, str]]:
    """A CSV file beside this one."""
    return list(csv.DictReader((files(__package__) / name).read_text("utf-8").splitlines()))


def choices() -> list[dict[str, str]]:
    """What papers leave open and was tried both ways: choice, option, number, moved."""
    return _lines("choices.csv")


@cache
def printed() -> dict[tuple[str, str, str], tuple[float, float | None]]:
    """(table, row, column) to the printed mean and standard deviation."""
    return {
        (line["table"], line["row"], line["column"]): (
            float(line["mean"]),
            float(line["std"]) if line["std"] else None,
        )
        for line in _lines("printed.csv")
    }


@cache
def tables() -> dict[str, Table]:
    """All tables by name."""
    read = tomllib.loads((files(__package__) / "cells.toml").read_text("utf-8"))
    return {name: _table(name, values) for name, values in read.items()}


def table(name: str) -> Table:
    """A table by its name."""
    if name not in tables():
        raise unknown("table", name, tables())
    return tables()[name]


def _table(name: str, values: Mapping[str, Any]) -> Table:
    cells = tuple(
        _cell(name, row, column, [values.get("settings", {}), values, values["rows"][row], values["columns"][column]])
        for column in values["columns"]
        for row in values["rows"]
    )
    return Table(
        name=name,
        about=values["about"],
        seeds=values["seeds"],
        ours=values.get("ours"),
        open=tuple(values.get("open", ())),
        notes=tuple(values.get("notes", ())),
        cells=cells,
        across=values.get("across", False),
        curves=values.get("curves", False),
    )


def _cell(table: str, row: str, column: str, layers: list[Mapping[str, Any]]) -> Cell:
    """What is said for a column comes before what is said for a row, and that before the table's own."""

    def said(key: str, default: Any) -> Any:
        return next((layer[key] for layer in reversed(layers) if key in layer), default)

    settings = {
        key: value
        for layer in (layers[0], *layers[2:])
        for key, value in layer.items()
        if key in Config.model_fields and key not in OWN_KEYS
    }
    measure = said("measure", "own")
    # What a client is judged by depends on the row: its personalised model, or the one that left its training.
    if measure == "client":
        measure = said("client", "local on own")
    study = said("study", "")
    if study:
        measure = f"{row} of {column}"
    mean, std = printed().get((table, row, column), (None, None))
    names = [layer.get("run") for layer in layers[2:]]
    return Cell(
        table=table,
        row=row,
        column=column,
        mean=mean,
        std=std,
        method=said("method", ""),
        set=said("set", {}),
        settings=settings,
        measure=measure,
        run=f"{slug(names[0] or row)}--{slug(names[1] or column)}",
        reason=said("missing", ""),
        study=study,
        share=said("share", Cell.share),
    )


def slug(text: str) -> str:
    """A name for a file."""
    plain = text.replace("ρ", "rho").replace("α", "alpha").replace("β", "beta").lower()
    return re.sub(r"[^a-z0-9.]+", "-", plain).strip("-")


def check() -> None:
    """Every printed number has a configuration; an error names the first that has none."""
    known = {(c.table, c.row, c.column) for t in tables().values() for c in t.cells}
    for key in printed():
        if key not in known:
            raise FedkinError(f"the printed number {' / '.join(key)} has no configuration")
