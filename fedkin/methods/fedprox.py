"""FedProx: FedAvg whose clients are held near the global model while they train.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks.
MLSys 2020.

    min_w F_k(w) + mu / 2 * ||w - w_global||^2      on each participant k, inexactly by SGD
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedkin.client import Client
from fedkin.config import Nonnegative
from fedkin.method import Judged, Message, Method, Mixing, Replies, State
from fedkin.mixing import same_for_all, weighted_mean


@dataclass(frozen=True)
class FedProx(Method):
    """`mu` is the strength of the pull towards the global model."""

    name: ClassVar[str] = "fedprox"
    paper: ClassVar[str] = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020"
    personal: ClassVar[str] = "nothing"
    judged: ClassVar[Judged] = Judged(model="global")
    vectorizes: ClassVar[tuple[str, ...]] = ("train",)

    mu: Nonnegative = 1.0

    def local(self, client: Client, message: Message) -> Message:
        """Local epochs of SGD with the proximal term in every gradient."""
        anchor = client.layout.parameters.of(message["w"])

        def pull(g: Tensor, p: Tensor) -> None:
            g.add_(p - anchor, alpha=self.mu)

        return {"w": client.sgd(message["w"], correct=pull), "n": client.n}

    def aggregate(self, state: State, replies: Replies) -> Mixing:
        """The sample-weighted mean, as in FedAvg."""
        state["w"] = weighted_mean(replies)
        return same_for_all(replies, state.fed.clients)
