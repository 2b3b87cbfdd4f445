"""SCAFFOLD: FedAvg whose clients know in which direction their own data pull them, and leave that out.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.
ICML 2020, Algorithm 1.

    y_i  <- y_i - lr (g_i(y_i) - c_i + c)       K local steps of participant i, from the server's model x
    c_i+ <- g_i(x)                              option I: one more pass over the client's samples
         or c_i - c + (x - y_i) / (K lr)        option II: from the steps it took
    x    <- x + server_lr * mean over participants of (y_i - x)
    c    <- c + |S| / N * mean over participants of (c_i+ - c_i)

A client sends y_i and the change of c_i, which it keeps; c and all c_i start at zero, so c is always the mean of all
c_i. Option II is the mean of the gradients that the client met on its way, and is computed as such: for plain SGD that
is the formula above, and with local momentum it remains a mean of gradients. Means are over clients, not samples, as
in the paper. The running statistics of batch norm have no gradient: they are the plain mean over participants.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedkin.client import Client
from fedkin.config import Positive
from fedkin.method import Judged, Message, Method, Mixing, Overview, Replies, State
from fedkin.mixing import same_for_all


@dataclass(frozen=True)
class Scaffold(Method):
    """`option` says how a client renews its control variate c_i."""

    name: ClassVar[str] = "scaffold"
    paper: ClassVar[str] = "Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging, ICML 2020"
    personal: ClassVar[str] = "nothing"
    judged: ClassVar[Judged] = Judged(model="global")

    option: Literal["I", "II"] = "II"
    server_lr: Positive = 1.0

    def start(self, fed: Overview) -> State:
        """The global model, and a control variate of zero."""
        return State(fed, {"w": fed.initial.clone(), "c": torch.zeros_like(fed.layout.parameters.of(fed.initial))})

    def dispatch(self, state: State, client: int, exchange: str) -> Message:
        """The global model, and c once it is not zero any more."""
        return {"w": state["w"], **({"c": state["c"]} if state.round > 1 else {})}

    def local(self, client: Client, message: Message) -> Message:
        """Local epochs of SGD with corrected gradients, then a new c_i."""
        x = message["w"]
        zero = torch.zeros_like(client.layout.parameters.of(x))
        c, own = message.get("c", zero), client.private.get("c", zero)
        renewed = full_gradient(client, x) if self.option == "I" else None
        taken, met = client.steps, torch.zeros_like(zero)

        def correct(g: Tensor, _p: Tensor) -> None:
            met.add_(g)
            g.sub_(own).add_(c)

        y = client.sgd(x, correct=correct)
        if renewed is None:
            renewed = met / (client.steps - taken)
        client.private["c"] = renewed
        return {"w": y, "dc": renewed - own}

    def aggregate(self, state: State, replies: Replies) -> Mixing:
        """The mean of the participants' models, and c, which all clients share in; the record shows that mean."""
        parameters, everybody = state.fed.layout.parameters, state.fed.clients
        mean, before = replies["w"].mean(0), parameters.of(state["w"])
        state["w"] = parameters.put(mean, before + self.server_lr * (parameters.of(mean) - before))
        state["c"] = state["c"] + len(replies) / everybody * replies["dc"].mean(0)
        return same_for_all(replies, everybody)


def full_gradient(client: Client, x: Tensor) -> Tensor:
    """The gradient [P] of the client's loss over all its samples, at the model `x` [D]."""
    client.bound.load(x)
    client.bound.module.train()
    total = torch.zeros_like(client.bound.g)
    for inputs, labels in client.batches(epochs=1, purpose="control"):
        total.add_(client.gradient(inputs, labels), alpha=len(labels) / client.n)
    return total.add_(client.layout.parameters.of(x), alpha=client.training.weight_decay)
