"""What a method may do on a client: its own batches, gradients and local steps, and private state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedkin import randomness
from fedkin.errors import FedkinError
from fedkin.layout import Block, Bound, Layout
from fedkin.method import Predictor, Training

Loss = Callable[[Tensor, Tensor], Tensor]
"""Class scores [B, K] and labels [B] to a mean loss []."""
Correction = Callable[[Tensor, Tensor], object]
"""Changes a gradient [P] in place, given the parameters [P] it was taken at."""

EVALUATION_BATCH = 256


@dataclass(frozen=True)
class Samples:
    """All samples of the federation on this machine, and how to normalise them."""

    x: Tensor
    """[n, ...] uint8 or floating point."""
    y: Tensor
    """[n] int64."""
    scale: Tensor
    shift: Tensor
    """`x * scale + shift` has mean 0 and deviation 1; both broadcast over a batch."""

    def inputs(self, rows: Tensor) -> Tensor:
        """Samples `rows` [...] as normalised inputs [..., *shape]."""
        x = self.x[rows].to(self.scale.dtype)
        return x.mul_(self.scale).add_(self.shift)

    def test_batches(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs [B, ...] and labels [B] of samples `rows`, in large batches laid out for inference."""
        for batch in rows.split(EVALUATION_BATCH):
            x = self.inputs(batch)
            # Without gradients, pooling and thin convolutions are faster with the channels last.
            yield x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x, self.y[batch]


@dataclass
class Client:
    """One client at work in one round."""

    id: int
    round: int
    exchange: str
    seed: int
    samples: Samples
    train: Tensor
    """[n] rows of `samples` to learn from."""
    test: Tensor
    """[m] rows of `samples` to be judged on."""
    bound: Bound
    initial: Tensor
    """[D] the model that everybody starts from; it follows from the seed, so it need not be sent."""
    training: Training
    classes: int
    private: dict[str, Any]
    """What this client remembers from round to round and never sends: tensors, numbers, words."""
    steps: int = 0
    """Gradient steps taken so far in this exchange."""
    loss_sum: float = 0.0

    @property
    def n(self) -> int:
        """How many samples it learns from."""
        return len(self.train)

    @property
    def layout(self) -> Layout:
        """The columns of the model."""
        return self.bound.layout

    def generator(self, purpose: str) -> torch.Generator:
        """Random numbers for one purpose, the same whenever and wherever this round is run."""
        return randomness.generator(self.seed, purpose, self.round, self.id)

    def rows(self, epochs: int, purpose: str = "batches") -> Iterator[Tensor]:
        """Training rows [B], batch by batch: a new order every epoch."""
        order, size = self.generator(f"{self.exchange}/{purpose}"), self.training.batch
        for _ in range(epochs):
            shuffled = self.train[torch.randperm(self.n, generator=order).to(self.train.device)]
            batches = list(shuffled.split(size))
            # Batch norm cannot take the variance of a single sample, so it joins the batch before it.
            if len(batches) > 1 and len(batches[-1]) == 1 and self.layout.norm_statistics.ranges:
                batches[-2:] = [torch.cat(batches[-2:])]
            yield from batches

    def batches(self, epochs: int | None = None, purpose: str = "batches") -> Iterator[tuple[Tensor, Tensor]]:
        """Training inputs [B, ...] and labels [B], batch by batch."""
        for rows in self.rows(self.training.epochs if epochs is None else epochs, purpose):
            yield self.samples.inputs(rows), self.samples.y[rows]

    def gradient(self, x: Tensor, y: Tensor, loss: Loss = cross_entropy) -> Tensor:
        """The gradient [P] of the mean loss at `self.bound.w`; valid until the next call."""
        self.bound.g.zero_()
        value = loss(self.bound.module(x), y)
        value.backward()
        self.steps += 1
        self.loss_sum += value.item()
        return self.bound.g

    def sgd(
        self,
        start: Tensor,
        *,
        epochs: int | None = None,
        lr: float | None = None,
        correct: Correction | None = None,
        only: Block | None = None,
        purpose: str = "batches",
    ) -> Tensor:
        """The model [D] after local epochs of SGD from `start` [D].

        `correct(g, p)` may change each gradient in place before it is used; `only` leaves all other
        parameters as they are. What is not given comes from the run's settings.
        """
        bound, settings = self.bound, self.training
        lr = settings.lr if lr is None else lr
        step = (only or self.layout.parameters) & self.layout.parameters
        velocity = torch.zeros_like(bound.g) if settings.momentum else None
        direction = bound.g if velocity is None else velocity
        moves = [(bound.p[columns], direction[columns]) for columns in step]
        bound.load(start)
        bound.module.train()
        with bound.learning(step):
            for x, y in self.batches(epochs, purpose):
                g = self.gradient(x, y)
                if settings.weight_decay:
                    g.add_(bound.p, alpha=settings.weight_decay)
                if correct:
                    correct(g, bound.p)
                if velocity is not None:
                    velocity.mul_(settings.momentum).add_(g)
                for p, d in moves:
                    p.add_(d, alpha=-lr)
        self.check_loss(lr)
        return bound.w.clone()

    def check_loss(self, lr: float) -> None:
        """Stop with a sentence when training has diverged."""
        if not torch.isfinite(torch.tensor(self.loss_sum)):
            raise FedkinError(
                f"the training loss of client {self.id} is not a finite number in round {self.round}: "
                f"with a learning rate of {lr:g} training diverges, try a smaller one"
            )

    def model(self, w: Tensor) -> Predictor:
        """A model [D] as a function from inputs to class scores, in evaluation mode."""
        self.bound.load(w)
        return self.bound.module.eval()

    def test_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Test inputs [B, ...] and labels [B]."""
        return self.samples.test_batches(self.test)
