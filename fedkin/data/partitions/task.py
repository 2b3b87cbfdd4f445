"""What a partition rule is given, what it returns, and the dealing that the rules share.

Most rules only decide on a table of counts [N clients, K classes], how many samples of each class a
client gets. `deal` then says which samples these are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedkin.data.dataset import Indices
from fedkin.errors import FedkinError

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Task:
    """The pool of samples to share out, and among how many clients."""

    data: str
    """What messages call the pool."""
    clients: int
    y: Indices
    """[n] labels in 0..K-1, where K counts the classes that occur in the pool."""
    classes: tuple[str, ...]
    """K names."""
    is_test: Flags
    """[n] true where the publisher ships the sample in its test file."""
    owner: Indices | None
    """[n] natural client of each sample."""
    owners: tuple[str, ...]
    """Names of the natural clients, also of those with no sample in the pool."""
    test_ratio: float | None
    """What the caller asked for, or what the rule has; none where the rule has counts of its own."""

    @cached_property
    def sizes(self) -> Indices:
        """[K] samples of each class."""
        return np.bincount(self.y, minlength=len(self.classes))


class Assignment(NamedTuple):
    """Who owns each sample of the pool."""

    client: Indices
    """[n] the sample's client, -1 where the rule leaves it out."""
    held_out: Flags | None = None
    """[n] true for a test sample, if the rule decides on that as well."""
    names: tuple[str, ...] = ()
    """The clients' names, if the rule knows better ones than their numbers."""


def need(condition: bool, message: str) -> None:
    """Refuse with a sentence unless the condition holds."""
    if not condition:
        raise FedkinError(message)


def legacy_generator(draw: int) -> np.random.RandomState:
    """Numpy's frozen generator, which papers' own splits are drawn from."""
    need(0 <= draw < 2**32, f"draw is a seed of numpy's legacy generator, from 0 to {2**32 - 1}, not {draw}")
    return np.random.RandomState(draw)


def shuffled_by(key: Indices, rng: np.random.Generator) -> Indices:
    """[n] the positions of `key` in ascending order of their keys, equal keys in random order."""
    shuffle = rng.permutation(len(key))
    return shuffle[np.argsort(key[shuffle], kind="stable")]


def place_in_group(key: Indices, order: Indices) -> Indices:
    """[n] each sample's place, from 0, among the samples with its key, as `order` visits them."""
    sizes = np.bincount(key)
    place = np.empty_like(key)
    place[order] = np.arange(len(key)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return place


def deal(counts: Indices, y: Indices, rng: np.random.Generator) -> Indices:
    """Shuffle each class and cut it into `counts` [N, K] samples per client: [n] clients, -1 left over."""
    clients, classes = counts.shape
    left_over = np.bincount(y, minlength=classes) - counts.sum(axis=0)
    who = np.tile(np.append(np.arange(clients), -1), classes)
    client = np.empty_like(y)
    client[shuffled_by(y, rng)] = np.repeat(who, np.vstack([counts, left_over]).ravel(order="F"))
    return client


def next_buckets(takes: Flags, sizes: Indices, cuts: Indices) -> Indices:
    """Counts [N, K] when class c is cut into `cuts[c]` equal buckets and handed out one by one.

    Client after client takes the next unused bucket of each class that `takes` [N, K] gives it.
    Where a class cannot be cut evenly, its buckets differ by one sample.
    """
    bucket: Indices = np.cumsum(takes, axis=0) - takes
    return np.where(takes, (bucket + 1) * sizes // cuts - bucket * sizes // cuts, 0)


def hold_out(client: Indices, y: Indices, ratio: float, rng: np.random.Generator) -> Flags:
    """[n] true for the samples that their client keeps for its test, about `ratio` of each class.

    A client tests on `ratio` of its samples to the nearest sample, on at least one and not on all.
    Fractions of a sample go to the classes with the largest ones, but the last sample of a class
    stays to be trained on as long as there is another.
    """
    used = client >= 0
    classes = int(y.max()) + 1
    key = client[used] * classes + y[used]
    clients = int(client.max()) + 1
    counts = np.bincount(key, minlength=clients * classes).reshape(clients, classes)

    quota = np.floor(ratio * counts).astype(np.int64)
    total = counts.sum(axis=1)
    extra = np.clip(np.rint(ratio * total), 1, total - 1).astype(np.int64) - quota.sum(axis=1)
    # The tiny random number breaks ties, so that no class is favoured for its position.
    wish = ratio * counts - quota - (counts == quota + 1) - 2.0 * (counts == 0) + 1e-9 * rng.random(counts.shape)
    rank = np.argsort(np.argsort(-wish, axis=1), axis=1)
    quota += rank < extra[:, None]

    held_out = np.zeros(len(y), dtype=np.bool_)
    held_out[used] = place_in_group(key, shuffled_by(key, rng)) < quota.ravel()[key]
    return held_out
