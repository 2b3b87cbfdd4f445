"""MOON: FedAvg whose clients keep their features near the global model's and away from their own former ones.

Li, He, Song: Model-Contrastive Federated Learning. CVPR 2021.

    loss     = cross-entropy + mu * l_con
    l_con    = -log(e(z, z_glob) / (e(z, z_glob) + e(z, z_prev))),   e(a, b) = exp(cos(a, b) / tau)
    z, z_glob, z_prev    features of a sample by the model in training, the global model and the client's last one

Features are what the classifier is given; no projection head is added to the network. z_glob and z_prev belong to
fixed models, so both are computed once a round for all samples, in evaluation mode. A client that has not trained
before has nothing to contrast with: with everybody present this is the paper's first round, in which z_prev is z_glob
and l_con the same for every z. The paper takes the best mu of 0.1, 1, 5 and 10 for each dataset: 5 for CIFAR-10, 1 for
CIFAR-100 and Tiny-ImageNet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

from fedkin.client import Client, Objective
from fedkin.config import Nonnegative, Positive
from fedkin.method import Judged, Message, Method, Mixing, Replies, State
from fedkin.mixing import same_for_all, weighted_mean


@dataclass(frozen=True)
class Moon(Method):
    """`mu` is the weight of the contrast, `temperature` its tau."""

    name: ClassVar[str] = "moon"
    paper: ClassVar[str] = "Li et al., Model-Contrastive Federated Learning, CVPR 2021"
    personal: ClassVar[str] = "nothing"
    judged: ClassVar[Judged] = Judged(model="global")

    mu: Nonnegative = 1.0
    temperature: Positive = 0.5

    def local(self, client: Client, message: Message) -> Message:
        """Local epochs of SGD on both losses; the result is what the next round is contrasted with."""
        previous = client.private.get("previous")
        objective = None if previous is None else self.contrasted(client, message["w"], previous)
        w = client.sgd(message["w"], objective=objective)
        client.private["previous"] = w
        return {"w": w, "n": client.n}

    def contrasted(self, client: Client, w: Tensor, previous: Tensor) -> Objective:
        """The loss of the model in training beside the fixed models `w` [D] and `previous` [D]."""
        z_glob, z_prev = features(client, w), features(client, previous)
        place = torch.zeros_like(client.samples.y)
        place[client.train] = torch.arange(client.n, device=place.device)
        # The same batches that `sgd` takes, by their rows: the order is drawn from the same key.
        rows = client.rows(None, "batches")

        def objective(x: Tensor, y: Tensor) -> Tensor:
            at = place[next(rows)]
            z, scores = client.bound.features(x)
            contrast = contrastive(z.flatten(1), z_glob[at], z_prev[at], self.temperature)
            return cross_entropy(scores, y) + self.mu * contrast

        return objective

    def aggregate(self, state: State, replies: Replies) -> Mixing:
        """The sample-weighted mean, as in FedAvg."""
        state["w"] = weighted_mean(replies)
        return same_for_all(replies, state.fed.clients)


def contrastive(z: Tensor, z_glob: Tensor, z_prev: Tensor, temperature: float) -> Tensor:
    """The mean of l_con over features [B, F] of a batch."""
    alike = torch.stack([cosine_similarity(z, z_glob), cosine_similarity(z, z_prev)], dim=1)
    return cross_entropy(alike / temperature, torch.zeros(len(z), dtype=torch.int64, device=z.device))


@torch.no_grad()
def features(client: Client, w: Tensor) -> Tensor:
    """Features [n, F] of all the client's training samples, in the order of `client.train`, by a model [D]."""
    client.bound.eval(w)
    parts = [client.bound.features(x)[0].flatten(1) for x, _ in client.samples.test_batches(client.train)]
    return torch.cat(parts)
