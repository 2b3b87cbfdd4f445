"""What a server does: a row-stochastic matrix times a block of columns."""

from __future__ import annotations

from torch import Tensor

from fedkin.method import Replies


def shares(n: Tensor) -> Tensor:
    """Sample counts [K] as weights [K] that sum to one."""
    return n / n.sum()


def weighted_mean(replies: Replies) -> Tensor:
    """The sample-weighted mean [D] of the models that came back."""
    return shares(replies["n"]) @ replies["w"]
