"""Files that are either whole or not there."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedkin.errors import FedkinError


class CannotWrite(FedkinError):
    """A full disk, a read-only folder and the like."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"cannot write {path}: {error.strerror or error}")


@contextmanager
def resumable(run: Path) -> Iterator[None]:
    """Where a file of a run cannot be written, say how to go on once it can."""
    try:
        yield
    except CannotWrite as error:
        raise FedkinError(
            f"{error}; what was written before is whole, and once there is room the run goes on with: "
            f"fedkin run --resume {shlex.quote(str(run))}"
        ) from error


def make_folder(path: Path) -> None:
    """Make a folder and those above it, unless it is there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotWrite(path, error) from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under another name, force it to disk and rename it: readers never see half of it."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise CannotWrite(path, error) from error


def append_line(path: Path, line: str) -> None:
    """Add one line to a file."""
    try:
        with path.open("a") as file:
            file.write(line + "\n")
    except OSError as error:
        raise CannotWrite(path, error) from error
