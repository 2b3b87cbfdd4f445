"""FedAvgM: FedAvg whose server adds up its steps with momentum.

Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification. 2019.

    d_w <- sum_k n_k / n * (w - w_k)        what the participants' training changed
    v   <- beta v + d_w,   w <- w - v

With momentum a step reaches 1 / (1 - beta) times as far in the end, so a large beta wants a smaller learning rate on
the clients; the paper tries beta = 0, 0.7, 0.9, 0.97, 0.99 and 0.997. Running statistics of batch norm are estimates
and not something to descend on (momentum could carry a variance below zero): they are the plain mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field

from fedkin.client import Client
from fedkin.method import Judged, Message, Method, Mixing, Overview, Replies, State
from fedkin.mixing import same_for_all, weighted_mean


@dataclass(frozen=True)
class FedAvgM(Method):
    """`beta` is the momentum of the server."""

    name: ClassVar[str] = "fedavgm"
    paper: ClassVar[str] = "Hsu et al., Measuring the Effects of Non-Identical Data Distribution, 2019"
    personal: ClassVar[str] = "nothing"
    judged: ClassVar[Judged] = Judged(model="global")
    vectorizes: ClassVar[tuple[str, ...]] = ("train",)

    beta: Annotated[float, Field(ge=0, lt=1)] = 0.9

    def start(self, fed: Overview) -> State:
        """The global model, at rest."""
        return State(fed, {"w": fed.initial.clone(), "v": torch.zeros_like(fed.layout.parameters.of(fed.initial))})

    def local(self, client: Client, message: Message) -> Message:
        """Local epochs of SGD from the global model."""
        return {"w": client.sgd(message["w"]), "n": client.n}

    def aggregate(self, state: State, replies: Replies) -> Mixing:
        """A step with momentum towards the sample-weighted mean; the record shows that mean."""
        parameters, mean = state.fed.layout.parameters, weighted_mean(replies)
        before = parameters.of(state["w"])
        state["v"] = self.beta * state["v"] + (before - parameters.of(mean))
        state["w"] = parameters.put(mean, before - state["v"])
        return same_for_all(replies, state.fed.clients)
