"""FedAvg: one model for everybody, the sample-weighted mean of what the participants trained.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks
from Decentralized Data. AISTATS 2017.

    w_k <- SGD(w; D_k)              on each participant k
    w   <- sum_k n_k / n * w_k      on the server
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedkin.client import Client
from fedkin.method import Judged, Message, Method, Mixing, Replies, State
from fedkin.mixing import same_for_all, weighted_mean


@dataclass(frozen=True)
class FedAvg(Method):
    """The global model is judged on every client."""

    name: ClassVar[str] = "fedavg"
    paper: ClassVar[str] = "McMahan et al., Communication-Efficient Learning of Deep Networks, AISTATS 2017"
    personal: ClassVar[str] = "nothing"
    judged: ClassVar[Judged] = Judged(model="global")
    vectorizes: ClassVar[tuple[str, ...]] = ("train",)

    def local(self, client: Client, message: Message) -> Message:
        """Local epochs of SGD from the global model."""
        return {"w": client.sgd(message["w"]), "n": client.n}

    def aggregate(self, state: State, replies: Replies) -> Mixing:
        """The sample-weighted mean."""
        state["w"] = weighted_mean(replies)
        return same_for_all(replies, state.fed.clients)
