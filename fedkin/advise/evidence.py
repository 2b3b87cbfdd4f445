"""What trials have shown of each method, and which of them to take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from fedkin.randomness import numpy_generator
from fedkin.result import Result

Numbers = npt.NDArray[np.float64]
LOCAL, GLOBAL = REFERENCES = ("local-only", "fedavg")
"""What every other method has to beat: nobody learns from anybody, and everybody from everybody."""
CANDIDATES = (
    *REFERENCES, "fedprox", "fedavg-ft", "fedper", "fedbn", "fedrep", "ditto", "apfl", "ifca", "pfedsim", "spfl",
    "fedalp", "fedsimsup",
)  # fmt: skip
"""What is tried unless methods are named, one or more of each family, the simplest first."""
ENOUGH = 6
"""Clients from which on they are resampled; with fewer no test over clients could tell anything at the 5 % level."""
DRAWS = 2000
MARGIN = 0.005
"""A gap that is not worth a more involved method, however sure it is."""


@dataclass(frozen=True)
class Row:
    """The evidence on one method: validation accuracies (0 to 1) after its last round, mean over seeds."""

    method: str
    accuracy: float
    """Mean over clients."""
    spread: float
    """Standard deviation over clients."""
    worst: float
    """The client with the lowest accuracy."""
    better: float
    worse: float
    """Shares of clients that are better and worse off than with local training for as many rounds."""
    rounds: int
    """How far it was trained."""
    bytes: float
    """Sent and received by a client in a round in which it takes part."""
    steps: float
    """Gradient steps of a client in a round in which it takes part; fine-tuning before the test is not counted."""
    seconds: float
    """For all of its trials."""
    clients: list[float]
    """[N] each client."""


@dataclass(frozen=True)
class Gap:
    """How far a method is behind the best one, in accuracy, with a 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{points(self.mean)} (95 % interval {100 * self.low:.1f} to {100 * self.high:.1f})"

    @property
    def negligible(self) -> bool:
        """Whether the gap may be chance, or is too small to care about."""
        return self.low <= 0 or self.mean < MARGIN


@dataclass(frozen=True)
class Advice:
    """What to take, and why."""

    method: str
    recommendation: str
    """In a few plain sentences with the numbers."""
    table: list[Row]
    """Those that were trained longest first, and the best of them first."""
    gaps: dict[str, Gap]
    """How far each method that was trained to the end is behind the best of them."""
    curves: dict[str, list[tuple[int, float]]]
    """Validation accuracy after a round, mean over clients and seeds."""
    results: dict[str, Result]
    """The runs on all training samples, judged on the test samples."""
    left_out: dict[str, str]
    """Methods that were not tried, and why."""
    notes: list[str]
    """What else there is to know of the trials."""
    folder: Path

    @property
    def tested(self) -> dict[str, float]:
        """Accuracy on the test samples, 0 to 1, mean over clients."""
        return {name: result.accuracy for name, result in self.results.items()}

    def summary(self) -> dict[str, Any]:
        """Plain values, as `--json` prints them."""
        return {
            "method": self.method,
            "recommendation": self.recommendation,
            "test_accuracy": self.tested,
            "table": [asdict(row) for row in self.table],
            "behind_best": {name: asdict(gap) for name, gap in self.gaps.items()},
            "left_out": self.left_out,
            "notes": self.notes,
            "folder": str(self.folder),
        }

    def plot(self) -> Figure:
        """The halving (left) and what each client gets (right), as a matplotlib figure."""
        from fedkin.advise.telling import figure_of

        return figure_of(self)


def gap_between(best: Row, other: Row, samples: Sequence[int], seed: int) -> Gap:
    """How far a method is behind, with the noise between clients or, if they are few, between their samples [N].

    There is no correction for the best being the best of several: where in doubt, accuracy counts for more than
    simplicity.
    """
    a, b, n = np.array(best.clients), np.array(other.clients), np.array(samples)
    rng = numpy_generator(seed, "advise/bootstrap")
    if other is best:
        return Gap(0.0, 0.0, 0.0)
    if len(a) >= ENOUGH:
        # Pairs of clients, drawn with replacement.
        draws = (a - b)[rng.integers(len(a), size=(DRAWS, len(a)))].mean(1)
    else:
        # These clients and no others: what their few validation samples leave open (Jeffreys' prior).
        one, two = (rng.beta(p * n + 0.5, (1 - p) * n + 0.5, size=(DRAWS, len(a))).mean(1) for p in (a, b))
        draws = one - two
    low, high = np.quantile(draws, (0.025, 0.975))
    return Gap(float((a - b).mean()), float(low), float(high))


def simplest(gaps: Mapping[str, Gap]) -> str:
    """The simplest method that is as good as the best for all that can be told."""
    return min((method for method, gap in gaps.items() if gap.negligible), key=simplicity)


def simplicity(method: str) -> int:
    """The place in the list of candidates; what is not in it comes last."""
    return CANDIDATES.index(method) if method in CANDIDATES else len(CANDIDATES)


def points(share: float) -> str:
    """`1.2 points`."""
    return f"{100 * share:.1f} points"
