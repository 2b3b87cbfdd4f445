"""pFedMe: every client keeps a model of its own within reach of the global one, by Moreau envelopes.

T Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes. NeurIPS 2020. Algorithm 1.

    min_w  1/N sum_i F_i(w),     F_i(w) = min_theta f_i(theta) + lambda / 2 ||theta - w||^2

    theta_i ~ argmin f_i(theta; D) + lambda / 2 ||theta - w_i||^2       K gradient steps on a batch D, on participant i
    w_i    <- w_i - eta lambda (w_i - theta_i)                          from w_i = w, batch after batch
    w      <- (1 - beta) w + beta * mean of the participants' w_i       on the server, all alike

theta_i is the client's model: it stays on the client, and is what the client is judged by. Who has not taken part yet
is judged by w, from which its theta_i would start. eta is the run's `lr`; an epoch makes as many steps of w_i as it
has batches. The K steps go on from the last theta_i, which the paper leaves open: started afresh from w_i each time
they would stay far from the minimum. Only participants compute, though Algorithm 1 lets everybody and then draws whom
to hear. SPFL runs it with `personal_lr=0.01 inner_steps=2 beta=1` and `lr=0.01`. Running statistics of batch norm are
those seen while theta_i is trained, and are averaged with w_i.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedkin.client import Client
from fedkin.config import Count, Positive
from fedkin.method import Judged, Message, Method, Mixing, Replies, State
from fedkin.mixing import same_for_all


@dataclass(frozen=True)
class PFedMe(Method):
    """Personalised federated learning with Moreau envelopes."""

    name: ClassVar[str] = "pfedme"
    paper: ClassVar[str] = "T Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020"
    personal: ClassVar[str] = "the whole model, held near the global one"
    judged: ClassVar[Judged] = Judged(moment="after local training")
    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 800, "batch": 20, "lr": 0.005}

    lam: Positive = 15.0
    """lambda: how strongly a client's model is held near the global one."""
    inner_steps: Count = 5
    """K: gradient steps on every batch."""
    personal_lr: Positive = 0.01
    """Learning rate of these steps; this is the value that SPFL prints."""
    beta: Positive = 1.0
    """How far the server moves: 1 is to the mean, more is beyond it."""

    def local(self, client: Client, message: Message) -> Message:
        """Batch after batch, theta near w, then w towards theta."""
        settings, theta = client.training, client.bound.p
        velocity = torch.zeros_like(theta)
        client.bound.load(message["w"])
        client.bound.module.train()
        w = theta.clone()
        for x, y in client.batches():
            for _ in range(self.inner_steps):
                g = client.gradient(x, y).add_(theta, alpha=settings.weight_decay)
                g.add_(theta - w, alpha=self.lam)
                theta.sub_(velocity.mul_(settings.momentum).add_(g), alpha=self.personal_lr)
            w.sub_(w - theta, alpha=settings.lr * self.lam)
        client.check_loss(self.personal_lr)
        client.private["theta"] = client.bound.w.clone()
        theta.copy_(w)
        return {"w": client.bound.w.clone()}

    def aggregate(self, state: State, replies: Replies) -> Mixing:
        """Towards the mean of the participants; the matrix is that of the mean."""
        state["w"] = torch.lerp(state["w"], replies["w"].mean(0), self.beta)
        return same_for_all(replies, state.fed.clients)

    def personalise(self, client: Client, message: Message) -> Tensor:
        """theta_i; before the client's first round the global model."""
        w: Tensor = message["w"]
        theta: Tensor = client.private.get("theta", w)
        return theta
