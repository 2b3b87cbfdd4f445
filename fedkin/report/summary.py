"""Results of several methods and seeds, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from rich.markup import escape
from rich.table import Table

from fedkin.result import Result


@dataclass(frozen=True)
class Line:
    """One method over its seeds; accuracies in percent."""

    method: str
    judged: str
    mean: float
    std: float | None
    """None with a single seed."""
    weighted: float
    worst: float
    """Mean accuracy of the worst tenth of the clients."""
    global_model: float | None
    best_round: float
    megabytes: float
    """Sent up and down in a run."""
    seconds: float
    is_best: bool

    @property
    def accuracy(self) -> str:
        """`91.20 ± 0.45`, or `91.20` with a single seed."""
        return f"{self.mean:.2f}" + (f" ± {self.std:.2f}" if self.std is not None else "")


def lines(results: Mapping[str, Sequence[Result]]) -> list[Line]:
    """A line a method, in the order given."""
    top = max(fmean(r.accuracy for r in runs) for runs in results.values())
    table = []
    for method, runs in results.items():
        accuracies = [100 * r.accuracy for r in runs]
        sent = [sum(h.bytes_up + h.bytes_down for h in r.history) / 1e6 for r in runs]
        shared = [100 * r.global_score.headline for r in runs if r.global_score]
        table.append(
            Line(
                method=method,
                judged=runs[0].score.describe(),
                mean=fmean(accuracies),
                std=stdev(accuracies) if len(runs) > 1 else None,
                weighted=fmean(100 * r.score.weighted for r in runs),
                worst=fmean(100 * _worst(r) for r in runs),
                global_model=fmean(shared) if shared else None,
                best_round=fmean(100 * r.best[1] for r in runs),
                megabytes=fmean(sent),
                seconds=fmean(r.seconds for r in runs),
                is_best=fmean(r.accuracy for r in runs) >= top - 1e-12,
            )
        )
    return table


def _worst(result: Result) -> float:
    ordered = sorted(result.score.clients)
    return fmean(ordered[: max(1, len(ordered) // 10)])


def table(results: Mapping[str, Sequence[Result]]) -> Table:
    """The comparison for a terminal of 80 columns, the best accuracy in bold."""
    made = headed(
        "Accuracy in %, last round, mean over clients",
        "sample: every test sample counts once; worst: mean of the 10 % of clients with the lowest "
        "accuracy; global: the global model on all test sets; best: the best round, chosen on the test sets "
        "and so not a fair headline",
        *("method", "accuracy", "sample", "worst", "global", "best", "MB sent", "time"),
    )
    for line in lines(results):
        made.add_row(
            escape(line.method),
            f"[bold]{line.accuracy}[/bold]" if line.is_best else line.accuracy,
            f"{line.weighted:.2f}",
            f"{line.worst:.2f}",
            "–" if line.global_model is None else f"{line.global_model:.2f}",
            f"{line.best_round:.2f}",
            f"{line.megabytes:.1f}",
            brief(line.seconds),
        )
    return made


def headed(title: str, caption: str, *columns: str) -> Table:
    """A table to be filled, names on the left and numbers on the right; no cell is broken."""
    made = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    for k, name in enumerate(columns):
        made.add_column(name, justify="right" if k else "left", no_wrap=True)
    return made


def brief(seconds: float) -> str:
    """`4.2s`, `42s`."""
    return f"{seconds:.{1 if seconds < 9.95 else 0}f}s"
