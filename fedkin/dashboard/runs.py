"""The runs under a folder, as a page shows them. Nothing is written, and nothing outside the folder is read.

What was read is kept until its files change. A list of hundreds of runs needs the last lines of their metrics only;
whole runs are read when somebody looks at them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shlex
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import RLock
from typing import Any

from fedkin import api
from fedkin.errors import FedkinError
from fedkin.result import Result
from fedkin.runs.folder import CONFIG, EVENTS, METRICS, RESULT, STOPPED, TERMS, TIMINGS, RunFolder
from fedkin.scores import Score

MIXING = "mixing"
FILES = (CONFIG, METRICS, TIMINGS, RESULT, EVENTS, MIXING)
"""What is read of a run folder."""
QUIET = 60.0
"""Seconds without a new round in which any run counts as running; slow ones get five of their own rounds."""
LONG = 10
"""After so many times of that an idle run counts as stopped."""
KEPT = 32
"""Whole runs that are kept in memory."""
LINES = 500
"""Events that are shown, the newest."""

Stamp = tuple[tuple[int, int], ...]


class NotThere(FedkinError):
    """No such run under the folder."""


@dataclass(frozen=True)
class Summary:
    """A line in the list of runs: all of it that does not depend on the time of the day."""

    id: str
    version: str
    """Changes when anything in the run's folder does."""
    changed: float
    """When the last round ended, or the run began; in seconds since 1970."""
    wrong: str | None = None
    """What is wrong with its folder."""
    finished: bool = False
    method: str | None = None
    data: str | None = None
    seed: int | None = None
    clients: int | None = None
    round: int = 0
    rounds: int | None = None
    accuracy: float | None = None
    usual: float = QUIET
    """Seconds without a new round that are no surprise."""
    real: bool = False
    """A run of a real federation."""
    stopped: bool = False
    """It wrote down why, and has not been resumed."""

    def state(self, now: float) -> str:
        """`finished`, `running`, `idle`, `stopped` or `damaged`."""
        if self.wrong or self.finished:
            return "damaged" if self.wrong else "finished"
        if self.stopped:
            return "stopped"
        quiet = now - self.changed
        return "running" if quiet < self.usual else "idle" if quiet < LONG * self.usual else "stopped"


@dataclass(frozen=True)
class Whole:
    """All of a run that somebody looks at."""

    result: Result
    about: dict[str, Any]
    wrong: str | None


