"""FedPer: the layers next to the data are learnt together, the last ones stay with their client.

Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers. 2019.

    (W_B, W_Pj) <- SGD(W_B, W_Pj; D_j)          both parts at once, on each participant j
    W_B         <- sum_j n_j / n * W_Bj         base layers, on the server
    W_Pj                                        personalization layers, never sent

W_P is the classifier unless `private_layers` names others. Batch norm's parameters and running statistics go with
the part that their layer belongs to. A client that has never taken part has the initial W_P under the current W_B.

`Parted` is what FedPer has in common with FedRep, FedBN and LG-FedAvg, which differ in who keeps what.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import torch
from torch import Tensor

from fedkin.client import Client
from fedkin.layout import Block, Layout
from fedkin.method import Message, Method, Mixing, Overview, Replies, State
from fedkin.mixing import same_for_all, weighted_mean


@dataclass(frozen=True)
class Parted(Method):
    """One part of the model is averaged; the other stays with its client and is in no message."""

    def kept(self, layout: Layout) -> Block:
        """The columns that never leave their client."""
        raise NotImplementedError

    def shared(self, layout: Layout) -> Block:
        """All others."""
        return layout.all - self.kept(layout)

    def start(self, fed: Overview) -> State:
        """The shared columns of the initial model, [S]."""
        return State(fed, {"w": self.shared(fed.layout).of(fed.initial).clone()})

    def local(self, client: Client, message: Message) -> Message:
        """Local epochs of SGD on the whole model."""
        return self.reply(client, client.sgd(self.personalise(client, message)))

    def reply(self, client: Client, trained: Tensor) -> Message:
        """Keep one part of a trained model [D], send the other [S]."""
        client.private["kept"] = self.kept(client.layout).of(trained).clone()
        return {"w": self.shared(client.layout).of(trained).clone(), "n": client.n}

    def personalise(self, client: Client, message: Message) -> Tensor:
        """The shared columns as they were sent, and this client's own."""
        w = self.shared(client.layout).put(client.initial.clone(), message["w"])
        return self.kept(client.layout).put(w, client.private["kept"]) if "kept" in client.private else w

    def aggregate(self, state: State, replies: Replies) -> Mixing:
        """The sample-weighted mean of the shared columns."""
        state["w"] = weighted_mean(replies)
        mixed = same_for_all(replies, state.fed.clients)
        if not self.kept(state.fed.layout).ranges:
            return mixed
        return {"shared": mixed["all"], "private": torch.eye(state.fed.clients, dtype=state["w"].dtype)}

    def global_model(self, state: State) -> Tensor | None:
        """There is none, unless nothing is kept."""
        w: Tensor = state["w"]
        return None if self.kept(state.fed.layout).ranges else w


@dataclass(frozen=True)
class FedPer(Parted):
    """The classifier is each client's own."""

    name: ClassVar[str] = "fedper"
    paper: ClassVar[str] = "Arivazhagan et al., Federated Learning with Personalization Layers, 2019"
    personal: ClassVar[str] = "the classifier"

    private_layers: str = ""
    """Layers that stay with their client, as in fc2+classifier; if none are named, the classifier."""

    def kept(self, layout: Layout) -> Block:
        """W_P."""
        return named(layout, self.private_layers)


def named(layout: Layout, layers: str) -> Block:
    """The columns of the layers in a text such as `fc2+classifier`; of the classifier if it is empty."""
    if not layers:
        return layout.classifier
    return reduce(Block.__or__, (layout.layer(name.strip()) for name in layers.split("+")))
