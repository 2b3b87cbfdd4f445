"""LGA and PLGA: a late client's model is leapt to where it would be by now, before it is averaged with the others.

Personalized Heterogeneous FL with Gradient Similarity (under double-blind review), section 3.2, Algorithm 2.

    w_k    <- SGD(w^t0; D_k)                          client k, whose reply comes when the server is at w^tau
    w_k^tau                                           LGA: equations (8), (13) and (11) or (10), if it is late
    w      <- sum_k n_k / n * w_k^tau                 over all replies of this round, late or not
    w_kp   <- w^t0 + (1 - S~) (w_k^tau - w^t0) + S~ (w^tau - w^t0)          PLGA: client k's own model      (14)

For a client that replies in time, t0 is the global model before this round, and tau = t1 the one after it. The
equations are in `fedkin.leap`; `form=10`, `coefficient=cosine` and `similarity=tensor` are their other readings. Text
and Figure 1 of the paper send every client its personalised model: `sends=personal`. Its tables fit training that
always starts from the global model, the personalised one being for use alone: `sends=global`. The paper's Table 2
has the client's own model as it left its training for all methods but PLGA: `--judge-local`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedkin.client import Client
from fedkin.leap import Leap, personal
from fedkin.method import Judged, Message, Method, Mixing, Overview, Replies, State
from fedkin.mixing import same_for_all, shares


@dataclass(frozen=True)
class LGA(Method):
    """Leap gradient approximation: one global model."""

    name: ClassVar[str] = "lga"
    paper: ClassVar[str] = "Personalized Heterogeneous FL with Gradient Similarity, section 3.2"
    personal: ClassVar[str] = "nothing"
    judged: ClassVar[Judged] = Judged(model="global")
    defaults: ClassVar[Mapping[str, Any]] = {
        "schedule": "stragglers:0.5",
        "rounds": 800,
        "minibatches": 20,
        "batch": 64,
        "lr": 0.001,
    }
    vectorizes: ClassVar[tuple[str, ...]] = ("train",)
    leaps: ClassVar[bool] = True

    form: Literal["11", "10"] = "11"
    """Equation (11) or (10)."""
    coefficient: Literal["softmax", "cosine"] = "softmax"
    """S~ of (9) and (13), or the cosine of (8) as it is."""
    similarity: Literal["stage", "tensor"] = "stage"
    """One cosine a stage, or one for every tensor of parameters."""
    stages: str = "2"
    """How layers are grouped (see spfl)."""

    @property
    def leap(self) -> Leap:
        """The equations."""
        return Leap(self.form, self.coefficient, self.similarity, self.stages)

    def local(self, client: Client, message: Message) -> Message:
        """Local steps of SGD from what was sent."""
        return {"w": client.sgd(message["w"]), "n": client.n}

    def leapt(self, state: State, replies: Replies) -> tuple[Tensor, Tensor]:
        """Where all models are by now [K, D], and S~ of every column [K, D], which is zero for replies in time."""
        layout, w, s = state.fed.layout, replies["w"].clone(), torch.zeros_like(replies["w"])
        late = [k for k, trip in enumerate(replies.trips) if trip.late]
        if late:
            before, after = (torch.stack([getattr(replies.trips[k], at) for k in late]) for at in ("before", "after"))
            moves = w[late] - replies.sent("w")[late]
            s[late] = self.leap.weights(after - before, moves, layout)
            leapt = self.leap.model(before, state["w"], after, moves, s[late])
            w[late] = layout.buffers.copy(w[late], leapt)
        return w, s

    def moved(self, state: State, replies: Replies) -> Tensor:
        """Where all models are by now."""
        return self.leapt(state, replies)[0]

    def aggregate(self, state: State, replies: Replies) -> Mixing:
        """The sample-weighted mean of the models where they are by now."""
        state["w"] = shares(replies["n"]) @ self.moved(state, replies)
        return same_for_all(replies, state.fed.clients)


@dataclass(frozen=True)
class PLGA(LGA):
    """Personalised leap gradient approximation."""

    name: ClassVar[str] = "plga"
    personal: ClassVar[str] = "the whole model, between the client's own and the global one"
    judged: ClassVar[Judged] = Judged()

    sends: Literal["global", "personal"] = "global"
    """What training starts from."""

    def start(self, fed: Overview) -> State:
        """A global model, and one for each client."""
        return State(fed, {"w": fed.initial.clone(), "W": fed.initial.repeat(fed.clients, 1)})

    def dispatch(self, state: State, client: int, exchange: str) -> Message:
        """The global model, or the client's own."""
        return {"w": state["w"]} if self.sends == "global" else self.serve(state, client)

    def serve(self, state: State, client: int) -> Message:
        """The client's own model."""
        return {"w": state["W"][client]}

    def aggregate(self, state: State, replies: Replies) -> Mixing:
        """The global model, and the models of all who replied (14)."""
        layout, before = state.fed.layout, state["w"]
        leapt, s = self.leapt(state, replies)
        state["w"] = shares(replies["n"]) @ leapt
        start, now = before.expand_as(leapt).clone(), state["w"].expand_as(leapt).clone()
        moves = replies["w"] - replies.sent("w")
        fresh = [k for k, trip in enumerate(replies.trips) if not trip.late]
        s[fresh] = self.leap.weights(now[fresh] - start[fresh], moves[fresh], layout)
        leapt[fresh] = self.leap.model(start[fresh], now[fresh], now[fresh], moves[fresh], s[fresh])
        for k, trip in enumerate(replies.trips):
            if trip.before is not None and trip.late:
                # A late client was sent w^t0 long ago, and its w^tau is the model before this round.
                start[k], now[k] = trip.before, before
        own = personal(start, now, leapt, s)
        state["W"][replies.clients] = layout.buffers.copy(replies["w"], own)
        return same_for_all(replies, state.fed.clients)
