"""The pathological partition of McMahan et al. (2017), as FedSimSup's appendix A.1 asks for it."""

from __future__ import annotations

from math import ceil

import numpy as np

from fedkin.data.dataset import Indices
from fedkin.data.partitions.task import Assignment, Flags, Task, deal, need, next_buckets, shuffled_by


def shards(task: Task, rng: np.random.Generator, c: int) -> Assignment:
    """Each client has c classes, and between them the clients use all data.

    Every class is cut into equal shards, N * c in all, more of them for a larger class. A client
    takes c shards of different classes.
    """
    n_classes = len(task.classes)
    need(1 <= c <= n_classes, f"shards:c needs a c from 1 to {n_classes} for {task.data}, not {c}")
    need(
        task.clients * c >= n_classes,
        f"shards:{c} with {task.clients} clients cannot use all {n_classes} classes of {task.data}: "
        f"use shards:{ceil(n_classes / task.clients)} or {ceil(n_classes / c)} clients",
    )
    # A client with a single shard trains and tests on that one.
    most = np.maximum(task.sizes // (2 if c == 1 else 1), 1)
    fits = np.arange(1, task.clients + 1)
    fits = fits[np.minimum(fits[:, None], most).sum(axis=1) >= fits * c]
    need(
        task.clients in fits,
        f"{task.data} has too few samples for shards:{c} with {task.clients} clients: "
        f"at most {fits.max(initial=0)} clients work",
    )
    cuts = shards_per_class(task.sizes, np.minimum(most, task.clients), task.clients * c)
    takes = different_classes(cuts, task.clients, rng)
    return Assignment(deal(next_buckets(takes, task.sizes, cuts), task.y, rng))


def by_lot(task: Task, rng: np.random.Generator, c: int) -> Assignment:
    """Samples sorted by class are cut into equal shards, and each client takes c of them by lot.

    Two of a client's lots may be of the same class, and a lot may have the end of one class and the start of the next.
    """
    total = task.clients * c
    need(c >= 1, f"shards:c needs a c of at least 1, not {c}")
    need(total <= len(task.y), f"{task.data} has {len(task.y)} samples, too few for {total} shards")
    owner = rng.permutation(np.repeat(np.arange(task.clients), c))
    client = np.empty_like(task.y)
    client[shuffled_by(task.y, rng)] = owner[np.arange(len(task.y)) * total // len(task.y)]
    return Assignment(client)


def shards_per_class(sizes: Indices, most: Indices, total: int) -> Indices:
    """[K] numbers of shards, from 1 to `most`, with the given total and the largest shard smallest.

    Starting from one shard per class, the next cut always goes to the class whose shards are the
    largest. A class with s shards of size/s waits for its next cut at that size, so all the cuts
    are the largest ones among size/s, s = 1, 2, ... of every class.
    """
    already = np.arange(1, most.max() + 1)
    shard = np.where(already < most[:, None], sizes[:, None] / already, 0.0)
    cut = np.argsort(-shard, axis=None, kind="stable")[: total - len(sizes)]
    return 1 + np.bincount(cut // len(already), minlength=len(sizes))


def different_classes(cuts: Indices, clients: int, rng: np.random.Generator) -> Flags:
    """[N, K] the classes each client takes a shard of: the same number for all, `cuts[c]` clients for c.

    Client after client draws classes in proportion to the shards left. A class with as many shards
    left as there are clients left is taken by all of them: nobody ever has to take a class twice.
    """
    takes = np.zeros((clients, len(cuts)), dtype=np.bool_)
    left, each = cuts.copy(), int(cuts.sum()) // clients
    for i in range(clients):
        # Drawing without replacement with weights w: the smallest of exponential / w.
        with np.errstate(divide="ignore"):
            arrival = rng.standard_exponential(len(cuts)) / left
        arrival[left == clients - i] = -1.0
        takes[i, np.argsort(arrival)[:each]] = True
        left -= takes[i]
    # The last clients had fewer choices: which of them is which is random.
    return takes[rng.permutation(clients)]
