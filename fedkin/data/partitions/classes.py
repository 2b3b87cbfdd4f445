"""Clients that own some of the classes only, by SPFL's Appendix B."""

from __future__ import annotations

import numpy as np

from fedkin.data.dataset import Indices
from fedkin.data.partitions.task import Assignment, Task, deal, need, next_buckets


def non_iid(task: Task, rng: np.random.Generator, k: int) -> Assignment:
    """Each client draws k classes of its own and takes an N-th of each."""
    return _assign(task, _draw(task, k, task.clients, rng), rng)


def iid(task: Task, rng: np.random.Generator, k: int) -> Assignment:
    """All clients share one draw of k classes and take an N-th of each."""
    return _assign(task, np.repeat(_draw(task, k, 1, rng), task.clients, axis=0), rng)


def check_k(task: Task, k: int) -> None:
    """Refuse a number of classes that there are not."""
    n_classes = len(task.classes)
    need(1 <= k <= n_classes, f"classes:k needs a k from 1 to {n_classes} for {task.data}, not {k}")


def _draw(task: Task, k: int, rows: int, rng: np.random.Generator) -> Indices:
    """[rows, k] classes, each row drawn without replacement."""
    check_k(task, k)
    return rng.random((rows, len(task.classes))).argsort(axis=1)[:, :k]


def _assign(task: Task, drawn: Indices, rng: np.random.Generator) -> Assignment:
    k = drawn.shape[1]
    takes = np.zeros((task.clients, len(task.classes)), dtype=np.bool_)
    np.put_along_axis(takes, drawn, True, axis=1)
    counts = next_buckets(takes, task.sizes, np.full_like(task.sizes, task.clients))

    rarest = task.sizes.argmin()
    enough = task.sizes[rarest] // (2 if k == 1 else 1)
    need(
        bool(counts.sum(axis=1).min() >= 2),
        f"classes:{k} with {task.clients} clients leaves one with fewer than 2 samples, as "
        f"{task.data} has {task.sizes[rarest]} of class {task.classes[rarest]}: "
        f"at most {enough} clients always work",
    )
    return Assignment(deal(counts, task.y, rng))
