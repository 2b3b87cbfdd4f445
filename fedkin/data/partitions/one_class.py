"""FedALP's MNIST and FashionMNIST: every client knows a single class."""

from __future__ import annotations

import numpy as np

from fedkin.data.partitions.task import Assignment, Task, need, place_in_group, shuffled_by

TRAIN, TEST = 500, 100


def one_class(task: Task, rng: np.random.Generator, train: int | None = None, test: int | None = None) -> Assignment:
    """Client i owns samples of class i mod K only, by default 500 to train and 100 to test.

    Training samples come from the publisher's training file. Test samples come from its test file
    and, where that has too few of a class (as MNIST's has for five of its digits), from training
    samples that nobody trains on. Where the data have fewer than 500 + 100 per client, both shrink
    in proportion. Given one of the two numbers, the other keeps the proportion of five to one; a
    test ratio divides their sum anew.
    """
    n_classes = len(task.classes)
    owners, odd = divmod(task.clients, n_classes)
    need(
        odd == 0,
        f"one-class needs equally many clients for each of the {n_classes} classes of {task.data}: "
        f"use {max(owners, 1) * n_classes} or {(owners + 1 + (owners == 0)) * n_classes} clients, "
        f"not {task.clients}",
    )
    in_train_file = np.bincount(task.y[~task.is_test], minlength=n_classes)
    train, test = _amounts(task, owners, int(in_train_file.min()), train, test)
    need(train >= 1 and test >= 1, f"one-class needs samples to train and to test, not {train} and {test}")
    most = int(np.minimum(in_train_file // train, task.sizes // (train + test)).min())
    need(
        owners <= most,
        f"one-class with {task.clients} clients of {train} + {test} samples needs {owners * (train + test)} "
        f"of each class, {owners * train} of them in the training file, and {task.data} has "
        f"{task.sizes.min()} and {in_train_file.min()} of its rarest: "
        + (f"at most {most * n_classes} clients work" if most else "lower train= and test="),
    )

    # Each class in one row, training file first: clients train on its front and test on its back.
    front = place_in_group(task.y, shuffled_by(2 * task.y + task.is_test, rng))
    back = task.sizes[task.y] - 1 - front
    trains, tests = front < owners * train, back < owners * test
    nth_owner = np.where(trains, front // train, back // test)
    return Assignment(np.where(trains | tests, nth_owner * n_classes + task.y, -1), held_out=tests)


def _amounts(task: Task, owners: int, in_train_file: int, train: int | None, test: int | None) -> tuple[int, int]:
    """Samples a client trains and tests on, for so many owners of a class and the rarest class."""
    as_paper = train is None and test is None
    if train is None:
        train = TRAIN if test is None else test * TRAIN // TEST
    if test is None:
        test = max(train * TEST // TRAIN, 1)
    total = train + test
    if task.test_ratio is not None:
        test = _part(total, task.test_ratio)
        train = total - test
    if not as_paper or (total * owners <= task.sizes.min() and train * owners <= in_train_file):
        return train, test

    ratio = test / total
    fits = min(int(task.sizes.min()) // owners, int(in_train_file / owners / (1 - ratio)))
    test = _part(fits, ratio)
    return max(min(fits - test, in_train_file // owners), 1), test


def _part(total: int, ratio: float) -> int:
    """The nearest whole part of a total, which leaves at least one on either side."""
    return max(min(round(ratio * total), total - 1), 1)
