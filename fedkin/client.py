"""What a method may do on a client: its own batches, gradients and local steps, and private state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedkin import models, randomness
from fedkin.augment import varied
from fedkin.config import Training
from fedkin.errors import FedkinError
from fedkin.layout import Block, Bound, Layout
from fedkin.method import Predictor

Objective = Callable[[Tensor, Tensor], Tensor]
"""Inputs [B, ...] and labels [B] to a loss [] of the network in `client.bound`."""
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
    memory: torch.memory_format = torch.contiguous_format
    """How a batch lies in memory."""

    def inputs(self, rows: Tensor, change: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Samples `rows` [...] as normalised inputs [..., *shape], perhaps changed before."""
        x = self.x[rows] if change is None else change(self.x[rows])
        x = x.to(self.scale.dtype).mul_(self.scale).add_(self.shift)
        return x.to(memory_format=self.memory) if rows.ndim == 1 else x

    def test_batches(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs [B, ...] and labels [B] of samples `rows`, in large batches."""
        for batch in rows.split(EVALUATION_BATCH):
            yield self.inputs(batch), self.y[batch]


class Networks:
    """Networks by name for these samples, each built once on a worker."""

    def __init__(self, shape: tuple[int, ...], classes: int, like: Tensor) -> None:
        self.shape, self.classes, self.like = shape, classes, like
        self._bound: dict[str, Bound] = {}

    def __getitem__(self, name: str) -> Bound:
        if name not in self._bound:
            # Whether a network is here already must not change what is drawn after it.
            with torch.random.fork_rng():
                self._bound[name] = Bound(self.build(name))
        return self._bound[name]

    def build(self, name: str) -> nn.Module:
        """A new network, its weights drawn from torch's global generator."""
        return models.build(name, self.shape, self.classes).to(self.like)


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
    """The working module, shared by all clients of a worker."""
    networks: Networks
    """Further networks that a method may want beside the model."""
    initial: Tensor
    """[D] the model that everybody starts from; it follows from the seed, so it need not be sent."""
    training: Training
    classes: int
    private: dict[str, Any]
    """What this client remembers from round to round and never sends: tensors, numbers, words."""
    public: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    """Rows of `samples` that everybody has; often none."""
    steps: int = 0
    """Gradient steps taken so far in this exchange."""
    loss_sum: Tensor | float = 0.0
    """Their losses, added up on the device: reading each of them would make a GPU wait."""

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

    def shuffled(self, epochs: int, purpose: str) -> Iterator[Tensor]:
        """All training rows [n], epoch by epoch: in a new order or, if the run has it so, always in the same."""
        order = self.generator(f"{self.exchange}/{purpose}")
        for _ in range(epochs):
            yield self.in_order(purpose, order)

    def in_order(self, purpose: str, order: torch.Generator) -> Tensor:
        """All training rows [n] in a generator's next order, or in the only one of all rounds, perhaps by class."""
        if self.training.order != "shuffled":
            order = randomness.generator(self.seed, f"{self.exchange}/{purpose}/order", 0, self.id)
        rows = self.train[torch.randperm(self.n, generator=order).to(self.train.device)]
        if self.training.order == "by-class":
            turn = torch.randperm(self.classes, generator=order).to(rows.device)
            rows = rows[turn[self.samples.y[rows]].argsort(stable=True)]
        return rows

    def rows(self, epochs: int | None, purpose: str) -> Iterator[Tensor]:
        """Training rows [B], batch by batch: of so many epochs or, by default, as the run's settings say."""
        if epochs is None and self.training.minibatches:
            yield from self.going_on(self.training.minibatches, purpose)
            return
        for shuffled in self.shuffled(self.training.epochs if epochs is None else epochs, purpose):
            yield from self.split(shuffled)

    def split(self, rows: Tensor) -> list[Tensor]:
        """Rows [n] in batches [B]; the last may be shorter, or is dropped, if the run has it so."""
        batches = list(rows[: self.training.used(len(rows))].split(self.training.batch))
        # Batch norm cannot take the variance of a single sample, so it joins the batch before it.
        if len(batches) > 1 and len(batches[-1]) == 1 and self.layout.norm_statistics.ranges:
            batches[-2:] = [torch.cat(batches[-2:])]
        return batches

    def going_on(self, count: int, purpose: str) -> Iterator[Tensor]:
        """The next `count` batches of rows [B], where the last round stopped; every pass is shuffled anew."""
        name = f"{self.exchange}/{purpose}"
        place = self.private.get(f"passed/{name}", 0)
        self.private[f"passed/{name}"] = place + count
        length = len(self.split(self.train))
        batches: list[Tensor] = []
        for at in range(place, place + count):
            if not batches or at % length == 0:
                order = randomness.generator(self.seed, f"{name}/pass", at // length, self.id)
                batches = self.split(self.in_order(purpose, order))
            yield batches[at % length]

    def batches(self, epochs: int | None = None, purpose: str = "batches") -> Iterator[tuple[Tensor, Tensor]]:
        """Training inputs [B, ...] and labels [B], batch by batch; images varied, if the run has it so."""
        change = None
        if self.training.augment != "none":
            draws = self.generator(f"{self.exchange}/{purpose}/augment")
            change = partial(varied, augment=self.training.augment, draws=draws)
        for rows in self.rows(epochs, purpose):
            yield self.samples.inputs(rows, change), self.samples.y[rows]

    def gradient(
        self,
        x: Tensor,
        y: Tensor,
        *,
        on: Bound | None = None,
        beside: Predictor | None = None,
        objective: Objective | None = None,
    ) -> Tensor:
        """The gradient [P] of the mean loss at `self.bound.w`; valid until the next call.

        `on` takes it at another network; `beside` adds the scores of a fixed one to the prediction;
        `objective(x, y)` is what to differentiate in place of the cross-entropy.
        """
        bound = on or self.bound
        bound.g.zero_()
        if objective is not None:
            value = objective(x, y)
        else:
            scores = bound.module(x)
            if beside is not None:
                with torch.no_grad():
                    fixed = beside(x)
                scores = scores + fixed
            value = cross_entropy(scores, y)
        value.backward()
        self.steps += 1
        self.loss_sum = self.loss_sum + value.detach()
        return bound.g

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
        """The model [D] after local epochs of SGD from `start` [D].

        `repeats` steps are taken on every batch, and `most` in all; `correct(g, p)` may change each
        gradient in place before it is used; `only` leaves all other parameters as they are; `on` trains
        another network; `beside` adds the scores of a fixed one to the prediction; `objective(x, y)` is
        minimised in place of the cross-entropy. What is not given comes from the run's settings.
        """
        bound, settings = on or self.bound, self.training
        lr = settings.lr if lr is None else lr
        parameters = bound.layout.parameters
        step = (only or parameters) & parameters
        velocity = torch.zeros_like(bound.g) if settings.momentum else None
        direction = bound.g if velocity is None else velocity
        moves = [(bound.p[columns], direction[columns]) for columns in step]
        bound.load(start)
        bound.module.train()
        with bound.learning(step):
            batches = self.batches(epochs, purpose)
            repeated = (batch for batch in batches for _ in range(repeats))
            for x, y in islice(repeated, most):
                g = self.gradient(x, y, on=on, beside=beside, objective=objective)
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
        if not math.isfinite(self.loss_sum):
            short = self.training.used(self.n) % self.training.batch if self.n > self.training.batch else 0
            hint = f", or last_batch=dropped: its epochs end on a batch of {short}" if short else ""
            raise FedkinError(
                f"the training loss of client {self.id} is not a finite number in round {self.round}: "
                f"with a learning rate of {lr:g} training diverges, try a smaller one{hint}"
            )

    def model(self, w: Tensor) -> Predictor:
        """A model [D] as a function from inputs to class scores, in evaluation mode."""
        return self.bound.eval(w)

    def together(self, w: Tensor, second: tuple[str, Tensor] | None) -> Predictor:
        """A model [D] with, if there is one, a second network whose class scores are added."""
        model = self.model(w)
        if second is None:
            return model
        name, numbers = second
        other = self.network(name).eval(numbers)
        return lambda x: model(x) + other(x)

    @torch.inference_mode()
    def losses(self, models: Tensor) -> Tensor:
        """Mean losses [M] of models [M, D] on this client's training samples."""
        means = []
        for w in models:
            predict, total = self.model(w), w.new_zeros(())
            for x, y in self.samples.test_batches(self.train):
                total = total + cross_entropy(predict(x), y, reduction="sum")
            means.append(total / self.n)
        return torch.stack(means)

    @property
    def label_counts(self) -> Tensor:
        """How many training samples there are of each class, [C]."""
        labels = torch.arange(self.classes, device=self.train.device)
        return (self.samples.y[self.train][:, None] == labels).sum(0).to(self.bound.w.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.samples.x.shape[1:])

    def network(self, name: str) -> Bound:
        """Another network (see `fedkin models`) for this client's samples, to train beside the model."""
        return self.networks[name]

    def drawn(self, name: str) -> Tensor:
        """Initial numbers of another network: this client's own draw, the same whenever it is asked for."""
        layout = self.networks[name].layout
        with randomness.seeded_globally(self.seed, f"init/{name}", 0, self.id):
            return layout.flatten(self.networks.build(name))

    def test_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Test inputs [B, ...] and labels [B]."""
        return self.samples.test_batches(self.test)
