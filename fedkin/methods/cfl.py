"""CFL: FedAvg until it stands still, then clients whose updates disagree are parted, again and again.

Sattler, Müller, Samek: Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization under Privacy
Constraints. IEEE Transactions on Neural Networks and Learning Systems 32(8), 2021.

    Delta_i = SGD(theta_c; D_i) - theta_c                                  for every client i of cluster c
    c is parted where   ||sum_i |D_i| / |D_c| Delta_i|| < eps_1   and   max_i ||Delta_i|| > eps_2
    c_1, c_2 = argmin over partitions of   alpha = max_{i in c_1, j in c_2} cos(Delta_i, Delta_j),
               accepted if   gamma < sqrt((1 - alpha) / 2)
    theta_c <- theta_c + sum_i |D_i| / |D_c| Delta_i                       within each cluster, new ones included

The norms of updates depend on model, data and learning rate; `eps1` and `eps2` are therefore in units of the largest
||Delta_i|| of the first round. The partition is the last step of hierarchical clustering on 1 - cos: `single` linkage
gives the argmin above exactly, `complete` linkage keeps clusters compact and seldom parts a client from all others.
Where few clients take part in a round, the last known update of each member counts, and a cluster is only parted once
all of its members have been heard of. Norms and cosines are those of parameters; running statistics of batch norm are
averaged within the cluster like the rest of the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedkin.client import Client
from fedkin.config import Fraction, Nonnegative
from fedkin.method import Message, Method, Mixing, Overview, Replies, State
from fedkin.mixing import shares
from fedkin.similarity import clustered, cosine


@dataclass(frozen=True)
class CFL(Method):
    """`eps1` and `eps2` say when a cluster is parted, `gamma` how unlike its halves have to be at least."""

    name: ClassVar[str] = "cfl"
    paper: ClassVar[str] = "Sattler et al., Clustered Federated Learning, IEEE TNNLS 2021"
    personal: ClassVar[str] = "the model of the client's cluster"
    vectorizes: ClassVar[tuple[str, ...]] = ("train",)

    eps1: Nonnegative = 0.2
    eps2: Nonnegative = 0.4
    gamma: Fraction = 0.0
    linkage: Literal["single", "complete"] = "single"

    def start(self, fed: Overview) -> State:
        """One cluster; nobody has been heard of."""
        n, w = fed.clients, fed.initial
        return State(
            fed,
            {
                "clusters": w[None].clone(),
                "member": torch.zeros(n, dtype=torch.int64),
                "delta": w.new_zeros(n, len(w)),
                "n": w.new_zeros(n),
            },
        )

    def serve(self, state: State, client: int) -> Message:
        """The model of the client's cluster."""
        return {"w": state["clusters"][state["member"][client]]}

    def local(self, client: Client, message: Message) -> Message:
        """What local epochs of SGD change."""
        return {"delta": client.sgd(message["w"]) - message["w"], "n": client.n}

    def aggregate(self, state: State, replies: Replies) -> Mixing:
        """Part the clusters that are due, then take a step in each."""
        who = replies.clients
        state["delta"][who], state["n"][who] = replies["delta"], replies["n"]
        updates = state.fed.layout.parameters.of(state["delta"])
        norms = torch.linalg.vector_norm(updates, dim=1)
        state.setdefault("unit", float(norms.max()))
        for c in range(len(state["clusters"])):
            members = (state["member"] == c).nonzero().squeeze(1)
            moved = self.leaving(updates[members], norms[members], state["n"][members], state["unit"])
            if moved.any():
                state["member"][members[moved]] = len(state["clusters"])
                state["clusters"] = torch.cat([state["clusters"], state["clusters"][c : c + 1]])
        # [M, K]: a participant's share of its cluster's participants; an absent cluster stays where it is.
        inside = (state["member"][who] == torch.arange(len(state["clusters"]))[:, None]) * replies["n"]
        step = inside / inside.sum(1, keepdim=True).clamp(min=1)
        state["clusters"] = state["clusters"] + step @ replies["delta"]
        return {"all": mixing(step, state["member"], who)}

    def leaving(self, updates: Tensor, norms: Tensor, n: Tensor, unit: float) -> Tensor:
        """Which of a cluster's members [K] make up a new cluster, from their updates [K, P]: none if not due."""
        stay = torch.zeros(len(updates), dtype=torch.bool)
        if len(updates) < 2 or not n.all():
            return stay
        together = torch.linalg.vector_norm(shares(n) @ updates)
        if together >= self.eps1 * unit or norms.max() <= self.eps2 * unit:
            return stay
        rho = cosine(updates)
        second = bipartition(rho, self.linkage)
        alpha = rho[second][:, ~second].max().clamp(max=1)
        return second if self.gamma < ((1 - alpha) / 2).sqrt() else stay


def bipartition(rho: Tensor, method: Literal["complete", "single"]) -> Tensor:
    """The half [K] of K >= 2 clients without the first one, from similarities [K, K]."""
    half = clustered(rho, 2, method)
    return half != half[0]


def mixing(step: Tensor, member: Tensor, who: list[int]) -> Tensor:
    """Whose updates moved each client's model [N, N]; a client of an absent cluster goes on by itself."""
    rows = step.new_zeros(len(member), len(member))
    rows[:, who] = step[member]
    return torch.where(rows.sum(1, keepdim=True) > 0, rows, torch.eye(len(member), dtype=step.dtype))
