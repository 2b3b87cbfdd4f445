"""Clients as the data know them: writers, subjects, domains."""

from __future__ import annotations

import numpy as np

from fedkin.data.dataset import Indices
from fedkin.data.partitions.iid import equal_parts
from fedkin.data.partitions.task import Assignment, Task, need
from fedkin.errors import FedkinError


def natural(task: Task, rng: np.random.Generator, min: int = 2) -> Assignment:
    """One client per owner of the data, or each owner cut label-IID into the same number of clients.

    Owners with fewer than `min` samples take no part. 0 clients means all other owners, fewer than
    there are a random choice of them, a multiple of them that many clients per owner.
    """
    need(task.owner is not None, f"{task.data} has no natural clients: choose another partition")
    need(min >= 2, f"natural needs min of at least 2, one sample to train and one to test, not {min}")
    assert task.owner is not None
    sizes = np.bincount(task.owner, minlength=len(task.owners))
    fit = np.flatnonzero(sizes >= min)
    known = f"{len(fit)} of the {len(task.owners)} natural clients of {task.data} have {min} samples or more"
    need(len(fit) > 0, known)

    clients = task.clients or len(fit)
    if clients <= len(fit):
        return _one_each(task, np.sort(rng.choice(fit, clients, replace=False)), task.owner)
    if clients % len(fit):
        raise FedkinError(
            f"{clients} clients are too many: {known}; "
            f"ask for at most {len(fit)}, or for a multiple of it to cut each into equal parts"
        )
    parts = clients // len(fit)
    smallest = fit[sizes[fit].argmin()]
    need(
        bool(sizes[smallest] // parts >= min),
        f"{task.owners[smallest]} of {task.data} has {sizes[smallest]} samples, too few for {parts} "
        f"clients of {min} or more: ask for at most {sizes[smallest] // min * len(fit)} clients",
    )
    return _cut(task, fit, task.owner, parts, rng)


def _one_each(task: Task, chosen: Indices, owner: Indices) -> Assignment:
    client_of = np.full(len(task.owners), -1)
    client_of[chosen] = np.arange(len(chosen))
    return Assignment(client_of[owner], names=tuple(task.owners[o] for o in chosen))


def _cut(task: Task, fit: Indices, owner: Indices, parts: int, rng: np.random.Generator) -> Assignment:
    whole = _one_each(task, fit, owner)
    part = equal_parts(owner, task.y, parts, rng)
    width = max(2, len(str(parts - 1)))
    return Assignment(
        np.where(whole.client < 0, -1, whole.client * parts + part),
        names=tuple(f"{name}-{p:0{width}d}" for name in whole.names for p in range(parts)),
    )
