"""Ditto: FedAvg, and beside it a personal model on every client that is held near the global one.

Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization. ICML 2021, Algorithm 1.

    min_v  F_k(v) + lambda / 2 * ||v - w*||^2                          for every client k, where w* solves FedAvg
    w_k <- SGD(w; D_k),   w <- sum_k n_k / n * w_k                     the global model, as without Ditto
    v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w))                on the same participants, w as it was sent

lambda is `lam`; the paper chooses it from 0.1, 1 and 2 on each client and falls back on 1. Both models see the same
batches. v_k is never sent and starts as the model that the client is sent when it first takes part; until then this
model serves in its place. Running statistics of batch norm follow in each model's own training and are not pulled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedkin.client import Client
from fedkin.config import Count, Nonnegative
from fedkin.method import Judged, Message, Method, Mixing, Replies, State
from fedkin.mixing import same_for_all, weighted_mean


@dataclass(frozen=True)
class Ditto(Method):
    """`lam` is the strength of the pull towards the global model."""

    name: ClassVar[str] = "ditto"
    paper: ClassVar[str] = "Li et al., Ditto: Fair and Robust FL Through Personalization, ICML 2021"
    personal: ClassVar[str] = "the whole model, pulled towards the global one"
    judged: ClassVar[Judged] = Judged(moment="after local training")

    lam: Nonnegative = 1.0
    personal_epochs: Count | None = None
    """Epochs on the personal model; otherwise the run's local epochs."""

    def local(self, client: Client, message: Message) -> Message:
        """Train the personal model near the global one, and the global one as in FedAvg."""
        anchor = client.layout.parameters.of(message["w"])

        def pull(g: Tensor, p: Tensor) -> None:
            g.add_(p - anchor, alpha=self.lam)

        v = self.personalise(client, message)
        client.private["v"] = client.sgd(v, correct=pull, epochs=self.personal_epochs)
        return {"w": client.sgd(message["w"]), "n": client.n}

    def personalise(self, client: Client, message: Message) -> Tensor:
        """v_k."""
        v: Tensor = client.private["v"] if "v" in client.private else message["w"]
        return v

    def aggregate(self, state: State, replies: Replies) -> Mixing:
        """The sample-weighted mean of the global models, as in FedAvg."""
        state["w"] = weighted_mean(replies)
        return same_for_all(replies, state.fed.clients)
