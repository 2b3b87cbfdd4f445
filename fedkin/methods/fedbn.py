"""FedBN: FedAvg in which normalisation layers are each client's own.

Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated Learning on Non-IID Features via Local Batch Normalization. ICLR 2021.

    w_k    <- SGD(w_k; D_k)              the whole model, on each participant k
    w_k[l] <- sum_j n_j / n * w_j[l]     for every layer l that does not normalise

Layers that normalise are known by their type (batch, group, layer, instance and RMS norm), never by their name;
their weights, biases and running statistics are in no message. The paper's plain mean over clients of one size is
weighted by samples here, as in FedAvg: for a model without such layers FedBN is FedAvg. A client that has never
taken part has the initial normalisation layers in the current model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedkin.layout import Block, Layout
from fedkin.methods.fedper import Parted


@dataclass(frozen=True)
class FedBN(Parted):
    """Everything is shared but normalisation."""

    name: ClassVar[str] = "fedbn"
    paper: ClassVar[str] = "Li et al., FedBN: FL on Non-IID Features via Local Batch Normalization, ICLR 2021"
    personal: ClassVar[str] = "normalisation layers"

    def kept(self, layout: Layout) -> Block:
        """Parameters and statistics of normalisation layers."""
        return layout.norm
