"""FedAvg-FT: FedAvg whose global model every client fine-tunes on its own data before it is judged.

Collins, Hassani, Mokhtari, Shakkottai: FedAvg with Fine Tuning: Local Updates Lead to Representation Learning.
NeurIPS 2022.

    w    <- FedAvg
    w_i  =  SGD(w; D_i)      some epochs on each client, before its test

By default the fine-tuning is what a round's local training is, as many epochs at the same rate: the client is judged
by the model that it would send next. It is made anew from the global model for every test, and nothing of it is kept
or sent. As every test trains all clients, `evaluate_every` is what a long run's time hangs on. Running statistics of
batch norm are averaged like all other columns, and follow the fine-tuning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedkin.client import Client
from fedkin.config import Count, Positive
from fedkin.method import Judged, Message
from fedkin.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedAvgFT(FedAvg):
    """FedAvg with fine-tuning."""

    name: ClassVar[str] = "fedavg-ft"
    paper: ClassVar[str] = "Collins et al., FedAvg with Fine Tuning, NeurIPS 2022"
    personal: ClassVar[str] = "the whole model, fine-tuned before the test"
    judged: ClassVar[Judged] = Judged(model="personalised after fine-tuning")

    tune_epochs: Count | None = None
    """Epochs of fine-tuning; otherwise those of a round's local training."""
    tune_lr: Positive | None = None
    """Learning rate of fine-tuning; otherwise that of training."""

    def personalise(self, client: Client, message: Message) -> Tensor:
        """The global model after epochs of SGD on the client's own samples."""
        return client.sgd(message["w"], epochs=self.tune_epochs, lr=self.tune_lr, purpose="adapt")
