"""Leap gradient approximation: where a late client's model would be by now (SPFL's paper, section 3.2).

A client k was sent w^t0, trained w_k from it, and its reply comes when the server is at w^tau; one round after the
client was sent its model the server was at w^t1.

    S(k)    = cos(w^t1 - w^t0, w_k - w^t0)                                 how alike client and server moved       (8)
    S~(k)   = e^S(k) / (e + e^S(k))                                        for each stage of layers          (9), (13)
    w_k^tau = w^tau + S~ (w_k - w^t0) * (w_k - w^t0) * (w^tau - w^t1) + (w_k - w^t0)                              (11)
    w_kp    = w^t0 + (1 - S~) (w_k^tau - w^t0) + S~ (w^tau - w^t0)         the personalised model            (12), (14)

Equation (10) has w^t0 in place of (11)'s first w^tau. Products of vectors are element by element. Running statistics
of batch norm are no gradients, so they are taken as the client sent them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedkin.layout import Block, Layout
from fedkin.similarity import row_cosine


@dataclass(frozen=True)
class Leap:
    """The form of the equations; as it is, the paper's own choice."""

    form: Literal["11", "10"] = "11"
    coefficient: Literal["softmax", "cosine"] = "softmax"
    """S~ of (9) and (13), or S of (8) as it is."""
    similarity: Literal["stage", "tensor"] = "stage"
    """One cosine a stage, or one for every tensor of parameters."""
    stages: str = "2"
    """How layers are grouped (see SPFL)."""

    def blocks(self, layout: Layout) -> list[Block]:
        """The columns that share a coefficient."""
        if self.similarity == "tensor":
            blocks = [layout.block([name]) & layout.parameters for name in layout.columns]
        else:
            blocks = [block & layout.parameters for block in layout.stages(self.stages).values()]
        return [block for block in blocks if block.ranges]

    def weights(self, course: Tensor, moves: Tensor, layout: Layout) -> Tensor:
        """S~ of every column [K, D], from the server's moves w^t1 - w^t0 [K, D] and the clients' own [K, D]."""
        s = torch.zeros_like(moves)
        for block in self.blocks(layout):
            alike = row_cosine(block.of(course), block.of(moves))
            value = normalised(alike) if self.coefficient == "softmax" else alike
            for columns in block:
                s[:, columns] = value[:, None]
        return s

    def model(self, start: Tensor, now: Tensor, later: Tensor, moves: Tensor, s: Tensor) -> Tensor:
        """w_k^tau [K, D] by (11) or (10), from w^t0 `start`, w^tau `now`, w^t1 `later`, w_k - w^t0 `moves`, S~ `s`."""
        first = now if self.form == "11" else start
        return first + s * moves * moves * (now - later) + moves


def normalised(similarity: Tensor) -> Tensor:
    """e^S / (e + e^S), elementwise (9)."""
    return torch.sigmoid(similarity - 1)


def personal(start: Tensor, now: Tensor, leapt: Tensor, s: Tensor) -> Tensor:
    """The personalised models [K, D] of (12) and (14), from w^t0, w^tau, w_k^tau and S~ of every column."""
    return start + (1 - s) * (leapt - start) + s * (now - start)
