"""FedFomo: every client tries a few others' models on its own data and mixes those that would have helped it.

Zhang, Sapra, Fidler, Yeung, Alvarez: Personalized Federated Learning with First Order Model Optimization. ICLR 2021.

    w_ij    = (L_i(theta_i') - L_i(theta_j)) / ||theta_j - theta_i'||     L_i: loss on client i's validation samples
    theta_i <- theta_i' + sum_j w+_ij (theta_j - theta_i'),   w+ = max(0, w) / sum max(0, w),   then SGD on D_i
    P_i     <- P_i + w_i                                      P starts as the identity

theta_j are the models that clients trained last; theta_i' is the one that client i had trained the time before, so its
own last model is weighed like any other. Client i is sent the M models with the largest P_ij; with probability epsilon
each of them is a random one instead, and epsilon falls by `decay` a round. The client keeps its own models, so they
are not sent. Where no model gains anything it goes on from its own last one. P takes the weights before they are cut
off at zero, so that a harmful model falls behind an untried one; models never trained come last. Losses are taken on
a fixed part of the training samples, from which the client then does not learn. Distances are those of parameters;
running statistics of batch norm are mixed like everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedkin import randomness
from fedkin.client import Client
from fedkin.config import Count, Fraction, Share
from fedkin.method import Judged, Message, Method, Mixing, Overview, Replies, State


@dataclass(frozen=True)
class FedFomo(Method):
    """First order model optimisation: `models` is M, `validation` the share of samples kept to weigh models."""

    name: ClassVar[str] = "fedfomo"
    paper: ClassVar[str] = "Zhang et al., Personalized FL with First Order Model Optimization, ICLR 2021"
    personal: ClassVar[str] = "the whole model, mixed from models that help the client"
    judged: ClassVar[Judged] = Judged(moment="after local training")

    models: Count = 5
    validation: Share = 0.2
    epsilon: Fraction = 0.3
    decay: Fraction = 0.05

    def start(self, fed: Overview) -> State:
        """Everybody's last trained model, who has trained, and P."""
        n, dtype = fed.clients, fed.initial.dtype
        sent = torch.zeros(n, min(self.models, n - 1), dtype=torch.int64)
        trained = torch.zeros(n, dtype=dtype)
        return State(
            fed, {"W": fed.initial.repeat(n, 1), "P": torch.eye(n, dtype=dtype), "trained": trained, "sent": sent}
        )

    def prepare(self, state: State, exchange: str, clients: Sequence[int]) -> None:
        """Choose whose models each participant is sent, and remember it until it replies."""
        for i in clients:
            state["sent"][i] = self.chosen(state, i, state["sent"].shape[1])

    def chosen(self, state: State, client: int, count: int) -> Tensor:
        """Whose models a client is sent, [count]: the best by its row of P, some of them random instead."""
        draw = randomness.generator(state.fed.seed, "models", state.round, client)
        explored = int((torch.rand(count, generator=draw) < self.epsilon - self.decay * (state.round - 1)).sum())
        # Sorting keeps the order of equals: a random order first makes ties random.
        order = torch.randperm(state.fed.clients, generator=draw)
        order = order[order != client]
        order = order[state["trained"][order].argsort(descending=True, stable=True)]
        score = torch.where(state["trained"] > 0, state["P"][client], -torch.inf)
        best = order[score[order].argsort(descending=True, stable=True)][: count - explored]
        rest = order[~torch.isin(order, best)]
        return torch.cat([best, rest[:explored]])

    def dispatch(self, state: State, client: int, exchange: str) -> Message:
        """The chosen models [M, D], stacked; before anybody has trained there are none."""
        return {"models": state["W"][state["sent"][client]]} if state["trained"].any() else {}

    def serve(self, state: State, client: int) -> Message:
        """What the client trained last."""
        return {"w": state["W"][client]}

    def local(self, client: Client, message: Message) -> Message:
        """Weigh the models, mix them and learn from the samples that did not weigh them."""
        own = client.private.get("w", client.initial)
        before = client.private.get("before", client.initial)
        candidates = torch.cat([own[None], message.get("models", own[None][:0])])
        learn, judge = self.split(client)
        losses = replace(client, train=judge).losses(torch.cat([before[None], candidates]))
        p = client.layout.parameters
        w = gains(losses, torch.linalg.vector_norm(p.of(candidates) - p.of(before), dim=1))
        client.train = learn
        trained = client.sgd(weights(w) @ candidates)
        client.private |= {"before": own, "w": trained}
        return {"w": trained, "gains": w}

    def split(self, client: Client) -> tuple[Tensor, Tensor]:
        """Rows to learn from and rows to weigh models on, the same in every round."""
        order = torch.randperm(client.n, generator=randomness.generator(client.seed, "validation", 0, client.id))
        rows = client.train[order.to(client.train.device)]
        kept = min(max(1, round(self.validation * client.n)), client.n - 1)
        # A single sample has to serve both ends.
        return (rows[kept:], rows[:kept]) if kept else (rows, rows)

    def aggregate(self, state: State, replies: Replies) -> Mixing:
        """Take over the trained models and what each client found out about others."""
        who = torch.tensor(replies.clients)
        state["W"][who], state["trained"][who] = replies["w"], 1.0
        mixing = torch.eye(state.fed.clients, dtype=state["P"].dtype)
        for i, message in zip(replies.clients, replies.messages, strict=True):
            gains = message["gains"]
            # A client that was written to before anybody had trained found out about itself alone.
            whose = torch.cat([torch.tensor([i]), state["sent"][i]])[: len(gains)]
            state["P"][i, whose] += gains
            mixing[i, whose] = weights(gains)
        return {"all": mixing}


def gains(losses: Tensor, distances: Tensor) -> Tensor:
    """w [M]: what each model gains per unit of distance, from losses [1 + M] (the first is theta_i') and distances."""
    gain = (losses[0] - losses[1:]) / distances.clamp(min=torch.finfo(losses.dtype).tiny)
    return torch.where(distances > 0, gain, 0)


def weights(gains: Tensor) -> Tensor:
    """w+ [..., M], which sums to one; all on the first model, the client's own, where nothing is gained."""
    positive = gains.clamp(min=0)
    total = positive.sum(-1, keepdim=True)
    first = torch.zeros_like(gains)
    first[..., 0] = 1
    return torch.where(total > 0, positive / total.clamp(min=torch.finfo(gains.dtype).tiny), first)
