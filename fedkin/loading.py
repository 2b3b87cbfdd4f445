"""Classes that are found by name: in a user's own file, `path/to/file.py:Name`, or in a package of ours."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import cloudpickle

from fedkin.errors import FedkinError

T = TypeVar("T")


def object_from_file(reference: str, base: type) -> Any:
    """What `path/to/file.py:Name` names; `base` says what kind of thing is looked for in the file."""
    file, _, name = reference.rpartition(":")
    if reference.endswith(".py"):
        raise FedkinError(f"{reference} names a file but no class in it: write {reference}:ClassName")
    module = _import(Path(file).expanduser())
    if not hasattr(module, name):
        found = [key for key, value in vars(module).items() if _is_own(value, base, module)]
        raise FedkinError(f"{file} has no {name!r}: of the right kind it has {', '.join(found) or 'nothing'}")
    return getattr(module, name)


def _is_own(value: object, base: type, module: ModuleType) -> bool:
    return isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__


def _import(file: Path) -> ModuleType:
    """Run one Python file as a module of its own, once; its folder does not become importable."""
    if not file.is_file():
        raise FedkinError(f"there is no file {file}")
    name = "fedkin_file" + re.sub(r"\W", "_", str(file.resolve()))
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(file)
    sys.modules[name] = module  # dataclasses and typing look their module up here
    try:
        exec(compile(file.read_bytes(), str(file), "exec", dont_inherit=True), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        raise FedkinError(f"{file} cannot be imported: {what}") from error
    cloudpickle.register_pickle_by_value(module)  # other processes cannot import it by this name
    return module


def named_classes(package: str, base: type[T]) -> dict[str, type[T]]:
    """All classes under a base in the modules of a package that have a `name`, by that."""
    found: dict[str, type[T]] = {}
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        things = vars(importlib.import_module(f"{package}.{module.name}")).values()
        classes = [thing for thing in things if isinstance(thing, type) and issubclass(thing, base)]
        found |= {vars(cls)["name"]: cls for cls in classes if "name" in vars(cls)}
    return dict(sorted(found.items()))
