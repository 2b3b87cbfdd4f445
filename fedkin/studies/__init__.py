"""One file a study: a figure or table of a paper, made from fresh runs. The registry finds them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from fedkin.errors import unknown
from fedkin.fields import filled
from fedkin.loading import named_classes
from fedkin.studies.base import Found, Study

__all__ = ["Found", "Study", "make", "registry"]


@cache
def registry() -> dict[str, type[Study]]:
    """All studies by name."""
    return named_classes(__name__, Study)


def make(name: str, settings: Mapping[str, Any] | None = None) -> Study:
    """A study with its settings; text is read by its field's type."""
    if name not in registry():
        raise unknown("study", name, registry())
    return filled(registry()[name], settings or {}, "study", name, "setting")
