"""FedALP: groups of similar clients, each with a model that leans on the global one layer by layer.

Xie, Liu, Qu, Tang, Zhao: FedALP: An Adaptive Layer-Based Approach for Improved Personalized Federated Learning.

    rounds 1 .. T_pre       FedAvg (warm-up), giving w_g
    then, once              every client sends its update from w_g; Ward clustering of 1 - cos into M groups   (3), (4)
                            D_m = sum over the group of gamma_k Delta_k,  delta_m = norm of D_m, layer by layer (5)-(7)
                            Psi_m = beta delta_m / max(delta_m)                                                 (8)
    rounds after T_pre      w = Psi_m w_m + (1 - Psi_m) w_g, layer by layer, goes to the group's clients        (9)
                            w_m <- w_m + sum_k gamma_k Delta_k,  w_g <- sum_m gamma_m w_m

gamma are shares of the data: of a client within its group's participants, of a group within everybody. With beta = 0
every client has the FedAvg model, if everybody takes part (a group of which nobody does stays where it is); with
beta = 1 the layer that moves most is the group's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedkin.client import Client
from fedkin.config import Count, Fraction
from fedkin.layout import Layout
from fedkin.method import Exchange, Message, Method, Mixing, Replies, State
from fedkin.mixing import same_for_all, shares
from fedkin.similarity import clustered, update_cosine


@dataclass(frozen=True)
class FedALP(Method):
    """`beta` from 0 to 1 is how personal the models become."""

    name: ClassVar[str] = "fedalp"
    paper: ClassVar[str] = "Xie et al., FedALP: An Adaptive Layer-Based Approach for Improved Personalized FL"
    personal: ClassVar[str] = "a group's model, blended with the global one layer by layer"
    defaults: ClassVar[Mapping[str, Any]] = {"join": 0.1, "epochs": 20}
    vectorizes: ClassVar[tuple[str, ...]] = ("similarity", "train")

    beta: Fraction = 0.6
    groups: Count = 10
    """M; fewer if there are fewer clients."""
    warm_up: Fraction = 0.5
    """T_pre as a share of all rounds; the paper takes 0.4 to 0.7."""

    def warming(self, state: State) -> bool:
        """Whether this round belongs to the warm-up."""
        return state.round <= round(self.warm_up * state.fed.rounds)

    def exchanges(self, state: State) -> Sequence[Exchange]:
        """After the warm-up everybody is asked once for an update from the global model."""
        due = not self.warming(state) and "groups" not in state
        return (Exchange("similarity", everyone=True), Exchange()) if due else (Exchange(),)

    def serve(self, state: State, client: int) -> Message:
        """The global model, or the group's mixed model (9)."""
        if "groups" not in state:
            return {"w": state["w"]}
        m = int(state["member"][client])
        psi = state["psi"][m]
        return {"w": psi * state["groups"][m] + (1 - psi) * state["w"]}

    def local(self, client: Client, message: Message) -> Message:
        """What local epochs of SGD change."""
        return {"delta": client.sgd(message["w"]) - message["w"], "n": client.n}

    def aggregate(self, state: State, replies: Replies) -> Mixing | None:
        """FedAvg, the grouping, or a step of every group."""
        if replies.exchange == "similarity":
            self.group(state, replies)
            return None
        if "groups" not in state:
            state["w"] = state["w"] + shares(replies["n"]) @ replies["delta"]
            return same_for_all(replies, state.fed.clients)
        member, n = state["member"], replies["n"]
        # gamma [M, K]: a participant's share of its group's participants; an absent group stays where it is.
        inside = (member[replies.clients] == torch.arange(len(state["groups"]))[:, None]) * n
        gamma = inside / inside.sum(1, keepdim=True).clamp(min=1)
        state["groups"] = state["groups"] + gamma @ replies["delta"]
        state["w"] = self.group_shares(state) @ state["groups"]
        return self.mixing(state)

    def group(self, state: State, replies: Replies) -> None:
        """Cluster the clients and find how personal each layer of each group is."""
        layout, count = state.fed.layout, min(self.groups, state.fed.clients)
        state["member"] = ward(update_cosine(replies["delta"], layout), count)
        state["n"] = replies["n"]
        inside = (state["member"] == torch.arange(count)[:, None]) * state["n"]
        d = inside / state["n"].sum() @ replies["delta"]
        state["psi"] = layer_weights(d, layout, self.beta)
        state["groups"] = state["w"].repeat(count, 1)

    def group_shares(self, state: State) -> Tensor:
        """Each group's share of all samples, [M]."""
        return shares(torch.zeros_like(state["groups"][:, 0]).index_add(0, state["member"], state["n"]))

    def mixing(self, state: State) -> Mixing:
        """Layer by layer, whose updates make up client i's model: its group's by Psi, everybody's by the rest."""
        member, n = state["member"], state["n"]
        kin = (member[:, None] == member) * n
        kin = kin / kin.sum(1, keepdim=True)
        layers = state.fed.layout.layers
        psi = {name: state["psi"][member, next(iter(block)).start][:, None] for name, block in layers.items()}
        return {name: p * kin + (1 - p) * shares(n) for name, p in psi.items()}


def ward(rho: Tensor, groups: int) -> Tensor:
    """Group numbers [N] from similarities [N, N]: Ward linkage on 1 - rho, cut into `groups`."""
    return torch.zeros(1, dtype=torch.int64) if len(rho) == 1 else clustered(rho, groups, "ward")


def layer_weights(d: Tensor, layout: Layout, beta: float) -> Tensor:
    """Psi [M, D], the same number in all columns of a layer, from the groups' mean updates [M, D] (6)-(8)."""
    layers = list(layout.layers.values())
    delta = torch.stack([(block & layout.parameters).of(d).norm(dim=1) for block in layers], dim=1)
    psi = beta * delta / delta.max(1, keepdim=True).values.clamp(min=torch.finfo(d.dtype).tiny)
    out = torch.zeros_like(d)
    for k, block in enumerate(layers):
        for columns in block:
            out[:, columns] = psi[:, k : k + 1]
    return out
