"""Label skew drawn from a Dirichlet distribution: the smaller alpha, the fewer classes a client has.

For a small alpha and many clients hardly any draw gives everyone enough samples. Drawing until one
does may take for ever, so here the number of draws is bounded, and what the best of them lacks is
moved from the largest clients to the ones in need.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from fedkin.data.dataset import Indices
from fedkin.data.partitions.task import Assignment, Task, deal, need

Floats = npt.NDArray[np.float64]
Portions = Callable[[int, Indices, int, float, np.random.Generator], Indices]
"""Counts [draws, N] of one class by its size, what clients hold already [draws, N], all samples and alpha."""

LEAST = 40
"""pFedSim's smallest client."""
LEAST_OF_MEAN = 10
"""Small data ask for less: a tenth of the mean client."""
WORK = 2_000_000
"""Random numbers spent on redrawing, about a fifth of a second's worth."""
BATCH = 200_000
"""Random numbers drawn at a time."""


def by_class(task: Task, rng: np.random.Generator, alpha: float, min: int | None = None) -> Assignment:
    """Each class is shared out by proportions Dir(alpha) over the clients; sizes differ.

    A client that has reached its equal share of the data takes no more. All is redrawn until the
    smallest client has `min` samples (40, or a tenth of the mean client where that is less, but at
    least 2). After 2,000,000 random numbers, 2000 draws for 100 clients and 10 classes, the draw
    that lacks the fewest samples is topped up from its largest clients.
    """
    return _redrawn(_capped, task, rng, alpha, min)


def balanced(task: Task, rng: np.random.Generator, alpha: float, min: int | None = None) -> Assignment:
    """Each class is shared out by proportions Dir(alpha), the larger ones to the clients with fewer samples so far.

    So there are no small clients, and a client with few samples gets most of them from a class or two. For
    `min`, see `by_class`.
    """
    return _redrawn(_matched, task, rng, alpha, min)


