"""Pictures of a split: which client has how many samples of which class."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from fedkin.data.dataset import Indices, Split

BUBBLES = "·∘○●"
SHOWN_CLIENTS = 40
SHOWN_CLASSES = 64
NAME_WIDTH = 14
MARGIN = 2
POINTS_PER_INCH = 72


def class_table(labels: Indices, split: Split, classes: int = 0) -> Indices:
    """[N, K] samples per client and class, train and test together; K is at least `classes`."""
    k = max(classes, int(labels.max()) + 1)
    both = zip(split.train, split.test, strict=True)
    return np.stack([np.bincount(labels[np.concatenate(parts)], minlength=k) for parts in both])


def bubble_chart(labels: Indices, split: Split, classes: tuple[str, ...]) -> Figure:
    """Clients along x, classes along y, a circle whose area is the number of samples.

    The figure grows with the number of clients and classes within limits. Beyond these, the circles
    shrink to the room they have on average, large ones may overlap, which their transparency keeps
    visible, and not every client and class is named.
    """
    table = class_table(labels, split, len(classes))
    clients, k = table.shape
    width, height = np.clip(0.28 * clients, 3.5, 16), np.clip(0.28 * k, 2, 12)
    figure = Figure(figsize=(width + 2.5, height + 1), layout="constrained")
    axes = figure.add_subplot()

    client, label = np.nonzero(table)
    room = POINTS_PER_INCH**2 * width * height / len(client)
    largest = np.clip(0.9 * room**0.5, 3, 18)
    area = largest**2 * table[client, label] / table.max()
    # Thousands of circles would make a vector file slow to open.
    many = len(area) > 5000
    axes.scatter(client, label, area, color="tab:blue", alpha=0.6, linewidths=0, rasterized=many)
    for samples in _examples(int(table.max())):
        axes.scatter([], [], largest**2 * samples / table.max(), color="tab:blue", alpha=0.6, label=f"{samples:,}")
    figure.legend(title="samples", loc="outside right upper", frameon=False)

    axes.set(xlabel="client", ylabel="class", xlim=(-0.8, clients - 0.2), ylim=(-0.8, k - 0.2))
    axes.set_xticks(np.arange(0, clients, _stride(clients, 20)))
    named = np.arange(0, k, _stride(k, 40))
    axes.set_yticks(named, [classes[c].replace("$", r"\$") if c < len(classes) else str(c) for c in named])
    axes.grid(alpha=0.2)
    axes.set_axisbelow(True)
    return figure


def text_chart(labels: Indices, split: Split, classes: tuple[str, ...]) -> str:
    """The bubble chart for a terminal: within 100 columns, one row a class, one column a client.

    Shows the first 40 clients and 64 classes, and says how many more there are.
    """
    table = class_table(labels, split, len(classes))
    clients, k = table.shape
    shown = table[:SHOWN_CLIENTS, :SHOWN_CLASSES]
    edges = _edges(int(table.max()))
    # [clients, classes] which bubble, 0 for none: a quarter of the diameter each.
    bubble = np.array(list(" " + BUBBLES))[np.searchsorted(edges, shown, side="left")]

    def line(name: str, cells: str) -> str:
        short = name if len(name) <= NAME_WIDTH else name[: NAME_WIDTH - 1] + "…"
        return f"{short:>{NAME_WIDTH}}{' ' * MARGIN}{cells}".rstrip()

    numbers = "".join(f"{i:<10}" for i in range(0, len(shown), 5))
    rows = [line(classes[c] if c < len(classes) else str(c), " ".join(bubble[:, c])) for c in range(shown.shape[1])]
    key = "  ".join(
        f"{mark} {low + 1:,}" + (f"–{high:,}" if high > low + 1 else "")
        for mark, low, high in zip(BUBBLES, edges[:-1], edges[1:], strict=True)
        if high > low
    )
    sizes = table.sum(axis=1)
    notes = [
        f"and {more} more {what}"
        for more, what in ((clients - len(shown), "clients"), (k - shown.shape[1], "classes"))
        if more
    ]
    notes.append(f"samples: {key}")
    notes.append(
        f"{clients} clients with {sizes.mean():,.0f} samples on average "
        f"(std {sizes.std():,.0f}, from {sizes.min():,} to {sizes.max():,})"
    )
    return "\n".join([line("client", numbers), *rows, *(line("", note) for note in notes)])


def _edges(most: int) -> Indices:
    """[5] samples up to which no bubble, then each of the four is drawn; diameters grow evenly."""
    diameters = np.arange(len(BUBBLES) + 1) / len(BUBBLES)
    return np.ceil(most * diameters**2).astype(np.int64)


def _examples(most: int) -> list[int]:
    """Round numbers for the legend: up to three, the largest at most `most`."""
    digit = 10 ** (len(str(most)) - 1)
    top, step = most // digit * digit, max(digit // 10, 1)
    return sorted({max(1, top // 10), max(1, top // 3 // step * step), top})


def _stride(total: int, ticks: int) -> int:
    """Every how many to name, so that there are at most about `ticks` names."""
    rough = max(1, -(-total // ticks))
    return next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, rough) if step >= rough)
