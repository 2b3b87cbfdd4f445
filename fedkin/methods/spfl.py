"""SPFL and SPFL-w: clients move along each other's updates, weighted by how alike these updates are.

Personalized Heterogeneous FL with Gradient Similarity (under double-blind review), section 3.1, Algorithm 1.

    g_i      = w - w_i                                          what client i's training changed     (2)
    S_s(i,j) = cos(g_i, g_j) on the layers of stage s,  S~_s = softmax of each row                 (3), (6)
    w_i     <- w_i - alpha sum_j S~_s(i,j) g_j                  SPFL, for each stage s               (7)
    w_i     <- sum_j S~_s(i,j) w_j                              SPFL-w, over the trained models

S is refreshed before round 1 and after every Gamma rounds: all clients go back to the mean of their models and
train one epoch from it, of which only the similarity is kept. Clients train with two gradient steps on every
batch, as in MAML; `local_steps=1` gives the paper's 1-step forms, and that with twice the learning rate the other
reading of its "2 beta". Equation (7) as printed, with |D_j| / |D| and alpha = 0.01, is `weight_by_samples=true`
with `server_lr=0.01`; the paper's results fit neither. `head=private` gives the last layer the identity in place
of its matrix: it is then averaged at each refresh only. `layer_weights=[0.5,0.3,0.2]` compares the weights of the
first stage's layers one by one and weighs their cosines, in place of the cosine of the whole stage.
`compare=models` takes the cosines of the models that the refresh has trained, not of their updates. They are close
to 1 for all pairs, so that everybody gets nearly the plain mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedkin.client import Client
from fedkin.config import Count, Positive
from fedkin.errors import FedkinError
from fedkin.layout import Block, Layout
from fedkin.method import Exchange, Message, Method, Mixing, Overview, Replies, State
from fedkin.mixing import among, mix, shares, softmax
from fedkin.similarity import cosine


@dataclass(frozen=True)
class SPFL(Method):
    """Subclass Personalised Federated Learning, moving models by updates."""

    name: ClassVar[str] = "spfl"
    paper: ClassVar[str] = "Personalized Heterogeneous FL with Gradient Similarity, section 3.1"
    personal: ClassVar[str] = "the whole model, mixed stage by stage"
    defaults: ClassVar[Mapping[str, Any]] = {
        "rounds": 100,
        "epochs": 1,
        "batch": 128,
        "lr": 0.01,
        "weight_decay": 1e-4,
    }
    vectorizes: ClassVar[tuple[str, ...]] = ("similarity", "train")

    stages: str = "2"
    """How layers are grouped: a number (that many stages, the last ones of one layer each) or names, as in
    conv1+conv2|fc1|classifier."""
    head: Literal["mixed", "private"] = "mixed"
    refresh: Count = 10
    """Gamma: rounds between refreshes of the similarity."""
    local_steps: Count = 2
    server_lr: Positive = 1.0
    weight_by_samples: bool = False
    temperature: Positive = 1.0
    layer_weights: tuple[float, ...] = ()
    compare: Literal["updates", "models"] = "updates"
    """What the similarity is a cosine of."""

    def start(self, fed: Overview) -> State:
        """One model per client, all the same."""
        return State(fed, {"W": fed.initial.repeat(fed.clients, 1)})

    def exchanges(self, state: State) -> Sequence[Exchange]:
        """A refresh of the similarity where one is due, then the round itself."""
        due = (state.round - 1) % self.refresh == 0
        return (Exchange("similarity", everyone=True), Exchange()) if due else (Exchange(),)

    def prepare(self, state: State, exchange: str, clients: Sequence[int]) -> None:
        """For a refresh everybody goes back to the mean."""
        if exchange == "similarity":
            state["W"] = state["W"].mean(0).repeat(state.fed.clients, 1)

    def serve(self, state: State, client: int) -> Message:
        """The client's own model."""
        return {"w": state["W"][client]}

    def local(self, client: Client, message: Message) -> Message:
        """What the client's training changes (2)."""
        epochs = 1 if client.exchange == "similarity" else None
        trained = client.sgd(message["w"], epochs=epochs, repeats=self.local_steps)
        return {"g": message["w"] - trained, "n": client.n}

    def aggregate(self, state: State, replies: Replies) -> Mixing | None:
        """A new similarity, or the move of every client's model."""
        stages = state.fed.layout.stages(self.stages)
        if replies.exchange == "similarity":
            compared = replies["g"] if self.compare == "updates" else state["W"] - replies["g"]
            for name, block in stages.items():
                state[f"S/{name}"] = softmax(self.similarity(compared, block, state.fed.layout), self.temperature)
            return None
        matrices = {name: state[f"S/{name}"] for name in stages}
        if self.head == "private":
            matrices[list(stages)[-1]] = torch.eye(state.fed.clients, dtype=state["W"].dtype)
        for name, block in stages.items():
            self.move(state["W"], matrices[name], block, replies)
        return matrices

    def similarity(self, g: Tensor, block: Block, layout: Layout) -> Tensor:
        """How alike the updates (or models) [N, D] are on one stage, [N, N] (3)."""
        weights = [layout.block([n]) for n in layout.columns if n.endswith(".weight")]
        own = [weight for weight in weights if (weight & block).ranges]
        if not self.layer_weights or len(own) == 1:
            return cosine((block & layout.parameters).of(g))
        if len(own) != len(self.layer_weights):
            raise FedkinError(
                f"layer_weights has {len(self.layer_weights)} numbers, but the stage has {len(own)} layers with weights"
            )
        parts = [c * cosine(weight.of(g)) for c, weight in zip(self.layer_weights, own, strict=True)]
        return torch.stack(parts).sum(0)

    def move(self, w: Tensor, matrix: Tensor, block: Block, replies: Replies) -> None:
        """Move all models [N, D] along the participants' updates (7)."""
        sent = among(matrix, replies.clients)
        if self.weight_by_samples:
            sent = sent * shares(replies["n"])
        for columns in block:
            w[:, columns] -= self.server_lr * (sent @ replies["g"][:, columns])


@dataclass(frozen=True)
class SPFLw(SPFL):
    """The same with models mixed in place of updates."""

    name: ClassVar[str] = "spfl-w"

    def move(self, w: Tensor, matrix: Tensor, block: Block, replies: Replies) -> None:
        """Every model becomes a mixture of all clients' last trained models."""
        trained = w.clone()
        for columns in block:
            trained[replies.clients, columns] -= replies["g"][:, columns]
        mix(matrix, trained, block, out=w)
