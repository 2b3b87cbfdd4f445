"""What comes out of a run: its history and every client's model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import safetensors.numpy
import torch
from safetensors import SafetensorError
from torch import Tensor

from fedkin.config import Config
from fedkin.errors import FedkinError
from fedkin.method import Mixing
from fedkin.runs.mixing import MixingRecord
from fedkin.scores import UNION, Score

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Ended(NamedTuple):
    """A task that ended: who trained when, and what became of it."""

    client: int
    sent: int
    """The round in which it was sent."""
    start: float
    end: float
    """In units of the schedule: rounds or seconds."""
    fate: str
    """`in time`, `late` (used as it came), `leapt`, `dropped` (not used), or `lost` with its client."""


@dataclass(frozen=True)
class Round:
    """What happened in one round."""

    round: int
    participants: list[int]
    steps: int
    """Gradient steps taken by all participants."""
    train_loss: float | None
    """Mean over the participants; None if nobody took a step."""
    bytes_up: int
    bytes_down: int
    """Bytes sent by clients and by the server, counted from the messages."""
    scores: list[Score]
    """What was judged after this round: the headline first; empty in a round without evaluation."""
    time: float | None = None
    """Virtual time when the server acted; None in synchronous rounds without a clock."""
    tasks: list[Ended] = field(default_factory=list)
    """Tasks that ended in this round, in order of time; empty without a clock."""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {**vars(self), "scores": [score.to_json() for score in self.scores]}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Round:
        """The inverse of `to_json`."""
        scores = [Score.from_json(score) for score in value["scores"]]
        return Round(**{**value, "scores": scores, "tasks": [Ended(*task) for task in value.get("tasks", ())]})


@dataclass(frozen=True)
class Models:
    """The clients' final models. Clients that share a model share a row."""

    rows: Tensor
    """[M, D] different models."""
    row_of: list[int]
    """[N] client to its row."""
    beside: dict[int, tuple[str, Tensor]] = field(default_factory=dict)
    """Client to a second network, by name and numbers, whose class scores are added to its model's."""

    @staticmethod
    def none() -> Models:
        """Of a run that is not finished, or whose models are with its clients."""
        return Models(torch.zeros(0, 0), [])

    def __len__(self) -> int:
        return len(self.row_of)

    def __getitem__(self, client: int) -> Tensor:
        """The model [D] of one client."""
        if not len(self):
            raise FedkinError("the models of this run are on its clients' machines, each with its owner")
        if not 0 <= client < len(self):
            raise FedkinError(f"there is no client {client}: the run has clients 0 to {len(self) - 1}")
        return self.rows[self.row_of[client]]

    def to_bytes(self) -> bytes:
        """As a safetensors file."""
        arrays = {"rows": self.rows.numpy(), "row_of": np.array(self.row_of, dtype=np.int64)}
        second = {f"beside/{i}/{name}": numbers.numpy() for i, (name, numbers) in self.beside.items()}
        return safetensors.numpy.save(arrays | second)

    @staticmethod
    def from_bytes(content: bytes, name: str) -> Models:
        """The inverse of `to_bytes`."""
        try:
            arrays = safetensors.numpy.load(content)
            beside = {}
            for key in arrays:
                if key.startswith("beside/"):
                    _, client, network = key.split("/", 2)
                    beside[int(client)] = (network, torch.from_numpy(arrays[key]))
            return Models(torch.from_numpy(arrays["rows"]), arrays["row_of"].tolist(), beside)
        except (SafetensorError, KeyError) as error:
            raise FedkinError(f"{name} is damaged: {error}") from None


@dataclass(frozen=True)
class Result:
    """A finished run."""

    config: Config
    method: str
    history: list[Round]
    models: Models
    client_names: tuple[str, ...]
    seconds: float
    folder: Path | None = None
    record: MixingRecord | None = None
    label_counts: list[list[int]] | None = None
    """[N, K] training samples of each class that each client has; None where only the clients know."""

    def mixing(self, round: int) -> Mixing:
        """Who learnt from whom: for each block of columns a matrix [N, N] whose row i makes up client i's model."""
        if self.record is None:
            raise FedkinError("this result has no record of its mixing")
        return self.record.at(round)

    @property
    def finetuned(self) -> Score | None:
        """The models after fine-tuning, if that was asked for."""
        return next((s for s in self.evaluated[-1].scores if s.moment == "after the last round"), None)

    @property
    def evaluated(self) -> list[Round]:
        """The rounds that were judged."""
        return [round for round in self.history if round.scores]

    @property
    def score(self) -> Score:
        """The headline: what the method is judged by, after the last round."""
        return self.evaluated[-1].scores[0]

    @property
    def accuracy(self) -> float:
        """The headline accuracy, 0 to 1: the last round, mean over clients."""
        return self.score.headline

    @property
    def best(self) -> tuple[int, float]:
        """The best round and its accuracy. Chosen on the test sets, so not a fair headline."""
        round = max(self.evaluated, key=lambda r: (r.scores[0].headline, -r.round))
        return round.round, round.scores[0].headline

    @property
    def global_score(self) -> Score | None:
        """The global model after the last round, where the method has one."""
        return next((s for s in self.evaluated[-1].scores[1:] if (s.model, s.data) == ("global", UNION)), None)

    def judged(self, model: str, data: str) -> Score | None:
        """One of the things that were judged after the last round, by its model and data."""
        return next((s for s in self.evaluated[-1].scores if (s.model, s.data) == (model, data)), None)

    def summary(self) -> dict[str, Any]:
        """Plain values, as `--json` prints them."""
        best_round, best = self.best
        return {
            "method": self.method,
            "accuracy": self.accuracy,
            "accuracy_is": self.score.describe(),
            "accuracy_sample_weighted": self.score.weighted,
            "best_accuracy": best,
            "best_round": best_round,
            "global_accuracy": self.global_score.headline if self.global_score else None,
            "also": {s.describe(): s.headline for s in self.evaluated[-1].scores[1:]},
            "finetuned_accuracy": self.finetuned.headline if self.finetuned else None,
            "per_client_accuracy": dict(zip(self.client_names, self.score.clients, strict=True)),
            "rounds": len(self.history),
            "seconds": round(self.seconds, 3),
            "bytes_up": sum(r.bytes_up for r in self.history),
            "bytes_down": sum(r.bytes_down for r in self.history),
            "folder": str(self.folder) if self.folder else None,
            "config": self.config.model_dump(),
        }

    def plot(self) -> Figure:
        """Accuracy over rounds and accuracy per client, as a matplotlib figure."""
        from fedkin.report.figures import compare

        return compare([self])
