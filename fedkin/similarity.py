"""Ways to tell kin: how alike two clients are, from what they send.

Every function takes one row per client and returns a matrix [K, K] whose entry (i, j) says how much
client i has in common with client j. What a method makes of it is in `mixing`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

from fedkin.errors import FedkinError
from fedkin.layout import Layout

SELF = 0.9999
"""The cosine of a client with itself: just below one, so that -log(1 - x) stays finite."""


def cosine(rows: Tensor, others: Tensor | None = None) -> Tensor:
    """Cosines [K, M] between vectors `rows` [K, D] and `others` [M, D]; a zero vector is like nobody."""
    others = rows if others is None else others
    product: Tensor = _unit(rows) @ _unit(others).mT
    return product


def row_cosine(rows: Tensor, others: Tensor) -> Tensor:
    """Cosines [K] of the rows of two matrices [K, D], pair by pair; a zero vector is like nobody."""
    return (_unit(rows) * _unit(others)).sum(-1)


def _unit(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows / norms.clamp(min=torch.finfo(rows.dtype).tiny)


def update_cosine(updates: Tensor, layout: Layout) -> Tensor:
    """Cosines [K, K] of clients' updates [K, D], over all parameters (FedALP (4))."""
    return cosine(layout.parameters.of(updates))


def boundaries(models: Tensor, layout: Layout) -> Tensor:
    """The decision boundaries [C, K, F] of models [K, D]: for each class its row of the classifier's weights."""
    name = f"{layout.classifier_name}.weight".removeprefix(".")
    if name not in layout.columns:
        raise FedkinError(
            f"the classifier {layout.classifier_name!r} has no weight matrix with a row per class to compare"
        )
    at, shape = layout.columns[name]
    weights = models[:, at : at + shape.numel()]
    return weights.reshape(len(models), shape[0], -1).transpose(0, 1)


def boundary_cosine(models: Tensor, layout: Layout) -> Tensor:
    """Cosines [C, K, K] of clients' decision boundaries, class by class (pFedSim, Figure 2)."""
    return cosine(boundaries(models, layout))


def label_cosine(proportions: Tensor) -> Tensor:
    """Cosines [N, N] of label proportions [N, C], at least zero (FedSimSup, section 3.3)."""
    return cosine(proportions).clamp(0, 1)


def norm_distance(models: Tensor, layout: Layout) -> Tensor:
    """Wasserstein distances [K, K] between clients' batch-norm statistics (FedAP).

    A layer's inputs count as a normal distribution with its running mean and variance in every channel;
    between two such, W^2 = |mu_i - mu_j|^2 + |sigma_i - sigma_j|^2, summed over layers after the root.
    """
    if not layout.norm_statistics.ranges:
        raise FedkinError("similarity by batch-norm statistics needs a model with batch norm, such as lenet5-bn")
    total = models.new_zeros(len(models), len(models))
    for name in layout.columns:
        if name.endswith("running_mean"):
            prefix = name.removesuffix("running_mean")
            mean = layout.block([name]).of(models)
            std = layout.block([prefix + "running_var"]).of(models).clamp(min=0).sqrt()
            squared = _apart(mean).square() + _apart(std).square()
            total += squared.sqrt()
    return total


def loss_gain(losses: Tensor, models: Tensor) -> Tensor:
    """What others' models would gain a client, per unit of distance [K, K] (FedFomo).

    `losses[i, j]` is the loss of model j on client i's data: (L_i(theta_i) - L_i(theta_j)) / |theta_i - theta_j|.
    """
    gain = losses.diagonal()[:, None] - losses
    distance = _apart(models)
    return torch.where(distance > 0, gain / distance.clamp(min=torch.finfo(models.dtype).tiny), 0)


def clustered(similarity: Tensor, groups: int, method: Literal["ward", "complete", "single"]) -> Tensor:
    """Group numbers [K] of K >= 2 clients: hierarchical clustering of 1 - similarity [K, K], cut into `groups`."""
    distance = 1 - similarity.double().numpy()
    distance = (distance + distance.T) / 2
    np.fill_diagonal(distance, 0)
    tree = linkage(squareform(distance.clip(min=0), checks=False), method=method)
    return torch.from_numpy(fcluster(tree, groups, "maxclust").astype(np.int64) - 1)


def _apart(rows: Tensor) -> Tensor:
    """Euclidean distances [K, K] between rows [K, D], without the short cut by products that loses small ones."""
    distances: Tensor = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
    return distances