def smallest(task: Task, min: int | None) -> int:
    """How many samples every client gets at least, if there are enough of them."""
    clients, n = task.clients, len(task.y)
    least = int(np.clip(n // clients // LEAST_OF_MEAN, 2, LEAST)) if min is None else min
    need(least >= 2, f"dirichlet needs a min of at least 2, one to train and one to test, not {least}")
    need(
        clients * least <= n,
        f"{clients} clients of {least} samples or more need {clients * least}, and {task.data} has {n}: "
        f"use at most {n // least} clients" + (f" or min={n // clients}" if n // clients >= 2 else ""),
    )
    return least


def by_client(task: Task, rng: np.random.Generator, alpha: float) -> Assignment:
    """Each client draws its own class proportions from Dir(alpha * p); sizes are equal.

    p [K] is the share of each class in the data, so alpha spreads over all classes: Dir(1) here is
    as skewed as Dir(0.1) by class for ten classes. The clients take their samples one after another
    in random order. Where a class has run out, a client's proportions are renormalised over the
    classes that are left, which is again a Dirichlet draw; so all data are used, and the last
    clients get what the others left.
    """
    check_alpha(alpha)
    clients, n = task.clients, len(task.y)
    wish = log_gamma(alpha * task.sizes / n, (clients, len(task.sizes)), rng)
    counts, left = np.zeros(wish.shape, dtype=np.int64), task.sizes.copy()
    for nth, i in enumerate(rng.permutation(clients)):
        short = (nth + 1) * n // clients - nth * n // clients
        while short:  # one pass, and one more for each class that runs out meanwhile
            share = proportions(np.where(left > 0, wish[i], -np.inf))
            taken = np.minimum(rng.multinomial(short, share), left)
            counts[i] += taken
            left -= taken
            short -= int(taken.sum())
    return Assignment(deal(counts, task.y, rng))


def check_alpha(alpha: float) -> None:
    """Refuse what no Dirichlet distribution has."""
    need(1e-6 <= alpha <= 1e6, f"dirichlet needs an alpha from 0.000001 to 1000000, not {alpha:g}")


def log_gamma(alpha: float | Floats, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Logarithms of Gamma(alpha) draws, whose `proportions` are Dirichlet.

    The draws themselves would be 0 for a small alpha, and 0 cannot be renormalised when the clients
    or classes with the largest ones drop out. Uses Gamma(a) = Gamma(a + 1) * U^(1/a).
    """
    return np.log(rng.standard_gamma(alpha + 1.0, shape)) - rng.standard_exponential(shape) / alpha


def proportions(log_weight: Floats) -> Floats:
    """Weights normalised to sum 1 along the last axis; minus infinity has no share."""
    weight: Floats = np.exp(log_weight - log_weight.max(axis=-1, keepdims=True))
    weight /= weight.sum(axis=-1, keepdims=True)
    return weight


def _redrawn(portions: Portions, task: Task, rng: np.random.Generator, alpha: float, min: int | None) -> Assignment:
    """The first draw that gives the smallest client enough, or the best of many with the rest moved to it."""
    check_alpha(alpha)
    least = smallest(task, min)
    counts = _best(portions, task.sizes, task.clients, alpha, least, rng)
    top_up(counts, least)
    return Assignment(deal(counts, task.y, rng))


def _best(
    portions: Portions, sizes: Indices, clients: int, alpha: float, least: int, rng: np.random.Generator
) -> Indices:
    """Counts [N, K]: the first draw that gives all clients `least`, or the one that lacks the fewest."""
    cells = clients * len(sizes)
    draws = max(1, BATCH // cells)
    best, best_lack = np.zeros((clients, len(sizes)), dtype=np.int64), np.inf
    for _ in range(max(1, WORK // (draws * cells))):
        counts = np.zeros((draws, clients, len(sizes)), dtype=np.int64)
        held = np.zeros((draws, clients), dtype=np.int64)
        # In random order: the last class goes to the few clients with room left.
        for c in rng.permutation(len(sizes)):
            counts[:, :, c] = portions(sizes[c], held, sizes.sum(), alpha, rng)
            held += counts[:, :, c]
        lack = np.maximum(least - held, 0).sum(axis=1)
        if lack.min() < best_lack:
            best, best_lack = counts[lack.argmin()], lack.min()
        if best_lack == 0:
            break
    return best


def _capped(size: int, held: Indices, total: int, alpha: float, rng: np.random.Generator) -> Indices:
    """Clients that hold their equal share of all samples are left out."""
    wish = log_gamma(alpha, held.shape, rng)
    return _cut(proportions(np.where(held * held.shape[1] < total, wish, -np.inf)), size)


def _matched(size: int, held: Indices, _total: int, alpha: float, rng: np.random.Generator) -> Indices:
    """The largest portion goes to the smallest client, and so on; among equals by lot."""
    share = np.sort(proportions(log_gamma(alpha, held.shape, rng)), axis=1)[:, ::-1]
    counts = np.empty_like(held)
    np.put_along_axis(counts, np.argsort(held + rng.random(held.shape), axis=1), _cut(share, size), axis=1)
    return counts


def _cut(share: Floats, size: int) -> Indices:
    """A class cut into whole numbers [draws, N] nearest to these shares of it."""
    ends = np.rint(np.cumsum(share, axis=1) * size).astype(np.int64)
    return np.diff(ends, axis=1, prepend=0)


def top_up(counts: Indices, least: int) -> None:
    """Move samples in `counts` [N, K] until every client has `least`, which there must be enough for.

    A client in need gets more of its largest class, from the clients with most of it to spare; if
    nobody has any, it gets the largest class of the largest client. Each step fills a client or
    empties a class of all that can be spared, so there are at most N + K steps.
    """
    sizes = counts.sum(axis=1)
    for poor in np.flatnonzero(sizes < least):
        while (short := least - sizes[poor]) > 0:
            spare = np.maximum(sizes - least, 0)
            c = counts[poor].argmax()
            if not counts[poor, c] or not np.minimum(counts[:, c], spare).any():
                c = counts[spare.argmax()].argmax()
            offer = np.minimum(counts[:, c], spare)
            givers = np.argsort(-offer, kind="stable")
            gift = np.diff(np.minimum(np.cumsum(offer[givers]), short), prepend=0)
            for moved, who in ((-gift, givers), (gift.sum(), poor)):
                counts[who, c] += moved
                sizes[who] += moved
