"""Downloading what a publisher ships: checksummed, atomic, and told in one sentence when it fails."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from fedkin.errors import FedkinError

TIMEOUT = 10.0
"""Seconds to wait for a connection, and for each next piece of a file."""
CHUNK = 1 << 20


@dataclass(frozen=True)
class Download:
    """One file of a publisher and where it goes under the data root."""

    url: str
    folder: str
    """Where the file is kept or, for an archive, where it is unpacked."""
    checksum: str | None
    """`md5:...` or `sha256:...` as published; None where no published one is known."""
    unpack: bool = False

    @property
    def name(self) -> str:
        """The file's name, the last piece of its address."""
        return urllib.parse.unquote(PurePosixPath(urllib.parse.urlparse(self.url).path).name)


def fetch(item: Download, root: Path) -> None:
    """Download `item` into its folder under `root`; an archive is unpacked there and not kept."""
    folder = root / item.folder
    download(item.url, folder / item.name, item.checksum)
    if item.unpack:
        try:
            unpack(folder / item.name, folder)
        finally:
            (folder / item.name).unlink()


def download(url: str, target: Path, checksum: str | None) -> None:
    """Download `url` to `target`, which appears only once it is complete and its checksum is right."""
    algorithm, _, expected = (checksum or "sha256:").partition(":")
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with temporary(target) as part:
        try:
            with part.open("wb") as file:
                for chunk in _chunks(url):
                    digest.update(chunk)
                    file.write(chunk)
        except urllib.error.HTTPError as error:
            raise FedkinError(f"the server answered {error.code} {error.reason} for {url}") from error
        except (OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise FedkinError(f"{url} could not be downloaded: {reason or type(error).__name__}") from error
        if expected and digest.hexdigest() != expected:
            raise FedkinError(f"{url} has {algorithm} {digest.hexdigest()}, but {expected} is published: not kept")
        if not expected:
            _console().print(f"{target.name}: no published checksum; sha256 {digest.hexdigest()}")
        part.replace(target)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a .zip or .tar.* into `folder`, and any .zip that lies at its top level as well.

    A member that points outside the folder is refused, and then nothing of the archive is kept.
    """
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-") as scratch:
            _extract(archive, Path(scratch))
            for inner in sorted(Path(scratch).glob("*.zip")):
                _extract(inner, Path(scratch))
                inner.unlink()
            _merge(Path(scratch), folder)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise FedkinError(f"{archive} cannot be unpacked: {error}") from error


def _chunks(url: str) -> Iterator[bytes]:
    """The file's bytes, piece by piece under a progress bar; an early end is an error."""
    request = urllib.request.Request(url, headers={"User-Agent": "fedkin"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response, _progress() as progress:
        length = response.headers.get("Content-Length")
        task = progress.add_task(PurePosixPath(url).name, total=int(length) if length else None)
        received = 0
        while chunk := response.read(CHUNK):
            received += len(chunk)
            progress.advance(task, len(chunk))
            yield chunk
    if length and received != int(length):
        raise OSError(f"the connection ended after {received} of {length} bytes")


def _extract(archive: Path, folder: Path) -> None:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as bundle:
            for member in bundle.namelist():
                path = PurePosixPath(member.replace("\\", "/"))
                if path.is_absolute() or ".." in path.parts:
                    raise FedkinError(f"{archive} holds {member!r}, which points outside its folder: refused")
            bundle.extractall(folder)
        return
    with tarfile.open(archive) as bundle:
        try:
            bundle.extractall(folder, filter="data")
        except tarfile.FilterError as error:
            raise FedkinError(f"{archive} holds a member that is not safe to unpack: {error}") from error


def _merge(source: Path, target: Path) -> None:
    """Move what `source` holds into `target`, folder by folder; files that exist are replaced."""
    for child in source.iterdir():
        goal = target / child.name
        if child.is_dir() and goal.is_dir():
            _merge(child, goal)
        else:
            shutil.move(child, goal)


@contextmanager
def temporary(target: Path) -> Iterator[Path]:
    """A .part file beside `target`, of this process alone, that is gone after the block."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        yield part
    finally:
        part.unlink(missing_ok=True)


def _console() -> Console:
    return Console(stderr=True, soft_wrap=True)


def _progress() -> Progress:
    console = _console()
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)
