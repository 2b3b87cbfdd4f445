"""L2GD: every client has a model of its own, and now and then all take a step towards their mean.

Hanzely, Richtárik: Federated Learning of a Mixture of Global and Local Models. 2020, Algorithm 1 (loopless local
gradient descent).

    min over x_1 .. x_n of   1/n sum_i f_i(x_i) + lambda / 2n * sum_i ||x_i - x_mean||^2
    with probability 1 - p:  x_i <- x_i - a / (n (1 - p)) * gradient of f_i(x_i)
    with probability p:      x_i <- (1 - t) x_i + t x_mean,     t = a lambda / (n p)

A round tosses the coin once, for everybody. In a local round the participants train for the run's local epochs with
its learning rate, lr = a / (n (1 - p)), and nothing is sent. In an averaging round they send their models, get the
mean over clients of what was sent, and move by t = lr lambda (1 - p) / p, at most 1. So a run of T rounds has about
(1 - p) T rounds of training and p T of communication (two in a row send twice, though with everybody present the mean
is then still the same). Where a local round is one gradient step, the balance point is the minimum above; K steps weigh
the losses K times, and `lam` is then K lambda. The paper's best choice, p = lambda / (L + lambda) with lr = 1 / 2L,
makes t = 1/2: for lr = 0.05 that gives the defaults here. A model is private but for averaging rounds; whoever sits out
keeps its own. Running statistics of batch norm move with all other columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedkin import randomness
from fedkin.client import Client
from fedkin.config import Nonnegative, Share
from fedkin.method import Exchange, Judged, Message, Method, Mixing, Overview, Replies, State


@dataclass(frozen=True)
class L2GD(Method):
    """`p` is the probability of an averaging round, `lam` the strength of the pull towards the mean."""

    name: ClassVar[str] = "l2gd"
    paper: ClassVar[str] = "Hanzely and Richtárik, Federated Learning of a Mixture of Global and Local Models, 2020"
    personal: ClassVar[str] = "the whole model, held near the mean"
    judged: ClassVar[Judged] = Judged(moment="after its last step, local or averaging")

    p: Share = 0.5
    lam: Nonnegative = 10.0
    """lambda: 0 leaves every client alone."""

    def start(self, fed: Overview) -> State:
        """Nothing to remember: clients have their own models."""
        return State(fed)

    def exchanges(self, state: State) -> Sequence[Exchange]:
        """The coin: local training, or models to the server and their mean back."""
        toss = torch.rand((), generator=randomness.generator(state.fed.seed, "coin", state.round))
        return (Exchange("collect"), Exchange("average")) if toss < self.p else (Exchange(),)

    def dispatch(self, state: State, client: int, exchange: str) -> Message:
        """The mean of what was collected."""
        return {"mean": state["mean"]} if exchange == "average" else {}

    def serve(self, state: State, client: int) -> Message:
        """Nothing: a client has its own model."""
        return {}

    def local(self, client: Client, message: Message) -> Message:
        """Local epochs of SGD on the client's own model, or its step towards the mean."""
        own = self.personalise(client, message)
        if client.exchange == "collect":
            return {"w": own}
        if client.exchange == "average":
            client.private["w"] = torch.lerp(own, message["mean"], self.step(client.training.lr))
        else:
            client.private["w"] = client.sgd(own)
        return {}

    def step(self, lr: float) -> float:
        """t: how far an averaging round moves towards the mean."""
        return min(1.0, lr * self.lam * (1 - self.p) / self.p)

    def personalise(self, client: Client, message: Message) -> Tensor:
        """The client's own model."""
        w: Tensor = client.private.get("w", client.initial)
        return w

    def aggregate(self, state: State, replies: Replies) -> Mixing | None:
        """The mean over clients; in a local round nothing came."""
        if replies.exchange != "collect":
            state.pop("mean", None)
            return None
        mean = state["mean"] = replies["w"].mean(0)
        t, who = self.step(state.fed.training.lr), torch.tensor(replies.clients)
        matrix = torch.eye(state.fed.clients, dtype=mean.dtype)
        matrix[who, who] = 1 - t
        matrix[who[:, None], who] += t / len(who)
        return {"all": matrix}
