"""What there is to know of every method, for `fedkin methods` and the documentation."""

from __future__ import annotations

import inspect
import sys
from dataclasses import fields
from typing import Any

from fedkin.costs import ROUNDS, cost
from fedkin.methods import registry


def facts() -> list[dict[str, Any]]:
    """A row a method; what it costs is measured."""
    rows = []
    for name, cls in registry().items():
        measured = cost(name)
        rows.append(
            {
                "name": name,
                "paper": cls.paper,
                "personal": cls.personal,
                "judged": f"{cls.judged.model} model {cls.judged.moment}",
                "sends": ", ".join(measured.sends) or "nothing",
                "bytes down": round(measured.down, 2),
                "bytes up": round(measured.up, 2),
                "gradient steps": round(measured.steps, 2),
                "settings": {field.name: field.default for field in fields(cls)},
            }
        )
    return rows


def markdown() -> str:
    """The page of methods."""
    rows = facts()
    lines = [
        "# Methods",
        "",
        "This page is made from the code by `make docs`. Bytes and gradient steps are multiples of FedAvg's, measured "
        f"over {ROUNDS} rounds in which everybody takes part, with default hyper-parameters.",
        "",
        "| name | personal | clients send | bytes down | bytes up | gradient steps |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = (f"[`{row['name']}`](#{row['name']})", row["personal"], row["sends"])
        numbers = (row["bytes down"], row["bytes up"], row["gradient steps"])
        lines.append("| " + " | ".join([*cells, *(f"{n:.2f}" for n in numbers)]) + " |")
    for row in rows:
        cls = registry()[row["name"]]
        text = inspect.getdoc(sys.modules[cls.__module__]) or ""
        settings = ", ".join(f"`{key}={value}`" for key, value in row["settings"].items()) or "none"
        lines += ["", f"## {row['name']}", "", "```text", text, "```", ""]
        lines += [f"Judged by: the {row['judged']}. Hyper-parameters: {settings}."]
    return "\n".join(lines) + "\n"
