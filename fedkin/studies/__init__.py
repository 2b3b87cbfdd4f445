"""One file a study: a figure or table of a paper, made from fresh runs. The registry finds them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Any

from fedkin.errors import unknown
from fedkin.fields import filled
from fedkin.studies.base import Found, Study

__all__ = ["Found", "Study", "make", "registry"]


@cache
def registry() -> dict[str, type[Study]]:
    """All studies by name."""
    found: dict[str, type[Study]] = {}
    for module in pkgutil.iter_modules(__path__):
        names = vars(importlib.import_module(f"{__name__}.{module.name}"))
        found |= {
            thing.name: thing
            for thing in names.values()
            if isinstance(thing, type) and issubclass(thing, Study) and hasattr(thing, "name")
        }
    return dict(sorted(found.items()))


def make(name: str, settings: Mapping[str, Any] | None = None) -> Study:
    """A study with its settings; text is read by its field's type."""
    if name not in registry():
        raise unknown("study", name, registry())
    return filled(registry()[name], settings or {}, name, "setting")
