"""Per-FedAvg: one model for everybody, trained to be good after a client's own adaptation to its data.

Fallah, Mokhtari, Ozdaglar: Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach. NeurIPS 2020.

    min_w  1/n sum_i f_i(w - alpha grad f_i(w))

    w~   = w - alpha grad f_i(w; D)                                            on participant i,
    w   <- w - beta (I - alpha hess f_i(w; D'')) grad f_i(w~; D')              step by step
    w   <- mean of the participants' w                                         on the server, all alike

`perfedavg` drops the Hessian (first-order). `perfedavg-hf` takes its product with g = grad f_i(w~; D') from two more
gradients (Hessian-free):

    hess f_i(w; D'') g  ~  (grad f_i(w + delta g; D'') - grad f_i(w - delta g; D'')) / (2 delta)

D, D' and D'' are batches of three independent shuffles, so local epochs make as many steps as in FedAvg; with
`draw=in-turn` they follow each other in one pass over the client's samples, and an epoch makes half as many steps, or
a third with the Hessian. beta is the run's `lr` unless it is given. Before its test a client adapts by one pass over
its batches at alpha (`passes=3`: by three; `adapt=step`: by one batch). pFedSim runs the first-order form with alpha
0.01 and beta 0.001, FedSimSup the Hessian-free one with alpha 0.001 and three passes. SPFL's Table 1 means by
Per-FedAvg two SGD steps on each batch, with the global model tested as it is: `form=two-step` with `lr=0.01`. Running
statistics of batch norm are averaged like all other columns, and see every batch that a gradient is taken on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedkin.client import Client
from fedkin.config import Count, Nonnegative, Positive
from fedkin.method import Judged, Message, Method, Mixing, Replies, State
from fedkin.mixing import same_for_all

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Meta(Method):
    """What both forms have in common; as it is, the first-order one."""

    paper: ClassVar[str] = "Fallah et al., Personalized FL with Theoretical Guarantees: A MAML Approach, NeurIPS 2020"
    personal: ClassVar[str] = "one pass of adaptation before the test"
    judged: ClassVar[Judged] = Judged(model="personalised after fine-tuning")
    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 1000, "lr": 0.001}
    takes: ClassVar[tuple[str, ...]] = ("inner", "batches")
    """The batches of a meta-step, by the purpose for which they are drawn."""

    alpha: Nonnegative = 0.01
    """Learning rate of the adaptation."""
    beta: Positive | None = None
    """Learning rate of the meta-step; otherwise the run's."""
    draw: Literal["independent", "in-turn"] = "independent"
    """Where the batches of a meta-step come from: shuffles of their own, or one pass over the samples."""
    adapt: Literal["pass", "step"] = "pass"
    """Before a test: whole passes over the client's batches, or one batch."""
    passes: Count = 1
    """Passes of the adaptation before a test."""

    def local(self, client: Client, message: Message) -> Message:
        """Meta-steps from the global model, each along the gradient at the adapted model."""
        p, momentum, beta = client.bound.p, client.training.momentum, self.rate(client)
        velocity = torch.zeros_like(p)
        client.bound.load(message["w"])
        client.bound.module.train()
        for d, d1, *further in self.batches(client):
            w = p.clone()
            p.sub_(gradient(client, d), alpha=self.alpha)
            g = gradient(client, d1).clone()
            velocity.mul_(momentum).add_(self.corrected(client, w, g, *further))
            p.copy_(w).sub_(velocity, alpha=beta)
        client.check_loss(beta)
        return {"w": client.bound.w.clone()}

    def batches(self, client: Client) -> Iterator[tuple[Batch, ...]]:
        """D, D' and what else a meta-step takes; what is left of a pass and not enough for a step is left out."""
        if self.draw == "in-turn":
            return zip(*[client.batches()] * len(self.takes), strict=False)
        return zip(*(client.batches(purpose=name) for name in self.takes), strict=True)

    def rate(self, client: Client) -> float:
        """beta."""
        return client.training.lr if self.beta is None else self.beta

    def corrected(self, client: Client, w: Tensor, g: Tensor, *further: Batch) -> Tensor:
        """The meta-gradient [P] at `w` [P], from the gradient `g` [P] at the adapted model."""
        return g

    def aggregate(self, state: State, replies: Replies) -> Mixing:
        """The mean, in which every participant counts the same."""
        state["w"] = replies["w"].mean(0)
        return same_for_all(replies, state.fed.clients)

    def personalise(self, client: Client, message: Message) -> Tensor:
        """The global model after the client's adaptation."""
        most = 1 if self.adapt == "step" else None
        return client.sgd(message["w"], epochs=self.passes, most=most, lr=self.alpha, purpose="adapt")


@dataclass(frozen=True)
class PerFedAvg(Meta):
    """First-order, or what SPFL calls by this name."""

    name: ClassVar[str] = "perfedavg"

    form: Literal["first-order", "two-step"] = "first-order"

    def __post_init__(self) -> None:
        if self.form == "two-step":
            # Scores say what was judged, and here it is another model than in the first-order form.
            object.__setattr__(self, "judged", Judged(model="global"))

    def local(self, client: Client, message: Message) -> Message:
        """Meta-steps, or two plain steps on every batch."""
        if self.form == "two-step":
            return {"w": client.sgd(message["w"], lr=self.rate(client), repeats=2)}
        return super().local(client, message)

    def personalise(self, client: Client, message: Message) -> Tensor:
        """The adapted model; in the two-step form the global one."""
        w: Tensor = message["w"]
        return w if self.form == "two-step" else super().personalise(client, message)


@dataclass(frozen=True)
class PerFedAvgHF(Meta):
    """Hessian-free."""

    name: ClassVar[str] = "perfedavg-hf"
    takes: ClassVar[tuple[str, ...]] = ("inner", "batches", "further")

    delta: Positive = 1e-3
    """How far apart gradients are taken for the product with the Hessian, as a multiple of g."""

    def corrected(self, client: Client, w: Tensor, g: Tensor, *further: Batch) -> Tensor:
        """g less alpha times the Hessian's product with it, by the difference of two gradients."""
        p, (d2,) = client.bound.p, further
        p.copy_(w).add_(g, alpha=self.delta)
        above = gradient(client, d2).clone()
        p.copy_(w).sub_(g, alpha=self.delta)
        below = gradient(client, d2)
        return g - self.alpha / (2 * self.delta) * (above - below)


def gradient(client: Client, batch: Batch) -> Tensor:
    """The gradient [P] of the loss on a batch, weight decay included, where the working module is now."""
    return client.gradient(*batch).add_(client.bound.p, alpha=client.training.weight_decay)
