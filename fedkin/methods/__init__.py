"""One file a method. The registry finds them; nothing needs to be listed by hand."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from fedkin.errors import FedkinError, unknown
from fedkin.fields import filled
from fedkin.loading import named_classes, object_from_file
from fedkin.method import Method


@cache
def registry() -> dict[str, type[Method]]:
    """All methods by name: ours, and those of installed packages (entry point `fedkin.methods`)."""
    found = named_classes(__name__, Method)
    for entry in entry_points(group="fedkin.methods"):
        found[entry.name] = entry.load()
    return dict(sorted(found.items()))


def method_class(name: str) -> type[Method]:
    """A method by its name, or from a file of the user's: `path/to/mine.py:MyMethod`."""
    if ".py" in name:
        thing = object_from_file(name, Method)
        if not (isinstance(thing, type) and issubclass(thing, Method)):
            raise FedkinError(f"{name} is not a method: expected a subclass of fedkin.Method")
        return thing
    if name not in registry():
        raise unknown("method", name, registry())
    return registry()[name]


def make(name: str, settings: Mapping[str, Any] | None = None) -> Method:
    """A method with hyper-parameters. Text values, as from a command line, are read by their field's type."""
    return filled(method_class(name), settings or {}, "method", name, "hyper-parameter")
