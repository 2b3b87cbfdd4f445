"""The very split of SPFL's Table 6: some of the classes for each client, drawn from numpy's frozen legacy generator.

The paper prints the accuracy of each client in Table 6, and what a client gets right is a whole number of samples. With
the generator's seed 777, that of the authors' public code, all twenty numbers of non-IID MNIST are such; with any other
seed from 0 to 999 nine at the most.
"""

from __future__ import annotations

import numpy as np

from fedkin.data.dataset import Indices
from fedkin.data.partitions.classes import check_k
from fedkin.data.partitions.task import Assignment, Task, legacy_generator, need


def non_iid(task: Task, rng: np.random.Generator, k: int, draw: int = 777) -> Assignment:
    """As form=non-iid, but the split is SPFL's own, the same for all seeds.

    Every class is shuffled and cut into as many buckets of one size as there are clients; each client draws k classes
    and takes the next bucket of each, the last part of which it tests on. `draw` is the seed of numpy's legacy
    generator, in place of the run's.
    """
    return _split(task, k, task.clients, draw)


def iid(task: Task, rng: np.random.Generator, k: int, draw: int = 777) -> Assignment:
    """As form=iid, but the split is SPFL's own, the same for all seeds.

    One draw of k classes for all clients; otherwise as form=spfl.
    """
    return _split(task, k, 1, draw)


def _split(task: Task, k: int, draws: int, draw: int) -> Assignment:
    check_k(task, k)
    n_classes, legacy = len(task.sizes), legacy_generator(draw)
    few = int(task.sizes.min()) // task.clients
    need(
        few >= 2, f"form=spfl cuts each class of {task.data} into {task.clients} buckets, of which one would have {few}"
    )
    rows = [legacy.permutation(np.flatnonzero(task.y == c)) for c in range(n_classes)]
    drawn = [legacy.choice(n_classes, k, replace=False) for _ in range(draws)]
    assert task.test_ratio is not None
    client, held_out = np.full_like(task.y, -1), np.zeros(len(task.y), dtype=np.bool_)
    taken: Indices = np.zeros(n_classes, dtype=np.int64)
    for i in range(task.clients):
        for c in drawn[i % draws]:
            size = len(rows[c]) // task.clients
            own = rows[c][taken[c] : taken[c] + size]
            taken[c] += size
            client[own] = i
            held_out[own[np.clip(int(size * (1 - task.test_ratio)), 1, size - 1) :]] = True
    return Assignment(client, held_out)
