"""DC-ASGD: a late gradient is corrected, to first order, for how far the model has moved on since.

Zheng, Meng, Wang, Chen, Yu, Ma, Liu: Asynchronous Stochastic Gradient Descent with Delay Compensation. ICML 2017.

    g  = gradient at w^t0                                                       on a client, on one mini-batch
    w <- w - eta (g + lambda_t g * g * (w - w^t0))                              when it comes
    lambda_t = lambda                                                           form=constant
             = lambda / (v_t + eps)^1/2,  v_t = m v_(t-1) + (1 - m) g * g       form=adaptive

Products are element by element. It is what LGA's leap comes from, and a reference point rather than a federated
method: a client sends one gradient at a time, as its default `--minibatches 1` has it. With more local work g is the
sum of the gradients along the way, (w^t0 - w_k) / eta. The default lambda is that of the constant form; the
paper has 2 with m = 0.95 for the adaptive one. Running statistics of batch norm are taken as they come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from fedkin.client import Client
from fedkin.config import Nonnegative, Share
from fedkin.method import Judged, Message, Method, Mixing, Overview, Replies, State
from fedkin.mixing import same_for_all

EPSILON = 1e-7


@dataclass(frozen=True)
class DCASGD(Method):
    """One model for everybody."""

    name: ClassVar[str] = "dc-asgd"
    paper: ClassVar[str] = "Zheng et al., Asynchronous SGD with Delay Compensation, ICML 2017"
    personal: ClassVar[str] = "nothing"
    judged: ClassVar[Judged] = Judged(model="global")
    defaults: ClassVar[Mapping[str, Any]] = {
        "schedule": "latency",
        "rounds": 5000,
        "minibatches": 1,
        "evaluate_every": 100,
    }
    vectorizes: ClassVar[tuple[str, ...]] = ("train",)

    form: Literal["constant", "adaptive"] = "constant"
    lam: Nonnegative = 0.04
    """lambda."""
    m: Share = 0.95

    def start(self, fed: Overview) -> State:
        """A global model and, for the adaptive form, the mean square of gradients."""
        v = {"v": torch.zeros_like(fed.initial)} if self.form == "adaptive" else {}
        return State(fed, {"w": fed.initial.clone(), **v})

    def local(self, client: Client, message: Message) -> Message:
        """The gradient, times the learning rate."""
        return {"delta": client.sgd(message["w"]) - message["w"]}

    def aggregate(self, state: State, replies: Replies) -> Mixing:
        """One corrected step after another, in the order of arrival."""
        lr, layout = state.fed.training.lr, state.fed.layout
        for delta, start in zip(replies["delta"], replies.sent("w"), strict=True):
            g = -delta / lr
            lam = torch.full_like(g, self.lam)
            if self.form == "adaptive":
                state["v"] = self.m * state["v"] + (1 - self.m) * g * g
                lam = self.lam / (state["v"] + EPSILON).sqrt()
            moved = state["w"] - lr * (g + lam * g * g * (state["w"] - start))
            state["w"] = layout.buffers.copy(start + delta, moved)
        return same_for_all(replies, state.fed.clients)
