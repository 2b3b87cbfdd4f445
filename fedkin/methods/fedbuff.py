"""FedBuff: the server acts when K updates have come, whenever their clients started.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: Federated Learning with Buffered Asynchronous Aggregation.
AISTATS 2022.

    delta_k = SGD(w^t0; D_k) - w^t0                                             on client k
    w      <- w + eta_g 1/K sum_k s(d_k) delta_k,   s(d) = (1 + d)^-1/2         when K replies have come

The buffer is the schedule's: `--schedule latency:first=10` acts on the first K = 10 replies, and `--join` says how
many clients work at the same time. Running statistics of batch norm are averaged as clients have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedkin.client import Client
from fedkin.config import Nonnegative, Positive
from fedkin.method import Judged, Message, Method, Mixing, Replies, State
from fedkin.mixing import same_for_all


@dataclass(frozen=True)
class FedBuff(Method):
    """One model for everybody."""

    name: ClassVar[str] = "fedbuff"
    paper: ClassVar[str] = "Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022"
    personal: ClassVar[str] = "nothing"
    judged: ClassVar[Judged] = Judged(model="global")
    defaults: ClassVar[Mapping[str, Any]] = {"schedule": "latency:first=10", "rounds": 200}
    vectorizes: ClassVar[tuple[str, ...]] = ("train",)

    server_lr: Positive = 1.0
    """eta_g."""
    exponent: Nonnegative = 0.5
    """Of s(d) = (1 + d)^-exponent; 0 counts late updates in full."""

    def local(self, client: Client, message: Message) -> Message:
        """What local SGD changes."""
        return {"delta": client.sgd(message["w"]) - message["w"]}

    def aggregate(self, state: State, replies: Replies) -> Mixing:
        """A step along the mean of the updates, late ones scaled down."""
        scaled = (1 + replies.late) ** -self.exponent
        state["w"] = state["w"] + self.server_lr * (scaled @ replies["delta"]) / len(replies)
        state.fed.layout.buffers.copy((replies.sent("w") + replies["delta"]).mean(0), state["w"])
        return same_for_all(replies, state.fed.clients)
