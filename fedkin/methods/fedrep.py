"""FedRep: everybody fits its own head to the shared representation, then moves the representation a little.

Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated Learning.
ICML 2021.

    h_i   <- SGD(f_i(., phi))            many epochs on the head, the body phi fixed
    phi_i <- SGD(f_i(h_i, .))            few epochs on the body, the new head fixed
    phi   <- sum_i n_i / n * phi_i       on the server; heads are never sent

The head gets the run's local epochs, or `head_epochs`, the body `body_epochs` on top of them. The paper's are 10 and
1, with batches of 10, a learning rate of 0.01 and momentum 0.5; FedSimSup's comparison has `head_epochs=2
body_epochs=3`. The paper's plain mean over participants is weighted by samples here, as in FedAvg. Batch norm in the
body normalises by the batch and lets its running statistics follow in both passes; they are averaged with the body.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedkin.client import Client
from fedkin.config import Count
from fedkin.method import Message
from fedkin.methods.fedper import FedPer


@dataclass(frozen=True)
class FedRep(FedPer):
    """As FedPer, but head and body are trained one after the other."""

    name: ClassVar[str] = "fedrep"
    paper: ClassVar[str] = "Collins et al., Exploiting Shared Representations for Personalized FL, ICML 2021"

    head_epochs: Count | None = None
    """Epochs on the head; otherwise the run's local epochs."""
    body_epochs: Count = 1

    def local(self, client: Client, message: Message) -> Message:
        """The head first, then the body under it."""
        head, body = self.kept(client.layout), self.shared(client.layout)
        w = self.personalise(client, message)
        w = client.sgd(w, only=head, epochs=self.head_epochs)
        return self.reply(client, client.sgd(w, only=body, epochs=self.body_epochs, purpose="body"))
