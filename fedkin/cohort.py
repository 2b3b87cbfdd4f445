"""Many clients at once: a row per client where a client has a vector.

For small dense models the time goes into starting operations, not into arithmetic; `vmap` starts
each operation once for the whole cohort. A method's `local` runs unchanged on a cohort as long as
it treats the last axis of every tensor as the model's columns. The arithmetic differs from one
client at a time in the last bits, but not between engines: who is in a cohort never depends on
where it runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import cross_entropy

from fedkin.client import Client, Correction, Objective
from fedkin.layout import Block, Bound
from fedkin.method import Predictor

DENSE = (nn.Linear, nn.Flatten, nn.Identity, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.LeakyReLU, nn.ELU)
SIZE = 64
"""Clients in a cohort at most."""
WORTH = 5
"""From so many clients a round on, training them at once is faster than one by one."""


def is_dense(module: nn.Module) -> bool:
    """Whether a module is made of dense layers alone, for which a cohort is faster on a CPU."""
    return all(isinstance(part, DENSE) for part in module.modules() if not list(part.children()))


def can_vectorize(module: nn.Module) -> bool:
    """Whether a module can run as a cohort: it keeps no buffers and draws no random numbers."""
    random = (nn.modules.dropout._DropoutNd, nn.RReLU)
    return not list(module.buffers()) and not any(isinstance(part, random) for part in module.modules())


class Cohort(Client):
    """Clients with the same work to do, as one client whose vectors have a leading axis [K]."""

    def __init__(self, clients: Sequence[Client]) -> None:
        first = clients[0]
        super().__init__(**{**vars(first), "id": -1, "private": {}})
        self.clients = list(clients)
        self.mean_losses = [float("nan")] * len(clients)
        self.step_counts = [0] * len(clients)

    @property
    def n(self) -> Tensor:  # type: ignore[override]
        """[K] how many samples each client learns from."""
        return torch.tensor([client.n for client in self.clients], dtype=self.bound.w.dtype)

    def sgd(
        self,
        start: Tensor,
        *,
        epochs: int | None = None,
        lr: float | None = None,
        repeats: int = 1,
        most: int | None = None,
        correct: Correction | None = None,
        only: Block | None = None,
        on: Bound | None = None,
        beside: Predictor | None = None,
        objective: Objective | None = None,
        purpose: str = "batches",
    ) -> Tensor:
        """The models [K, D] after local epochs of SGD from `start` [K, D]; plainly."""
        assert on is None
        assert beside is None
        assert objective is None
        settings = self.training
        lr = settings.lr if lr is None else lr
        step = (only or self.layout.parameters) & self.layout.parameters
        self.bound.module.train()
        w = start.clone()
        p = self.layout.parameters.of(w)
        velocity = torch.zeros_like(p) if settings.momentum else None
        total = torch.zeros(len(w), dtype=w.dtype, device=w.device)
        rows, weights = self._schedule(epochs, purpose)
        active = (weights.sum(2) > 0).to(w.dtype)
        for s in islice((s for s in range(rows.shape[1]) for _ in range(repeats)), most):
            x, y = self.samples.inputs(rows[:, s]), self.samples.y[rows[:, s]]
            g, losses = self._gradients(p, x, y, weights[:, s])
            if settings.weight_decay:
                g.add_(p, alpha=settings.weight_decay)
            if correct:
                correct(g, p)
            if velocity is not None:
                g = velocity.mul_(settings.momentum).add_(g)
            # A client that has no more batches stands still.
            move = g * (lr * active[:, s, None])
            for columns in step:
                p[:, columns].sub_(move[:, columns])
            total += losses * active[:, s]
        taken = repeats * active.sum(1)
        self._settle(total, taken if most is None else taken.clamp(max=most), lr)
        return w

    def _settle(self, total: Tensor, taken: Tensor, lr: float) -> None:
        """Note each client's loss [K] and steps [K]; stop if one of them has diverged."""
        self.step_counts = [a + b for a, b in zip(self.step_counts, taken.int().tolist(), strict=True)]
        self.mean_losses = (total / taken).tolist()
        for client, loss in zip(self.clients, self.mean_losses, strict=True):
            client.loss_sum = loss
            client.check_loss(lr)

    def _gradients(self, p: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients [K, P] and losses [K] of models [K, P] on their batches."""
        parts = {
            name: p[:, at : at + shape.numel()].reshape(len(p), *shape)
            for name, (at, shape) in self.layout.columns.items()
        }
        gradients, losses = vmap(grad_and_value(self._loss))(parts, x, y, weight)
        return torch.cat([gradients[name].flatten(1) for name in parts], dim=1), losses

    def _loss(self, tensors: dict[str, Tensor], x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Mean loss [] of one client's model on its batch, leaving out the padding."""
        scores = functional_call(self.bound.module, tensors, (x,))
        return (cross_entropy(scores, y, reduction="none") * weight).sum() / weight.sum().clamp(min=1)

    def _schedule(self, epochs: int | None, purpose: str) -> tuple[Tensor, Tensor]:
        """Sample rows [K, S, B] of every step, and weights [K, S, B] that are 0 where they are padding."""
        size = min(self.training.batch, max(client.n for client in self.clients))
        device = self.bound.w.device
        if epochs is None and self.training.minibatches:
            rows = torch.zeros(len(self.clients), self.training.minibatches, size, dtype=torch.int64, device=device)
            weights = torch.zeros(rows.shape, dtype=self.bound.w.dtype, device=device)
            for k, client in enumerate(self.clients):
                for s, batch in enumerate(client.rows(None, purpose)):
                    rows[k, s, : len(batch)], weights[k, s, : len(batch)] = batch, 1
            return rows, weights
        epochs = self.training.epochs if epochs is None else epochs
        used = [self.training.used(client.n) for client in self.clients]
        steps = [math.ceil(n / size) for n in used]
        rows = torch.zeros(len(steps), epochs * max(steps), size, dtype=torch.int64, device=device)
        weights = torch.zeros(rows.shape, dtype=self.bound.w.dtype, device=device)
        for k, client in enumerate(self.clients):
            for epoch, shuffled in enumerate(client.shuffled(epochs, purpose)):
                at = slice(epoch * steps[k], (epoch + 1) * steps[k])
                rows[k, at].view(-1)[: used[k]] = shuffled[: used[k]]
                weights[k, at].view(-1)[: used[k]] = 1
        return rows, weights
