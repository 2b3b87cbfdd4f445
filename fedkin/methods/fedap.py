"""FedAP: models mixed among clients whose layers see alike inputs, around normalisation layers of each client's own.

Lu, Wang, Chen, Qin, Xu, Dimitriadis, Qin: Personalized Federated Learning with Adaptive Batchnorm for Healthcare.
IEEE Transactions on Big Data, 2022.

    d_ij  = sum_l (|mu_il - mu_jl|^2 + |sigma_il - sigma_jl|^2)^1/2     Wasserstein distance of layers' inputs
    w_ij  = (1 - mu) (1 / d_ij) / sum_k (1 / d_ik)  for j != i,         w_ii = mu
    psi_i <- sum_j w_ij psi_j                                           all but normalisation layers, every round

This is f-FedAP, which needs no pre-trained model: for a share `warm_up` of the rounds it is FedBN (FedAvg in which
normalisation layers stay on their client), then the running statistics of the clients' batch norm give d, once. They
are the only part of these layers that is ever sent. A client that has not trained by then first passes its samples
through its own, without learning. psi_j is what client j trained last, so that a client who sits out a round still
profits from the others. A model without batch norm has no such statistics: then d compares what the classifier is
given, by its mean and deviation over each client's training samples. Means are weighted by samples during warm-up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedkin.client import Client
from fedkin.config import Fraction
from fedkin.layout import Block, Layout
from fedkin.method import Exchange, Message, Method, Mixing, Overview, Replies, State
from fedkin.mixing import normalised, same_for_all, weighted_mean
from fedkin.similarity import norm_distance


@dataclass(frozen=True)
class FedAP(Method):
    """`mu` is the weight of a client's own model, `warm_up` the share of rounds before models are mixed."""

    name: ClassVar[str] = "fedap"
    paper: ClassVar[str] = "Lu et al., Personalized FL with Adaptive Batchnorm for Healthcare, IEEE TBD 2022"
    personal: ClassVar[str] = "normalisation layers, and all others mixed by alike statistics"

    mu: Fraction = 0.5
    warm_up: Fraction = 0.5

    def shared(self, layout: Layout) -> Block:
        """All columns but those of normalisation layers."""
        return layout.all - layout.norm

    def start(self, fed: Overview) -> State:
        """What clients share of one model."""
        return State(fed, {"w": self.shared(fed.layout).of(fed.initial).clone()})

    def warming(self, state: State) -> bool:
        """Whether this round belongs to the warm-up."""
        return state.round <= math.floor(self.warm_up * state.fed.rounds + 1e-9)

    def exchanges(self, state: State) -> Sequence[Exchange]:
        """After the warm-up everybody is asked once for its statistics."""
        due = not self.warming(state) and "mixing" not in state
        return (Exchange("statistics", everyone=True), Exchange()) if due else (Exchange(),)

    def serve(self, state: State, client: int) -> Message:
        """All but normalisation layers: of one model for everybody, then of the client's mixture."""
        return {"w": state["W"][client] if "mixing" in state else state["w"]}

    def global_model(self, state: State) -> None:
        """There is none: normalisation layers differ from the first round on."""

    def personalise(self, client: Client, message: Message) -> Tensor:
        """What was served around the client's own normalisation layers."""
        w = self.shared(client.layout).put(client.initial.clone(), message["w"])
        return client.layout.norm.put(w, client.private["norm"]) if "norm" in client.private else w

    def local(self, client: Client, message: Message) -> Message:
        """Local epochs of SGD on the whole model, or the statistics of what its layers are given."""
        w = self.personalise(client, message)
        if client.exchange == "statistics":
            return {"statistics": self.statistics(client, w)}
        w = client.sgd(w)
        self.keep(client, w)
        return {"w": self.shared(client.layout).of(w), "n": client.n}

    def keep(self, client: Client, w: Tensor) -> None:
        """Normalisation layers stay here."""
        if client.layout.norm.ranges:
            client.private["norm"] = client.layout.norm.of(w).clone()

    @torch.no_grad()
    def statistics(self, client: Client, w: Tensor) -> Tensor:
        """Running statistics of batch norm; without it means and variances of the classifier's inputs [2 F]."""
        bound, columns = client.bound, client.layout.norm_statistics
        if not columns.ranges:
            bound.eval(w)
            batches = client.samples.test_batches(client.train)
            inputs = torch.cat([bound.features(x)[0].flatten(1) for x, _ in batches])
            return torch.cat([inputs.mean(0), inputs.var(0, correction=0)])
        if "norm" not in client.private:
            bound.load(w)
            bound.module.train()
            for x, _ in client.batches(1, "statistics"):
                bound.module(x)
            self.keep(client, w := bound.w)
        return columns.of(w).clone()

    def aggregate(self, state: State, replies: Replies) -> Mixing | None:
        """FedBN, the weights, or every client's mixture."""
        if replies.exchange == "statistics":
            state["mixing"] = adaptive(distances(replies["statistics"], state.fed.layout), self.mu)
            state["trained"] = state["W"] = state["w"].repeat(state.fed.clients, 1)
            return None
        if "mixing" not in state:
            state["w"] = weighted_mean(replies)
            return {"shared": same_for_all(replies, state.fed.clients)["all"]}
        state["trained"][replies.clients] = replies["w"]
        state["W"] = state["mixing"] @ state["trained"]
        return {"shared": state["mixing"]}


def distances(statistics: Tensor, layout: Layout) -> Tensor:
    """d [N, N] from what clients sent: running statistics, or means and variances [N, 2 F]."""
    if layout.norm_statistics.ranges:
        # In double precision: between many clients distances come from products, and the small ones would be lost.
        models = torch.zeros(len(statistics), layout.size, dtype=torch.float64)
        return norm_distance(layout.norm_statistics.put(models, statistics), layout).to(statistics.dtype)
    mean, variance = statistics.chunk(2, dim=1)
    moments = torch.cat([mean, variance.sqrt()], dim=1)
    return torch.cdist(moments, moments, compute_mode="donot_use_mm_for_euclid_dist")


def adaptive(d: Tensor, mu: float) -> Tensor:
    """The weights w [N, N] from distances [N, N]; a client without others keeps its own model."""
    itself = torch.eye(len(d), dtype=d.dtype)
    if len(d) == 1:
        return itself
    near = (1 / d.clamp(min=1e-8)) * (1 - itself)
    return mu * itself + (1 - mu) * normalised(near)
