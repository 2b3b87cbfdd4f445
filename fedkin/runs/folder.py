"""A run folder: all that a run was given and all that came out of it.

    config.json          every setting, the versions, a fingerprint of the data
    metrics.jsonl        one line a round: scores per client, bytes, participants
    timings.jsonl        one line a round: seconds; apart, because they differ from run to run
    checkpoints/         where to resume
    models.safetensors   the final personalised models
    result.json          the summary that `--json` prints
    events.jsonl         what was out of the ordinary, if anything was

Metrics are JSON lines: a run that is killed leaves whole lines behind, which a Parquet file
(unreadable without its footer) would not, and they can be read while the run goes on.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

from fedkin.config import Config
from fedkin.errors import FedkinError
from fedkin.result import Models, Round
from fedkin.runs import checkpoint
from fedkin.runs.checkpoint import Checkpoint
from fedkin.runs.files import append_line, make_folder, resumable, write_whole

CONFIG, METRICS, TIMINGS, MODELS, RESULT = (
    "config.json",
    "metrics.jsonl",
    "timings.jsonl",
    "models.safetensors",
    "result.json",
)
ABOUT = {"config", "data_fingerprint", "shape", "pixels", "mean", "std", "classes", "clients"}
LINES = {METRICS: {field.name for field in fields(Round)}, TIMINGS: {"round", "train", "evaluate", "local"}}
"""What must be in config.json, and in a line of the others."""
EVENTS = "events.jsonl"
"""What was out of the ordinary: why a run stopped; who was left out of a real federation or asked again."""
STOPPED = "stopped"
"""The event of a run that ended before its last round."""
TERMS = "terms"
OPTIONAL = {"time", "tasks", "local"}
"""What a line may lack: runs without a clock have no times and tasks, older ones no processor time."""


def refuse_full(path: Path) -> None:
    """Nothing is overwritten: a folder to write to must be new or empty."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        hint = f", or go on with the run in it by --resume {path}" if (path / CONFIG).exists() else ""
        raise FedkinError(f"{path} is not empty: choose another folder{hint}")


class RunFolder:
    """A folder that holds one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @staticmethod
    def create(path: Path, config: Config, about: Mapping[str, Any]) -> RunFolder:
        """A new run folder; refused if there is anything in it already."""
        refuse_full(path)
        folder = RunFolder(path)
        make_folder(path)
        versions = {name: version(name) for name in ("fedkin", "torch", "numpy")}
        versions["python"] = platform.python_version()
        folder._json(CONFIG, {"config": config.model_dump(), "versions": versions, **about})
        return folder

    @staticmethod
    def open(path: Path) -> RunFolder:
        """An existing run folder."""
        if not (path / CONFIG).is_file():
            raise FedkinError(f"{path} is not a run folder: it has no {CONFIG}")
        return RunFolder(path)

    @property
    def about(self) -> dict[str, Any]:
        """What config.json says beside the settings: versions, data, classes, names of clients."""
        try:
            content: dict[str, Any] = json.loads((self.path / CONFIG).read_text())
        except ValueError:
            raise FedkinError(f"{self.path / CONFIG} is damaged: it is not valid JSON") from None
        if not isinstance(content, dict) or not content.keys() >= ABOUT:
            raise FedkinError(f"{self.path / CONFIG} is damaged: it needs {', '.join(sorted(ABOUT))}")
        return content

    @property
    def is_real(self) -> bool:
        """Whether this is a run of a real federation, whose parties have agreed on terms."""
        return TERMS in self.about

    @property
    def config(self) -> Config:
        """The settings of the run."""
        values = self.about["config"]
        try:
            return Config.of(dict(values))
        except (FedkinError, TypeError, ValueError) as error:
            raise FedkinError(f"{self.path / CONFIG} is damaged: {error}") from None

    def add(self, round: Round, seconds: Mapping[str, float]) -> None:
        """Write down one round."""
        with resumable(self.path):
            append_line(self.path / METRICS, json.dumps(round.to_json()))
            append_line(self.path / TIMINGS, json.dumps({"round": round.round, **seconds}))

    def note(self, event: str, why: str, client: str = "") -> None:
        """Write down what was out of the ordinary."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        append_line(self.path / EVENTS, json.dumps({"time": now, "client": client, "event": event, "why": why[:500]}))

    @contextmanager
    def telling_why(self) -> Iterator[None]:
        """Write down what ends a run before its last round, and that it goes on after that."""
        try:
            if (self.path / EVENTS).exists():
                self.note("resumed", "goes on after its last checkpoint")
            yield
        except BaseException as error:
            why = "Ctrl-C" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
            with suppress(FedkinError, OSError):  # There may be no room left to write it to.
                self.note(STOPPED, why)
            raise

    def history(self) -> list[Round]:
        """The rounds so far; a last line that was cut short is left out."""
        return [Round.from_json(line) for line in self._lines(METRICS)]

    def seconds(self) -> float:
        """Wall time of all rounds so far."""
        return math.fsum(line["train"] + line["evaluate"] for line in self._lines(TIMINGS))

    def seconds_per_sample(self) -> float:
        """Processor time of local work by a client's samples, the mean over participants and rounds so far."""
        known = [line["local"] for line in self._lines(TIMINGS) if "local" in line]
        return fmean(known) if known else 0.0

    def checkpoint(self, point: Checkpoint) -> None:
        """Make it possible to resume here."""
        with resumable(self.path):
            checkpoint.save(self.path / "checkpoints", point)

    def rewind(self) -> tuple[Checkpoint | None, list[str]]:
        """Go back to the newest whole checkpoint and drop what was written after it."""
        point, complaints = checkpoint.newest(self.path / "checkpoints")
        last = point.round if point else 0
        kept = {name: [line for line in self._lines(name) if line["round"] <= last] for name in LINES}
        if len(kept[METRICS]) != last:
            raise FedkinError(f"{self.path / METRICS} lacks rounds that its checkpoint counts: it was altered")
        with resumable(self.path):
            for name, lines in kept.items():
                write_whole(self.path / name, "".join(json.dumps(line) + "\n" for line in lines).encode())
        return point, complaints

    def finish(self, models: Models | None, summary: Mapping[str, Any]) -> None:
        """Write the final models, unless they are on the clients of a real federation, and the summary."""
        with resumable(self.path):
            if models is not None:
                write_whole(self.path / MODELS, models.to_bytes())
            self._json(RESULT, summary)

    def models(self) -> Models:
        """The final models of a finished run; those of a real federation are not here, but with its clients."""
        if self.is_real:
            return Models.none()
        if not (self.path / MODELS).is_file():
            raise FedkinError(f"{self.path} has no final models yet: finish it with --resume {self.path}")
        return Models.from_bytes((self.path / MODELS).read_bytes(), str(self.path / MODELS))

    def _json(self, name: str, content: Mapping[str, Any]) -> None:
        write_whole(self.path / name, (json.dumps(content, indent=1) + "\n").encode())

    def _lines(self, name: str) -> list[dict[str, Any]]:
        path = self.path / name
        lines = []
        for text in path.read_text().splitlines() if path.exists() else ():
            try:
                line = json.loads(text)
            except ValueError:
                break
            if (
                not isinstance(line, dict)
                or not LINES[name] - OPTIONAL <= line.keys() <= LINES[name]
                or type(line["round"]) is not int
            ):
                break
            lines.append(line)
        return lines
