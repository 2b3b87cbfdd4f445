"""LG-FedAvg: every client learns a representation of its own, and all learn one classifier on top of them.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act Globally: Federated Learning
with Local and Global Representations. 2020.

    (l_m, g_m) <- SGD(l_m, g; D_m)          both parts at once, on each participant m
    g          <- sum_m n_m / n * g_m       the global part, on the server
    l_m                                     the local representation, never sent

g is the classifier unless `shared_layers` names others; it is all that is sent, and FedPer the other way round.
Training starts from the common initial model, not from one that FedAvg trained before. The paper's auxiliary local
losses (self-supervised, or for fairness) and its vote of all local models for a new device are left out. Batch
norm's running statistics belong to their layer. A client that has never taken part has the initial representation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedkin.layout import Block, Layout
from fedkin.methods.fedper import Parted, named


@dataclass(frozen=True)
class LGFedAvg(Parted):
    """The extractor is each client's own."""

    name: ClassVar[str] = "lg-fedavg"
    paper: ClassVar[str] = "Liang et al., Think Locally, Act Globally: FL with Local and Global Representations, 2020"
    personal: ClassVar[str] = "the extractor"

    shared_layers: str = ""
    """Layers that are averaged, as in fc2+classifier; if none are named, the classifier."""

    def kept(self, layout: Layout) -> Block:
        """The local representation."""
        return layout.all - named(layout, self.shared_layers)
