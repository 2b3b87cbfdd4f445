"""Files that are either whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

from fedkin.errors import FedkinError


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
        part.unlink(missing_ok=True)
        raise cannot_write(path, error) from error


def append_line(path: Path, line: str) -> None:
    """Add one line to a file."""
    try:
        with path.open("a") as file:
            file.write(line + "\n")
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> FedkinError:
    """The sentence for a full disk, a read-only folder and the like."""
    return FedkinError(
        f"cannot write {path}: {error.strerror or error}; what was written before is whole, and once there "
        f"is room the run goes on with: fedkin run --resume {path.parent}"
    )
