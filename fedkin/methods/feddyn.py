"""FedDyn: clients minimise a loss that is corrected so that their minima agree with everybody's.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic Regularization. ICLR 2021.

    theta_k <- argmin L_k(theta) - <g_k, theta> + alpha / 2 * ||theta - theta_s||^2     on each participant k, by SGD
    g_k     <- g_k - alpha (theta_k - theta_s)                                          the gradient of L_k at theta_k
    h       <- h - alpha / m * sum over participants of (theta_k - theta_s)             on the server, m clients in all
    theta_s <- mean over participants of theta_k - h / alpha

theta_s is the server's model; g_k and h start at zero. Both terms are in every gradient: without the quadratic one the
update of g_k, which is the condition for a minimum, does not give a gradient of L_k. g_k never leaves its client.
Means are over clients, not samples, as in the paper: h is always the mean of all g_k. The paper tries alpha = 0.1, 0.01
and 0.001. A small alpha needs many local steps: g_k closes in on the gradient at a rate of about alpha * lr * steps a
round, and until it does, h adds up the same change again and again. The running statistics of batch norm have no
gradient: they are the plain mean over participants.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedkin.client import Client
from fedkin.config import Positive
from fedkin.method import Judged, Message, Method, Mixing, Overview, Replies, State
from fedkin.mixing import same_for_all


@dataclass(frozen=True)
class FedDyn(Method):
    """`alpha` is the strength of the quadratic term, and 1 / alpha the server's step along h."""

    name: ClassVar[str] = "feddyn"
    paper: ClassVar[str] = "Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021"
    personal: ClassVar[str] = "nothing"
    judged: ClassVar[Judged] = Judged(model="global")

    alpha: Positive = 0.01

    def start(self, fed: Overview) -> State:
        """The global model, with nothing to correct yet."""
        return State(fed, {"w": fed.initial.clone(), "h": torch.zeros_like(fed.layout.parameters.of(fed.initial))})

    def local(self, client: Client, message: Message) -> Message:
        """Local epochs of SGD on the corrected loss, and the client's own gradient brought up to date."""
        parameters = client.layout.parameters
        anchor = parameters.of(message["w"])
        gradient = client.private.get("gradient", torch.zeros_like(anchor))

        def correct(g: Tensor, p: Tensor) -> None:
            g.sub_(gradient).add_(p - anchor, alpha=self.alpha)

        w = client.sgd(message["w"], correct=correct)
        client.private["gradient"] = gradient - self.alpha * (parameters.of(w) - anchor)
        return {"w": w}

    def aggregate(self, state: State, replies: Replies) -> Mixing:
        """The mean of the participants, moved along h; the record shows that mean."""
        parameters, everybody = state.fed.layout.parameters, state.fed.clients
        drift = parameters.of(replies["w"]) - parameters.of(state["w"])
        state["h"] = state["h"] - self.alpha / everybody * drift.sum(0)
        mean = replies["w"].mean(0)
        state["w"] = parameters.put(mean, parameters.of(mean) - state["h"] / self.alpha)
        return same_for_all(replies, everybody)
