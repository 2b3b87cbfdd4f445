"""FedAsync: every reply moves the global model towards it, the less the later it comes.

Xie, Koyejo, Gupta: Asynchronous Federated Optimization. 2019.

    w_k <- SGD on f_k(w) + rho/2 |w - w^t0|^2 from w^t0                         on client k
    w   <- (1 - alpha_d) w + alpha_d w_k,   alpha_d = alpha s(d)                when its reply comes, d rounds late
    s(d) = 1                                                                    constant
         = (d + 1)^-a                                                           polynomial
         = 1 if d <= b else 1 / (a (d - b) + 1)                                 hinge

Replies that come in one round are taken in turn, in the order of arrival. `together=mean` is how SPFL's Table 2 runs
it: each late model is first drawn towards the global one, then all enter the sample-weighted mean, those in time as
they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedkin.client import Client
from fedkin.config import Fraction, Nonnegative
from fedkin.method import Judged, Message, Method, Mixing, Replies, State
from fedkin.mixing import same_for_all, shares


@dataclass(frozen=True)
class FedAsync(Method):
    """One model for everybody."""

    name: ClassVar[str] = "fedasync"
    paper: ClassVar[str] = "Xie, Koyejo and Gupta, Asynchronous Federated Optimization, 2019"
    personal: ClassVar[str] = "nothing"
    judged: ClassVar[Judged] = Judged(model="global")
    defaults: ClassVar[Mapping[str, Any]] = {"schedule": "latency", "rounds": 1000, "evaluate_every": 20}
    vectorizes: ClassVar[tuple[str, ...]] = ("train",)

    alpha: Fraction = 0.6
    staleness: Literal["polynomial", "constant", "hinge"] = "polynomial"
    a: Nonnegative = 0.5
    """Of the polynomial; the hinge's is 10 in the paper."""
    b: Nonnegative = 4.0
    """Of the hinge."""
    rho: Nonnegative = 0.005
    together: Literal["in turn", "mean"] = "in turn"
    """What becomes of several replies in one round."""

    def local(self, client: Client, message: Message) -> Message:
        """Local SGD that is held near where it started."""
        start = client.layout.parameters.of(message["w"])

        def pull(g: Tensor, p: Tensor) -> None:
            g.add_(p - start, alpha=self.rho)

        return {"w": client.sgd(message["w"], correct=pull if self.rho else None), "n": client.n}

    def s(self, late: Tensor) -> Tensor:
        """s(d), elementwise."""
        if self.staleness == "constant":
            return torch.ones_like(late)
        if self.staleness == "polynomial":
            return (late + 1) ** -self.a
        return torch.where(late <= self.b, 1, 1 / (self.a * (late - self.b).clamp(min=0) + 1))

    def moved(self, state: State, replies: Replies) -> Tensor | None:
        """For a mean, late models are first drawn towards the global one."""
        if self.together != "mean":
            return None
        near = torch.where(replies.late > 0, self.alpha * self.s(replies.late), 1)[:, None]
        drawn: Tensor = near * replies["w"] + (1 - near) * state["w"]
        return drawn

    def aggregate(self, state: State, replies: Replies) -> Mixing:
        """A step towards every reply in turn, or a mean."""
        drawn = self.moved(state, replies)
        if drawn is not None:
            state["w"] = shares(replies["n"]) @ drawn
            return same_for_all(replies, state.fed.clients)
        alpha = self.alpha * self.s(replies.late)
        for a, w in zip(alpha.tolist(), replies["w"], strict=True):
            state["w"] = torch.lerp(state["w"], w, a)
        row = torch.zeros(state.fed.clients, dtype=replies.dtype)
        # What is left of each reply after those that came behind it; together they make up the move.
        weight = alpha * torch.cat([(1 - alpha).flip(0).cumprod(0).flip(0)[1:], torch.ones(1, dtype=alpha.dtype)])
        row[replies.clients] = weight / weight.sum().clamp(min=torch.finfo(alpha.dtype).tiny)
        return {"all": row.expand(state.fed.clients, -1)}
