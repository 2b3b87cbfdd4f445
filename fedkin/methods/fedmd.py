"""FedMD: clients never share models; they agree on class scores for public samples and learn from these.

Li, Wang: FedMD: Heterogenous Federated Learning via Model Distillation. NeurIPS 2019 workshop.

    once         each client trains on the labelled public set, then on its own          transfer learning
    each round   f_k(x) for x in a public subset                  clients send class scores     communicate
                 f~(x) = mean over k of f_k(x)                    the server's consensus        aggregate
                 train f_k to approach f~ on the subset           clients                       digest
                 train f_k on its own samples for some epochs     clients                       revisit

The model stays on its client. The public set is a share of everybody's training samples (`--public`). Scores are
those before the softmax, and approaching them means the mean absolute difference, as in the paper. Who sat out and
has never taken part is judged after the transfer learning that it would begin with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, l1_loss

from fedkin import randomness
from fedkin.client import Client
from fedkin.config import Count
from fedkin.errors import FedkinError
from fedkin.method import Exchange, Judged, Message, Method, Overview, Replies, State


@dataclass(frozen=True)
class FedMD(Method):
    """`subset` public samples are talked about in a round."""

    name: ClassVar[str] = "fedmd"
    paper: ClassVar[str] = "Li and Wang, FedMD: Heterogenous Federated Learning via Model Distillation, 2019"
    personal: ClassVar[str] = "the whole model; only class scores on public samples are sent"
    judged: ClassVar[Judged] = Judged(moment="after local training")
    defaults: ClassVar[Mapping[str, Any]] = {"public": 0.1}

    subset: Count = 5000
    """Public samples a round; all of them if there are fewer."""
    public_epochs: Count = 5
    digest_epochs: Count = 1

    def start(self, fed: Overview) -> State:
        """The server has no model."""
        return State(fed)

    def serve(self, state: State, client: int) -> Message:
        """Nothing: a client has its own model."""
        return {}

    def exchanges(self, state: State) -> Sequence[Exchange]:
        """Communicate, then digest and revisit."""
        return (Exchange("scores"), Exchange())

    def dispatch(self, state: State, client: int, exchange: str) -> Message:
        """The consensus, once there is one."""
        return {"scores": state["consensus"]} if exchange == "train" else {}

    def local(self, client: Client, message: Message) -> Message:
        """Class scores on this round's public samples, or learning from everybody's."""
        rows = self.talked_about(client)
        if client.exchange == "scores":
            client.private["w"] = self.personalise(client, message)
            with torch.no_grad():
                predict = client.model(client.private["w"])
                parts = [predict(x) for x, _ in client.samples.test_batches(rows)]
            return {"scores": torch.cat(parts)}
        w = self.approach(client, client.private["w"], rows, message["scores"])
        client.private["w"] = client.sgd(w)
        return {}

    def aggregate(self, state: State, replies: Replies) -> None:
        """The mean of the participants' scores."""
        if replies.exchange == "scores":
            state["consensus"] = replies["scores"].mean(0)
        else:
            state.pop("consensus")

    def personalise(self, client: Client, message: Message) -> Tensor:
        """The model this client has trained so far; at first by transfer from the public set."""
        if "w" in client.private:
            w: Tensor = client.private["w"]
            return w
        # Keyed by client alone, so that it comes out the same whenever it is asked for.
        order = randomness.generator(client.seed, "fedmd/transfer", 0, client.id)
        w = self.train_on(client, client.initial, public(client), None, self.public_epochs, order)
        return self.train_on(client, w, client.train, None, client.training.epochs, order)

    def talked_about(self, client: Client) -> Tensor:
        """Public rows of this round, the same for everybody."""
        order = randomness.generator(client.seed, "fedmd/subset", client.round)
        chosen = torch.randperm(len(public(client)), generator=order)[: self.subset]
        return client.public[chosen.to(client.public.device)]

    def approach(self, client: Client, w: Tensor, rows: Tensor, scores: Tensor) -> Tensor:
        """Digest: move the model [D] towards the consensus [d, C] on public rows [d]."""
        return self.train_on(client, w, rows, scores, self.digest_epochs, client.generator("digest"))

    def train_on(
        self, client: Client, w: Tensor, rows: Tensor, scores: Tensor | None, epochs: int, order: torch.Generator
    ) -> Tensor:
        """SGD on given rows, towards their labels or towards given scores."""
        bound, settings = client.bound, client.training
        bound.load(w)
        bound.module.train()
        for _ in range(epochs):
            shuffled = torch.randperm(len(rows), generator=order).to(rows.device)
            for at in client.split(shuffled):
                x, y = client.samples.inputs(rows[at]), client.samples.y[rows[at]]

                def loss(x: Tensor, y: Tensor, at: Tensor = at) -> Tensor:
                    said = bound.module(x)
                    return cross_entropy(said, y) if scores is None else l1_loss(said, scores[at])

                g = client.gradient(x, y, objective=loss)
                if settings.weight_decay:
                    g.add_(bound.p, alpha=settings.weight_decay)
                bound.p.add_(g, alpha=-settings.lr)
        client.check_loss(settings.lr)
        return bound.w.clone()


def public(client: Client) -> Tensor:
    """The public rows, of which there must be some."""
    if not len(client.public):
        raise FedkinError("fedmd distils on public samples, but there are none: give a share, as in --public 0.1")
    return client.public
