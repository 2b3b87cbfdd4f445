"""Every client sees the same mix of classes."""

from __future__ import annotations

import numpy as np

from fedkin.data.dataset import Indices
from fedkin.data.partitions.task import Assignment, Task, place_in_group, shuffled_by


def iid(task: Task, rng: np.random.Generator) -> Assignment:
    """Equal random shares of the data, every class spread evenly over the clients."""
    return Assignment(equal_parts(np.zeros_like(task.y), task.y, task.clients, rng))


def equal_parts(group: Indices, y: Indices, parts: int, rng: np.random.Generator) -> Indices:
    """[n] which of its group's `parts` a sample falls into.

    A group's samples are dealt like cards, class after class and shuffled within: the parts differ
    by at most one sample in size, and by at most one in each class.
    """
    order = shuffled_by(group * (y.max() + 1) + y, rng)
    # Whoever is dealt to first gets the odd cards, hence a random seating.
    return rng.permutation(parts)[place_in_group(group, order) % parts]
