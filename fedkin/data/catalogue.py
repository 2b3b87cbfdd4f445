"""The datasets that fedkin knows by name.

Files lie under one data root: `$FEDKIN_DATA`, or else `data` in the user's cache folder.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from fedkin.data import fetch
from fedkin.data.dataset import Dataset
from fedkin.data.sources import cifar, digits, femnist, har, idx, images
from fedkin.data.sources.entry import Entry, Part
from fedkin.errors import FedkinError, unknown

_ALL = (*digits.ENTRIES, *idx.ENTRIES, *cifar.ENTRIES, *images.ENTRIES, *femnist.ENTRIES, *har.ENTRIES)
_ENTRIES = {each.name: each for each in _ALL}


def names() -> list[str]:
    """The names of all datasets, sorted."""
    return sorted(_ENTRIES)


def entry(name: str) -> Entry:
    """What is known of a dataset; an unknown name is an error that suggests the nearest one."""
    if name not in _ENTRIES:
        raise unknown("dataset", name, _ENTRIES)
    return _ENTRIES[name]


def data_root() -> Path:
    """The folder under which all datasets lie."""
    given = os.environ.get("FEDKIN_DATA")
    return Path(given).expanduser() if given else Path(platformdirs.user_cache_dir("fedkin")) / "data"


def is_ready(name: str, root: Path | None = None) -> bool:
    """Whether all files of a dataset are there, so that it loads without a download."""
    return not _lacking(entry(name), root or data_root())


def prepare(name: str, root: Path | None = None) -> None:
    """Download and verify what a dataset lacks; nothing happens if it is all there."""
    chosen, root = entry(name), root or data_root()
    lacking = _lacking(chosen, root)
    if not all(part.downloads for part, _ in lacking):
        raise _absence(chosen, root)  # before the rest is downloaded in vain
    for part, missing in lacking:
        wanted = [item for item in part.downloads if item.unpack or item.name.removesuffix(".gz") in missing]
        try:
            for item in wanted:
                fetch.fetch(item, root)
        except (FedkinError, OSError) as error:
            raise _absence(chosen, root, str(error)) from error
    if _lacking(chosen, root):
        raise _absence(chosen, root)


def load(name: str, root: Path | None = None, download: bool = True) -> Dataset:
    """Read a dataset, train and test files together; what is missing is downloaded first if allowed."""
    chosen, root = entry(name), root or data_root()
    if not is_ready(name, root):
        if not download:
            raise _absence(chosen, root, "downloading was not allowed")
        prepare(name, root)
    data = chosen.read(root)
    sizes = {len(data.x), len(data.y), len(data.is_test), len(data if data.owner is None else data.owner)}
    if len(sizes) != 1 or not 0 <= data.y.min(initial=0) <= data.y.max(initial=0) < len(data.classes):
        raise FedkinError(
            f"the files of {name!r} in {root} do not fit together: {len(data.x)} samples, "
            f"{len(data.y)} labels from {data.y.min(initial=0)} to {data.y.max(initial=0)} for "
            f"{len(data.classes)} classes"
        )
    return data


def _lacking(chosen: Entry, root: Path) -> list[tuple[Part, list[str]]]:
    return [(part, missing) for part in chosen.parts if (missing := part.missing(root))]


def _absence(chosen: Entry, root: Path, reason: str = "") -> FedkinError:
    """One sentence: which files are missing, where they are expected, and who has them."""
    clauses = [
        f"{', '.join(missing)} in {root / part.folder} ({part.by_hand + ', ' if part.by_hand else ''}from {part.home})"
        for part, missing in _lacking(chosen, root)
    ]
    tail = f"; {reason}" if reason else ""
    return FedkinError(f"dataset {chosen.name!r} lacks {'; '.join(clauses)}{tail}")
