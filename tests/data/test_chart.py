"""Charts of a split."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest

from fedkin.data.chart import bubble_chart, class_table, text_chart
from fedkin.data.dataset import Indices, Split


def random_split(clients: int, classes: int, each: int = 20) -> tuple[Indices, Split]:
    """Labels and a split into clients with `each` samples of random classes."""
    labels = np.random.default_rng(0).integers(0, classes, clients * each)
    labels[:classes] = np.arange(classes)
    parts = np.split(np.arange(clients * each), clients)
    train, test = tuple(p[:-5] for p in parts), tuple(p[-5:] for p in parts)
    return labels, Split(train, test, tuple(f"client-{i}" for i in range(clients)))


TWO = (
    np.array([0, 0, 1, 1, 1, 1, 2]),
    Split((np.array([0]), np.array([2, 3, 4])), (np.array([1]), np.array([5, 6])), ("a", "b")),
)


def test_class_table_counts_train_and_test() -> None:
    assert class_table(*TWO).tolist() == [[2, 0, 0], [0, 4, 1]]
    assert class_table(*TWO, classes=4).tolist() == [[2, 0, 0, 0], [0, 4, 1, 0]]


def test_circle_areas_are_samples() -> None:
    figure = bubble_chart(*TWO, ("cat", "dog", "owl"))
    axes = figure.axes[0]
    bubbles = axes.collections[0]
    assert bubbles.get_offsets().tolist() == [[0, 0], [1, 1], [1, 2]]  # type: ignore[union-attr]
    area = bubbles.get_sizes()  # type: ignore[attr-defined]
    assert area / area.max() == pytest.approx([0.5, 1, 0.25])
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["cat", "dog", "owl"]


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (10, 10), (120, 10), (300, 100)])
def test_any_size_is_drawn_within_bounds(clients: int, classes: int) -> None:
    labels, split = random_split(clients, classes, each=100)
    figure = bubble_chart(labels, split, tuple(map(str, range(classes))))
    width, height = figure.get_size_inches()
    assert 4 < width < 20
    assert 2 < height < 15
    assert len(figure.axes[0].get_xticks()) <= 20
    assert len(figure.axes[0].get_yticks()) <= 40
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=40)
    assert len(file.getvalue()) > 1000


def test_no_global_state() -> None:
    """Charts are made in workers and servers, where pyplot's list of open figures would grow."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    before = len(pyplot.get_fignums()) if pyplot else 0
    bubble_chart(*TWO, ("cat", "dog", "owl"))
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert before == (len(pyplot.get_fignums()) if pyplot else 0)


def test_text_chart_of_a_small_split() -> None:
    assert text_chart(*TWO, ("cat", "dog", "a very long class name")).splitlines() == [
        "        client  0",
        "           cat  ○",
        "           dog    ●",
        "a very long c…    ·",
        "                samples: · 1  ○ 2–3  ● 4",
        "                2 clients with 4 samples on average (std 2, from 2 to 5)",
    ]


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (40, 10), (41, 62), (1000, 200)])
def test_text_chart_fits_a_terminal(clients: int, classes: int) -> None:
    labels, split = random_split(clients, classes, each=300)
    text = text_chart(labels, split, tuple(f"class number {c}" for c in range(classes)))
    assert max(map(len, text.splitlines())) <= 100
    assert (f"and {clients - 40} more clients" in text) == (clients > 40)
    assert (f"and {classes - 64} more classes" in text) == (classes > 64)
