"""The settings of the papers' experiments, by name."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from fedkin.errors import unknown


@dataclass(frozen=True)
class Preset:
    """Settings of a run, and hyper-parameters by method."""

    about: str
    settings: dict[str, Any]
    set: dict[str, dict[str, Any]]


@cache
def presets() -> dict[str, Preset]:
    """All presets by name."""
    read = tomllib.loads((files("fedkin") / "presets.toml").read_text())
    return {
        name: Preset(table.pop("about"), {k: v for k, v in table.items() if k != "set"}, table.get("set", {}))
        for name, table in read.items()
    }


def preset(name: str) -> Preset:
    """A preset by its name."""
    if name not in presets():
        raise unknown("preset", name, presets())
    return presets()[name]
