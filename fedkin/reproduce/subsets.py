"""pFedSim's Table 2 and Figure 2: which measure of client similarity follows that of the data.

Data of ten classes (CIFAR-10 in the paper) in four subsets that share no sample: i and i' have labels 0 to 4, j has 2
to 6, k has 5 to 9; the samples of a label are shared out equally among those who have it. Four networks start alike and
train alone; then every measure compares them pair by pair. "20 iterations" is read as 20 passes over the samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.api import prepare
from fedkin.data import catalogue
from fedkin.data.dataset import Dataset, Split
from fedkin.data.federation import Federation
from fedkin.engine.inline import Inline
from fedkin.engine.worker import Job
from fedkin.errors import FedkinError
from fedkin.layout import Layout
from fedkin.randomness import numpy_generator
from fedkin.similarity import boundary_cosine, loss_gain, norm_distance, update_cosine
from fedkin.simulate import Watch, simulate

LABELS = {"i": range(5), "i'": range(5), "j": range(2, 7), "k": range(5, 10)}
PAIRS = {"(i, i')": (0, 1), "(i, j)": (0, 2), "(j, k)": (2, 3), "(i, k)": (0, 3)}
Numbers = dict[str, dict[str, float]]


def subsets(data: Dataset, seed: int) -> Federation:
    """The four clients; a fiftieth of each is held out, because every client has to have some test samples."""
    if len(data.classes) != 10:
        raise FedkinError(f"the four subsets are made of ten classes, but {data.name} has {len(data.classes)}")
    rng = numpy_generator(seed, "partition")
    own: dict[str, list[np.ndarray]] = {name: [] for name in LABELS}
    for label in range(10):
        holders = [name for name, labels in LABELS.items() if label in labels]
        rows = rng.permutation(np.flatnonzero(data.y == label))
        for name, part in zip(holders, np.array_split(rows, len(holders)), strict=True):
            own[name].append(part)
    mixed = [rng.permutation(np.concatenate(parts)) for parts in own.values()]
    cuts = [len(rows) // 50 for rows in mixed]
    return Federation(
        data,
        Split(
            train=tuple(np.sort(rows[cut:]) for rows, cut in zip(mixed, cuts, strict=True)),
            test=tuple(np.sort(rows[:cut]) for rows, cut in zip(mixed, cuts, strict=True)),
            names=tuple(LABELS),
        ),
    )


def data_similarity(federation: Federation, i: int, j: int) -> float:
    """1 - dist of equation (1): the share of two clients' samples whose labels both have."""
    a, b = (federation.data.y[federation.split.train[k]] for k in (i, j))
    common = np.intersect1d(a, b)
    both = np.concatenate([a, b])
    return float(np.isin(both, common).mean())


def compare(seed: int, passes: int = 20, workers: int | None = None, watch: Watch | None = None) -> Numbers:
    """Every measure for every pair on CIFAR-10: measure to pair to number."""
    federation = subsets(catalogue.load("cifar10", download=False), seed)
    return measure(federation, seed, passes, workers=workers, watch=watch).numbers


@dataclass(frozen=True)
class Measured:
    """How alike the four clients are."""

    numbers: Numbers
    """Measure to pair to number."""
    boundaries: dict[str, list[float]]
    """Pair to the cosines of its decision boundaries, class by class: their mean is CS."""


def measure(
    federation: Federation,
    seed: int,
    passes: int,
    *,
    lr: float = 0.01,
    model: str = "lenet5-bn",
    workers: int | None = None,
    watch: Watch | None = None,
) -> Measured:
    """Train on the four `subsets` and take every measure of every pair."""
    settings: dict[str, Any] = {
        "rounds": passes,
        "epochs": 1,
        "batch": 32,
        "lr": lr,
        "seed": seed,
        "evaluate_every": passes,
    }
    setup = prepare("local-only", data=federation, model=model, workers=workers, **settings)
    result = simulate(setup, watch=watch)
    layout = Layout(setup.module)
    models = torch.stack([result.models[k] for k in range(len(LABELS))])
    moves = models - layout.flatten(setup.module)
    worker = Inline(setup.site()).worker
    losses = torch.stack([worker.client(Job(k, {}, {})).losses(models) for k in range(len(LABELS))])
    boundaries = boundary_cosine(models, layout)
    measures: dict[str, Tensor] = {
        "WDB": 1 / norm_distance(models, layout).clamp(min=1e-8),
        "MDB": update_cosine(moves, layout),
        "LDB": loss_gain(losses, models),
        "CS": boundaries.mean(0),
    }
    numbers = {name: {pair: float(m[i, j]) for pair, (i, j) in PAIRS.items()} for name, m in measures.items()}
    data = {pair: data_similarity(federation, i, j) for pair, (i, j) in PAIRS.items()}
    return Measured(
        {"Data Similarity": data, **numbers},
        {pair: boundaries[:, i, j].tolist() for pair, (i, j) in PAIRS.items()},
    )
