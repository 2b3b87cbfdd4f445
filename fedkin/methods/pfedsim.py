"""pFedSim: one model for all first, then feature extractors shared among clients with similar classifiers.

Tan, Zhou, Liu, Wang, Yu: pFedSim: Similarity-Aware Model Aggregation Towards Personalized Federated Learning.

    rounds 1 .. rho T          FedAvg (generalisation phase)
    afterwards                 omega_i <- sum_j Phi_ij omega_j / sum_j Phi_ij   before client i trains,       (4)
                               phi_i stays its own (personalisation phase)
    Phi_ij = -1/|Y| sum_c log(1 - max(0, cos(phi_ic, phi_jc)))   for i, j that trained in the same round       (3)

omega is the extractor (everything but the last layer), phi the classifier, phi_ic its row for class c. Phi starts as
the identity. (3) is unbounded at cosine 1, which is cut off at 0.9999, also for i = j. With `log=of-mean` the mean
over classes is taken before the logarithm. `norm_statistics=local` keeps each client's own running statistics of
batch norm out of all mixing. `similarity` may be any measure of the paper's Table 2 in place of the classifier's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedkin.client import Client
from fedkin.config import Fraction
from fedkin.layout import Block, Layout
from fedkin.method import Exchange, Judged, Message, Method, Mixing, Overview, Replies, State
from fedkin.mixing import mix, normalised, same_for_all, weighted_mean
from fedkin.similarity import SELF, boundary_cosine, loss_gain, norm_distance, update_cosine


@dataclass(frozen=True)
class PFedSim(Method):
    """`rho` is the share of rounds in the generalisation phase."""

    name: ClassVar[str] = "pfedsim"
    paper: ClassVar[str] = "Tan et al., pFedSim: Similarity-Aware Model Aggregation Towards Personalized FL, 2023"
    personal: ClassVar[str] = "the classifier, and an extractor mixed from similar clients"
    judged: ClassVar[Judged] = Judged(moment="after local training")
    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 200, "join": 0.1, "epochs": 5, "batch": 32, "lr": 0.01}
    vectorizes: ClassVar[tuple[str, ...]] = ("train",)

    rho: Fraction = 0.5
    similarity: Literal["classifier", "wdb", "mdb", "ldb"] = "classifier"
    """classifier (3); wdb: batch-norm statistics; mdb: model updates; ldb: losses of each other's models."""
    log: Literal["per-class", "of-mean"] = "per-class"
    norm_statistics: Literal["local", "mixed"] = "local"

    def start(self, fed: Overview) -> State:
        """A global model, everybody's last known model, and Phi."""
        self_weight = -math.log(1 - SELF) if self.similarity in ("classifier", "mdb") else 1.0
        phi = self_weight * torch.eye(fed.clients, dtype=fed.initial.dtype)
        return State(fed, {"w": fed.initial.clone(), "W": fed.initial.repeat(fed.clients, 1), "phi": phi})

    def generalisation(self, state: State) -> int:
        """T_g: the rounds of the generalisation phase."""
        return math.floor(self.rho * state.fed.rounds + 1e-9)

    def generalises(self, state: State) -> bool:
        """Whether this round belongs to the generalisation phase."""
        return state.round <= self.generalisation(state)

    def own(self, state: State) -> Block:
        """Columns that never leave their client's row."""
        statistics = state.fed.layout.norm_statistics
        return statistics if self.norm_statistics == "local" else Block(())

    def exchanges(self, state: State) -> Sequence[Exchange]:
        """Training; for `ldb` the participants then test each other's models."""
        asks = self.similarity == "ldb" and not self.generalises(state)
        return (Exchange(), Exchange("losses")) if asks else (Exchange(),)

    def prepare(self, state: State, exchange: str, clients: Sequence[int]) -> None:
        """Mix the extractors of all who take part (4)."""
        if exchange == "train" and not self.generalises(state):
            block = state.fed.layout.extractor - self.own(state)
            rows = state["W"][list(clients)]
            state["sent"] = mix(normalised(state["phi"][list(clients)]), state["W"], block, out=rows)
            state["to"] = list(clients)

    def dispatch(self, state: State, client: int, exchange: str) -> Message:
        """The global model, or the client's own with the mixed extractor; for `ldb` what all have trained."""
        if exchange == "losses":
            return {"models": state["sent"]}
        if self.generalises(state):
            return self.serve(state, client)
        return {"w": state["sent"][state["to"].index(client)]}

    def serve(self, state: State, client: int) -> Message:
        """The client's model after its last training; in the generalisation phase the global one."""
        if not self.generalises(state):
            return {"w": state["W"][client]}
        own = self.own(state)
        return {"w": own.copy(state["W"][client], state["w"].clone()) if own.ranges else state["w"]}

    def global_model(self, state: State) -> Tensor | None:
        """There is one in the generalisation phase only."""
        return state["w"] if self.generalises(state) else None

    def local(self, client: Client, message: Message) -> Message:
        """Local epochs of SGD on the whole model, or the losses of others' models on this client's data."""
        if client.exchange == "losses":
            return {"losses": client.losses(message["models"])}
        return {"w": client.sgd(message["w"]), "n": client.n}

    def aggregate(self, state: State, replies: Replies) -> Mixing | None:
        """The global mean, or the participants' models and their similarity."""
        who, layout = replies.clients, state.fed.layout
        if replies.exchange == "losses":
            alike = loss_gain(replies["losses"], state.pop("sent")).clamp(min=0)
        elif self.generalises(state):
            state["w"] = weighted_mean(replies)
            state["W"][who] = replies["w"]
            if state.round == self.generalisation(state):
                (layout.all - self.own(state)).copy(state["w"], state["W"])
            return same_for_all(replies, state.fed.clients)
        else:
            state.pop("sent", None)
            state.pop("to", None)
            state["W"][who] = replies["w"]
            if self.similarity == "ldb":
                state["sent"] = replies["w"]
                return None
            alike = self.alike(replies["w"], replies["w"] - replies.sent("w"), layout)
        self.refresh(state["phi"], torch.tensor(who), alike)
        identity = torch.eye(state.fed.clients, dtype=state["phi"].dtype)
        return {"extractor": normalised(state["phi"]), "classifier": identity}

    def alike(self, models: Tensor, updates: Tensor, layout: Layout) -> Tensor:
        """The similarity [K, K] of this round's participants."""
        if self.similarity == "wdb":
            return 1 / norm_distance(models, layout).clamp(min=1e-8)
        if self.similarity == "mdb":
            return minus_log(update_cosine(updates, layout))
        cosines = boundary_cosine(models, layout)
        if self.log == "of-mean":
            return minus_log(cosines.clamp(min=0).mean(0))
        return minus_log(cosines).mean(0)

    def refresh(self, phi: Tensor, who: Tensor, alike: Tensor) -> None:
        """Renew Phi for the pairs that took part in this round, but not of anybody with itself."""
        itself = phi[who, who]
        phi[who[:, None], who] = alike
        phi[who, who] = 0
        if self.similarity in ("wdb", "ldb"):
            # These have no scale of their own: a client counts as much as its nearest kin.
            nearest = phi[who].max(1).values
            itself = torch.where(nearest > 0, nearest, itself)
        phi[who, who] = itself


def minus_log(cosine: Tensor) -> Tensor:
    """-log(1 - max(0, cos)), cut off at the cosine that stands for a client's likeness to itself."""
    return -torch.log1p(-cosine.clamp(0, SELF))
