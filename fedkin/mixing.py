"""What a server does: a row-stochastic matrix times a block of columns."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedkin.layout import Block
from fedkin.method import Mixing, Replies


def shares(n: Tensor) -> Tensor:
    """Sample counts [K] as weights [K] that sum to one."""
    return n / n.sum()


def weighted_mean(replies: Replies) -> Tensor:
    """The sample-weighted mean [D] of the models that came back."""
    return shares(replies["n"]) @ replies["w"]


def same_for_all(replies: Replies, clients: int) -> Mixing:
    """The matrix of a mean that everybody gets: every row holds the participants' shares, 1 n^T / sum(n).

    Participants that did not say how many samples they have count the same.
    """
    n = replies["n"] if "n" in replies.messages[0] else torch.ones(len(replies), dtype=replies.dtype)
    row = n.new_zeros(clients)
    row[replies.clients] = shares(n)
    return {"all": row.expand(clients, clients)}


def softmax(similarity: Tensor, temperature: float = 1.0) -> Tensor:
    """Row-wise softmax [N, N] of a similarity matrix (SPFL (6))."""
    return (similarity / temperature).softmax(dim=1)


def normalised(weights: Tensor) -> Tensor:
    """Nonnegative weights [N, N] with rows that sum to one."""
    return weights / weights.sum(1, keepdim=True)


def among(matrix: Tensor, columns: Sequence[int]) -> Tensor:
    """A mixing matrix [N, N] restricted to some columns [N, K]: rows sum to one again, or are all zero."""
    part = matrix[:, columns]
    total = part.sum(1, keepdim=True)
    return torch.where(total > 0, part / total, 0)


def mix(matrix: Tensor, rows: Tensor, block: Block, out: Tensor) -> Tensor:
    """`out[:, block] = matrix @ rows[:, block]` for `matrix` [M, K], `rows` [K, D] and `out` [M, D]."""
    for columns in block:
        out[:, columns] = matrix @ rows[:, columns]
    return out
