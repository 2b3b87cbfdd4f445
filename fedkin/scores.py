"""What a number means: every accuracy says which model, when, on whose data, and averaged how."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedkin.engine.worker import Scored

OWN, UNION = "each client's own test set", "the union of the clients' test sets"


@dataclass(frozen=True)
class Score:
    """One kind of model, judged on every client's own test samples. Per-client numbers are kept."""

    model: str
    """`personalised`, `global`, or `personalised after fine-tuning`."""
    moment: str
    """`after aggregation` or `after local training`."""
    data: str
    """Whose test samples."""
    correct: list[int]
    total: list[int]
    loss: list[float]
    """[N] per client: right answers, samples, and summed loss."""

    @property
    def clients(self) -> list[float]:
        """[N] accuracy of each client, 0 to 1; NaN where a client of a real federation could not be asked."""
        return [c / t if t else math.nan for c, t in zip(self.correct, self.total, strict=True)]

    @property
    def mean(self) -> float:
        """Plain mean over clients: every client counts the same."""
        asked = [accuracy for accuracy, t in zip(self.clients, self.total, strict=True) if t]
        return math.fsum(asked) / len(asked) if asked else math.nan

    @property
    def weighted(self) -> float:
        """Sample-weighted mean: every test sample counts the same."""
        return sum(self.correct) / sum(self.total) if any(self.total) else math.nan

    @property
    def headline(self) -> float:
        """The mean that goes with the data: plain for own test sets, by sample for the union."""
        return self.weighted if self.data == UNION else self.mean

    def describe(self) -> str:
        """One line that leaves no doubt."""
        how = "by sample" if self.data == UNION else "mean over clients"
        return f"{self.model} model {self.moment}, on {self.data}, {how}"

    @staticmethod
    def of(model: str, moment: str, data: str, scored: Sequence[Scored]) -> Score:
        """From what each client scored."""
        correct, total, loss = ([getattr(s, name) for s in scored] for name in ("correct", "total", "loss"))
        return Score(model, moment, data, correct, total, loss)

    def to_json(self) -> dict[str, Any]:
        """With the averages spelled out beside the per-client numbers."""
        return {**asdict(self), "mean_over_clients": self.mean, "sample_weighted": self.weighted}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Score:
        """The inverse of `to_json`."""
        return Score(**{name: value[name] for name in Score.__dataclass_fields__})
