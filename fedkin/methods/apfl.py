"""APFL: every client uses a mixture of the global model and of one of its own, and may learn how much of each.

Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning. 2020, Algorithm 1.

    m_i     = alpha_i v_i + (1 - alpha_i) w_i                     the mixture that client i uses
    w_i     <- w_i - eta grad f_i(w_i)                            on every batch, and on the same batch
    v_i     <- v_i - eta alpha_i grad f_i(m_i)                    (the derivative by v_i at m_i)
    alpha_i <- alpha_i - eta <v_i - w_i, grad f_i(m_i)>           if it adapts, within 0..1
    w       <- sum_i n_i / n * w_i                                on the server

All right-hand sides are taken before any of the three moves, and the mixture's gradient moves v_i (and alpha_i) alone:
w_i takes exactly FedAvg's steps. `adapt=round` renews alpha_i on the first batch of each round, `step` on every one.
The paper's plain mean is weighted by samples here. v_i and alpha_i are never sent; v_i starts as the model that the
client is sent when it first takes part, and until then this model serves. Running statistics of batch norm are not
mixed: the mixture collects its own, which are kept with v_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedkin.client import Client
from fedkin.config import Fraction
from fedkin.layout import Layout
from fedkin.method import Message, Method, Mixing, Replies, State
from fedkin.mixing import same_for_all, weighted_mean


@dataclass(frozen=True)
class APFL(Method):
    """`alpha` is the share of the client's own model in the mixture, or where that share starts."""

    name: ClassVar[str] = "apfl"
    paper: ClassVar[str] = "Deng et al., Adaptive Personalized Federated Learning, 2020"
    personal: ClassVar[str] = "a model of its own, mixed with the global one"

    alpha: Fraction = 0.5
    adapt: Literal["never", "round", "step"] = "round"

    def local(self, client: Client, message: Message) -> Message:
        """One step of the global and one of the own model on every batch."""
        bound, lr, p = client.bound, client.training.lr, client.layout.parameters
        w, (v, alpha) = message["w"].clone(), self.own(client, message)
        momenta = [torch.zeros_like(bound.g) for _ in range(2)]
        bound.module.train()
        for k, (x, y) in enumerate(client.batches()):
            bound.load(mixture(v, w, alpha, client.layout))
            at_mixture = client.gradient(x, y).clone()
            client.layout.buffers.copy(bound.w, v)
            bound.load(w)
            at_w = client.gradient(x, y)
            client.layout.buffers.copy(bound.w, w)
            apart = p.of(v) - p.of(w)
            step(client, p.of(v), alpha * at_mixture, momenta[0])
            step(client, p.of(w), at_w, momenta[1])
            if self.adapt == "step" or (self.adapt == "round" and k == 0):
                alpha = (alpha - lr * (apart @ at_mixture)).clamp(0, 1)
        client.check_loss(lr)
        client.private |= {"v": v, "alpha": alpha}
        return {"w": w, "n": client.n}

    def own(self, client: Client, message: Message) -> tuple[Tensor, Tensor]:
        """v_i [D] and alpha_i []."""
        v, alpha = client.private.get("v"), client.private.get("alpha")
        w = message["w"]
        return (w.clone() if v is None else v, w.new_tensor(self.alpha) if alpha is None else alpha)

    def personalise(self, client: Client, message: Message) -> Tensor:
        """The mixture with the global model as the server has it now."""
        v, alpha = self.own(client, message)
        return mixture(v, message["w"], alpha, client.layout)

    def aggregate(self, state: State, replies: Replies) -> Mixing:
        """The sample-weighted mean of the global models, as in FedAvg."""
        state["w"] = weighted_mean(replies)
        return same_for_all(replies, state.fed.clients)


def mixture(v: Tensor, w: Tensor, alpha: Tensor, layout: Layout) -> Tensor:
    """alpha v + (1 - alpha) w of two models [D], with the running statistics of `v`."""
    return layout.buffers.copy(v, alpha * v + (1 - alpha) * w)


def step(client: Client, p: Tensor, g: Tensor, velocity: Tensor) -> None:
    """One step of the run's SGD from parameters [P] along a gradient [P], in place."""
    settings = client.training
    if settings.weight_decay:
        g.add_(p, alpha=settings.weight_decay)
    if settings.momentum:
        g = velocity.mul_(settings.momentum).add_(g)
    p.add_(g, alpha=-settings.lr)
