"""What fedkin knows of a dataset before it reads it: facts, files, and the function that reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fedkin.data.dataset import Dataset
from fedkin.data.fetch import Download
from fedkin.errors import FedkinError


@dataclass(frozen=True)
class Part:
    """Files that a dataset cannot do without and that arrive together."""

    folder: str
    """Their folder under the data root."""
    files: tuple[str, ...]
    """Their names (or patterns); each may also be gzipped."""
    home: str
    """The publisher's page."""
    downloads: tuple[Download, ...] = ()
    by_hand: str = ""
    """What a person has to do where the publisher has no direct link."""
    compact: str = ""
    """One file in `folder` that is accepted in place of all the others."""
    elsewhere: tuple[str, ...] = ()
    """Other folders where the files may lie already."""

    def missing(self, root: Path) -> list[str]:
        """The names of the files that are nowhere to be found."""
        if self.compact and (root / self.folder / self.compact).is_file():
            return []
        folders = (self.folder, *self.elsewhere)
        return [name for name in self.files if find(root, folders, name) is None]


@dataclass(frozen=True)
class Entry:
    """One dataset of the catalogue."""

    name: str
    description: str
    classes: int
    samples: int | None
    """Train and test files together; None where it depends on the files."""
    shape: tuple[int, ...]
    """Of one sample."""
    source: str
    """Whom to cite."""
    home: str
    """The publisher's page."""
    licence: str
    read: Callable[[Path], Dataset] = field(repr=False)
    """From the data root to the dataset."""
    parts: tuple[Part, ...] = field(default=(), repr=False)
    clients: str = ""
    """Its natural clients, if the data have any."""


def find(root: Path, folders: Iterable[str], name: str) -> Path | None:
    """The first file of that name (or pattern), plain or gzipped, in the given folders under `root`."""
    for folder in folders:
        for pattern in (name, f"{name}.gz"):
            for path in sorted((root / folder).glob(pattern)):
                return path
    return None


def need(root: Path, folders: Iterable[str], name: str) -> Path:
    """Like `find`, but a missing file is an error."""
    folders = list(folders)
    path = find(root, folders, name)
    if path is None:
        raise FedkinError(f"there is no {name} in {root / folders[0]}")
    return path