class Runs:
    """All runs under a folder, by their paths relative to it."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise FedkinError(f"{root} is not a folder: one with runs in it was expected")
        self.root = root.resolve()
        self._lock = RLock()
        self._found: dict[str, Path] = {}
        self._search_again = 0.0
        self._summaries: dict[str, tuple[Stamp, Summary]] = {}
        self._whole: OrderedDict[str, tuple[str, Whole]] = OrderedDict()

    def summaries(self) -> list[Summary]:
        """Every run, those with the newest rounds first."""
        with self._lock:
            self._search()
            return sorted((self.summary(id) for id in self._found), key=lambda s: (-s.changed, s.id))

    def summary(self, id: str) -> Summary:
        """One run in a line; whatever is wrong with its folder is in it."""
        with self._lock:
            path = self._path(id)
            stamp = _stamp(path)
            if id not in self._summaries or self._summaries[id][0] != stamp:
                self._summaries[id] = stamp, self._read(id, path, stamp)
            return self._summaries[id][1]

    def whole(self, id: str) -> Whole:
        """All of one run; refused with what is wrong if that cannot be read."""
        with self._lock:
            line = self.summary(id)
            if id not in self._whole or self._whole[id][0] != line.version:
                self._whole[id] = line.version, self._load(id, line)
            self._whole.move_to_end(id)
            while len(self._whole) > KEPT:
                self._whole.popitem(last=False)
            return self._whole[id][1]

    def events(self, id: str) -> list[dict[str, str]]:
        """What was out of the ordinary: why it stopped, who was left out or asked again; the newest first."""
        with self._lock:
            path = self._path(id)
        self._refuse_links(path)
        return list(islice(_events(path), LINES))

    def how_to_go_on(self, id: str) -> str:
        """The command that goes on with a run that was stopped."""
        with self._lock:
            path, run = self._path(id), self.summary(id)
        if run.real:
            return f"fedkin start {shlex.quote(str(path.parent.parent))} --resume {shlex.quote(path.name)}"
        return f"fedkin run --resume {shlex.quote(str(path))}"

    def _search(self) -> None:
        began = time.monotonic()
        if began < self._search_again:
            return
        self._found = dict(self._run_folders())
        self._summaries = {id: kept for id, kept in self._summaries.items() if id in self._found}
        # A folder that takes long to search is searched less often.
        self._search_again = time.monotonic() + max(1.0, 10 * (time.monotonic() - began))

    def _run_folders(self) -> Iterator[tuple[str, Path]]:
        # Links to folders are not followed, so that nothing is found outside.
        for folder, inner, files in os.walk(self.root):
            if CONFIG in files or METRICS in files:
                inner.clear()
                yield Path(folder).relative_to(self.root).as_posix(), Path(folder)
            inner[:] = [name for name in inner if not name.startswith(".")]

    def _path(self, id: str) -> Path:
        """Only what a search has found is a run, so no path that a browser sends is ever opened."""
        if id not in self._found:
            self._search()
        if id not in self._found:
            raise NotThere(f"there is no run {id!r} under {self.root}")
        return self._found[id]

    def _refuse_links(self, path: Path) -> None:
        """Refuse a run folder in which something leads out of the folder that is shown."""
        mixing = path / MIXING
        inside = mixing.glob("*") if mixing.is_dir() and not mixing.is_symlink() else ()
        for file in (path, *(path / name for name in FILES), *inside):
            if not file.resolve().is_relative_to(self.root):
                raise FedkinError(
                    f"{file.relative_to(self.root)} leads out of the folder that is shown, so it is not read"
                )

    def _read(self, id: str, path: Path, stamp: Stamp) -> Summary:
        version = hashlib.sha256(repr(stamp).encode()).hexdigest()[:16]
        changed = max(stamp[FILES.index(METRICS)][0], stamp[FILES.index(CONFIG)][0]) / 1e9
        try:
            self._refuse_links(path)
            run = RunFolder.open(path)
            about, config = run.about, run.config
            line: dict[str, Any] = {
                "method": config.method,
                "data": "on its clients" if TERMS in about else config.data_name,
                "seed": config.seed,
                "clients": len(about["clients"]),
                "rounds": config.rounds,
                "real": TERMS in about,
                "finished": (path / RESULT).is_file(),
                "stopped": next(_events(path), {}).get("event") == STOPPED,
            }
            rounds = _from_the_end(path / METRICS)
            newest = next(rounds, None)
            if newest is not None:
                line["round"] = newest["round"]
                judged = newest if newest["scores"] else next((r for r in rounds if r["scores"]), None)
                accuracy = Score.from_json(judged["scores"][0]).headline if judged else math.nan
                line["accuracy"] = None if math.isnan(accuracy) else accuracy
            took = next(_from_the_end(path / TIMINGS), None)
            if took is not None:
                line["usual"] = max(QUIET, 5.0 * (took["train"] + took["evaluate"]))
            return Summary(id, version, changed, **line)
        except Exception as error:  # A strange file may raise anything; the other runs are still to be seen.
            return Summary(id, version, changed, wrong=self._why(error))

    def _load(self, id: str, line: Summary) -> Whole:
        path = self._path(id)
        if line.wrong:
            raise FedkinError(line.wrong)
        try:
            result, about = api.load(path, finished=False), RunFolder.open(path).about
        except Exception as error:
            raise FedkinError(self._why(error)) from error
        lost = line.round - len(result.history)
        wrong = (
            f"{METRICS} is damaged after round {len(result.history)}: {lost} rounds are not shown" if lost > 0 else None
        )
        return Whole(result, about, wrong)

    def _why(self, error: Exception) -> str:
        """What is wrong, with paths as the page shows them."""
        known = isinstance(error, FedkinError | OSError)
        return (str(error) if known else f"damaged: {type(error).__name__}: {error}").replace(f"{self.root}/", "")


def _stamp(path: Path) -> Stamp:
    """(mtime, size) of each file; zeros where there is none."""

    def of(name: str) -> tuple[int, int]:
        try:
            found = (path / name).stat()
        except OSError:
            return 0, 0
        return found.st_mtime_ns, found.st_size

    return tuple(of(name) for name in FILES)


def _events(run: Path) -> Iterator[dict[str, str]]:
    """What was out of the ordinary in a run, the newest first; lines that cannot be read are left out."""
    path = run / EVENTS
    for text in reversed(path.read_text("utf-8", "replace").splitlines() if path.is_file() else []):
        try:
            event = json.loads(text)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield {name: str(event.get(name, "")) for name in ("time", "client", "event", "why")}


def _from_the_end(path: Path) -> Iterator[dict[str, Any]]:
    """Lines of metrics or timings, the last first; one that is still being written is left out."""
    lines = path.read_bytes().split(b"\n") if path.is_file() else []
    for number in range(len(lines) - 1, 0, -1):
        try:
            line = json.loads(lines[number - 1])
        except ValueError:
            raise FedkinError(f"line {number} of {path.name} is damaged: it is not valid JSON") from None
        if not isinstance(line, dict) or line.get("round") != number:
            raise FedkinError(f"line {number} of {path.name} is damaged: it should be about round {number}")
        yield line
