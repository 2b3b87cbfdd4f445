"""Which measure of client similarity follows that of the data: four clients whose data are alike by design."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from fedkin.config import Count, Positive
from fedkin.data import catalogue
from fedkin.reproduce.subsets import LABELS, PAIRS, Measured, measure, subsets
from fedkin.simulate import Show, watched
from fedkin.studies.base import Found, Study
from fedkin.studies.enlarging import fitted

DATA = "Data Similarity"
WHAT = {
    "WDB": "1 / distance of batch-norm statistics",
    "MDB": "cosine of updates",
    "LDB": "gain in loss by distance",
    "CS": "cosine of classifiers",
}


@dataclass(frozen=True)
class ClassifierSimilarity(Study):
    """Clients i and i' have labels 0 to 4, j has 2 to 6 and k has 5 to 9; each trains alone for `passes`."""

    name: ClassVar[str] = "classifier-similarity"
    paper: ClassVar[str] = "pFedSim, Figure 2 and Table 2"
    about: ClassVar[str] = "Likeness of clients by WDB, MDB, LDB and their classifiers (CS) against that of their data"

    data: str = "digits"
    """Of ten classes."""
    passes: Count = 20
    lr: Positive = 0.01
    model: str = "lenet5-bn"
    """With batch norm, which WDB needs."""

    def run(self, show: Show | None = None) -> Found:
        """Train the four, and measure how alike they are."""
        federation = fitted(subsets(catalogue.load(self.data), self.seed), self.model)
        with watched(show, f"four subsets of {self.data}", self.passes) as watch:
            found = measure(
                federation, self.seed, self.passes, lr=self.lr, model=self.model, workers=self.workers, watch=watch
            )
        rows = [judged(name, values, found.numbers[DATA]) for name, values in found.numbers.items()]
        title = f"{federation.data.name}, {self.passes} passes, {self.model}"
        return Found(rows, draw(found, rows, title), [*(sentence(row) for row in rows[1:]), split_by_class(found)])


def judged(name: str, values: dict[str, float], data: dict[str, float]) -> dict[str, Any]:
    """A measure of all pairs, its correlation with the similarity of the data, and whether it has the same order."""
    ours, theirs = np.array(list(values.values())), np.array(list(data.values()))
    flat = bool(np.ptp(ours) == 0 or np.ptp(theirs) == 0)
    correlation = 0.0 if flat else float(np.corrcoef(ours, theirs)[0, 1])
    same = bool((np.argsort(-ours) == np.argsort(-theirs)).all())
    return {"measure": name, **values, "correlation": correlation, "order": "as the data" if same else "another"}


def sentence(row: dict[str, Any]) -> str:
    """One measure in words."""
    order = "puts the four pairs in the order of their data" if row["order"] == "as the data" else "has another order"
    return f"{row['measure']} ({WHAT[row['measure']]}) {order}; its correlation with data similarity is " + (
        f"{row['correlation']:.2f}."
    )


def split_by_class(found: Measured) -> str:
    """How alike decision boundaries are where both or neither of a pair have a class, and where only one does."""
    labels = list(LABELS.values())
    both: list[float] = []
    one: list[float] = []
    for pair, (i, j) in PAIRS.items():
        for c, value in enumerate(found.boundaries[pair]):
            (both if (c in labels[i]) == (c in labels[j]) else one).append(value)
    return (
        f"The mean cosine of two decision boundaries is {np.mean(both):.2f} for classes that both or neither of the "
        f"two have, and {np.mean(one):.2f} for classes that only one of them has."
    )


def draw(found: Measured, rows: list[dict[str, Any]], title: str) -> Figure:
    """Above, decision boundaries class by class; below, every measure against the similarity of the data."""
    figure = Figure(figsize=(11, 6), layout="constrained")
    grid = figure.add_gridspec(2, 1, height_ratios=[1, 1.2])
    above, below = figure.add_subfigure(grid[0]), figure.add_subfigure(grid[1])
    _boundaries(above.subplots(), above, found)
    data = found.numbers[DATA]
    for axes, row in zip(below.subplots(1, len(rows) - 1), rows[1:], strict=True):
        values = found.numbers[row["measure"]]
        axes.plot(list(data.values()), list(values.values()), "o", color="tab:blue")
        for pair in data:
            beside = -1 if data[pair] > 0.5 else 1
            axes.annotate(
                pair, (data[pair], values[pair]), (7 * beside, 4), textcoords="offset points", fontsize=8,
                ha="left" if beside > 0 else "right",
            )  # fmt: skip
        axes.set(
            title=f"{row['measure']}: correlation {row['correlation']:.2f}",
            xlabel="data similarity", xlim=(-0.1, 1.1), ylabel=WHAT[row["measure"]],
        )  # fmt: skip
        axes.ticklabel_format(axis="y", scilimits=(-3, 3))
        axes.margins(y=0.15)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=10)
    return figure


def _boundaries(axes: Any, figure: Any, found: Measured) -> None:
    """Pairs by classes, with the mean over classes (CS) behind each pair's name."""
    values = np.array(list(found.boundaries.values()))
    image = axes.imshow(values, vmin=-1, vmax=1, cmap="RdBu_r", aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", color="white" if abs(value) > 0.6 else "black")
    axes.set_xticks(range(values.shape[1]))
    axes.set_yticks(range(len(values)), [f"{pair}   CS {values[k].mean():.2f}" for k, pair in enumerate(PAIRS)])
    axes.set(xlabel="class", title="Cosine of two clients' decision boundaries, class by class")
    figure.colorbar(image, ax=axes, label="cosine")
