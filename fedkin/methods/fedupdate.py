"""FedUpdate: FedAvg whose global model takes one step on the client's own data before it is judged.

Jiang, Konečný, Rush, Kannan: Improving Federated Learning Personalization via Model Agnostic Meta Learning. 2019.

    w    <- FedAvg
    w_i  =  w - step_lr * grad f_i(w; one batch of D_i)      on each client, before its test

They see FedAvg as a meta-learner whose model is meant to be updated on the device; SPFL compares with the smallest
such update, one batch at 0.01. That step is taken for the test alone and is never sent. Running statistics of batch
norm are averaged like all other columns, and see that batch too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedkin.client import Client
from fedkin.config import Positive
from fedkin.method import Judged, Message
from fedkin.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedUpdate(FedAvg):
    """FedAvg with one step of adaptation; run settings as in SPFL."""

    name: ClassVar[str] = "fedupdate"
    paper: ClassVar[str] = "Jiang et al., Improving Federated Learning Personalization via MAML, 2019"
    personal: ClassVar[str] = "one gradient step before the test"
    judged: ClassVar[Judged] = Judged(model="personalised after fine-tuning")
    defaults: ClassVar[Mapping[str, Any]] = {
        "rounds": 100,
        "epochs": 1,
        "batch": 128,
        "lr": 0.01,
        "weight_decay": 1e-4,
    }

    step_lr: Positive = 0.01
    """Learning rate of the one step."""

    def personalise(self, client: Client, message: Message) -> Tensor:
        """The global model after one batch of the client's own."""
        return client.sgd(message["w"], epochs=1, most=1, lr=self.step_lr, purpose="adapt")
