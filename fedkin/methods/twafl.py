"""TWAFL: the mean of everybody's last model, in which a model counts the less the older it is.

Chen, Sun, Jin: Communication-Efficient Federated Deep Learning with Layerwise Asynchronous Model Update and
Temporally Weighted Aggregation. IEEE Transactions on Neural Networks and Learning Systems, 2020.

    w_k <- SGD(w; D_k)                                                         on client k, which began in round t_k
    w   <- sum_k n_k a^-(t - t_k) w_k / sum_k n_k a^-(t - t_k),   a = e / 2    over all clients heard of so far

This is the temporally weighted aggregation alone; the paper's layerwise update, which sends deep layers less often, is
a way to save bytes and not part of it. The weights are divided by their sum, without which models would shrink.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fedkin.client import Client
from fedkin.config import Positive
from fedkin.method import Judged, Message, Method, Mixing, Overview, Replies, State
from fedkin.mixing import shares


@dataclass(frozen=True)
class TWAFL(Method):
    """One model for everybody."""

    name: ClassVar[str] = "twafl"
    paper: ClassVar[str] = (
        "Chen, Sun and Jin, Layerwise Asynchronous Update and Temporally Weighted Aggregation, TNNLS 2020"
    )
    personal: ClassVar[str] = "nothing"
    judged: ClassVar[Judged] = Judged(model="global")
    defaults: ClassVar[Mapping[str, Any]] = {"schedule": "stragglers:0.5"}
    vectorizes: ClassVar[tuple[str, ...]] = ("train",)

    a: Positive = math.e / 2

    def start(self, fed: Overview) -> State:
        """A global model; of every client its last model, its samples, and the round they are from."""
        n, zeros = fed.clients, torch.zeros(fed.clients, dtype=fed.initial.dtype)
        return State(fed, {"w": fed.initial.clone(), "W": fed.initial.repeat(n, 1), "n": zeros, "t": zeros.clone()})

    def local(self, client: Client, message: Message) -> Message:
        """Local epochs of SGD from the global model."""
        return {"w": client.sgd(message["w"]), "n": client.n}

    def aggregate(self, state: State, replies: Replies) -> Mixing:
        """The mean of all clients' last models, by samples and age."""
        who = replies.clients
        state["W"][who], state["n"][who] = replies["w"], replies["n"]
        state["t"][who] = state.round - replies.late
        weights = shares(state["n"] * self.a ** (state["t"] - state.round))
        state["w"] = weights @ state["W"]
        return {"all": weights.expand(state.fed.clients, -1)}
