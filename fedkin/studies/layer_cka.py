"""How alike what clients' models compute is, layer by layer.

Centred kernel alignment (Kornblith, Norouzi, Lee, Hinton: Similarity of Neural Network Representations Revisited.
ICML 2019), linear, of features X [n, F] and Y [n, G] that two models give for the same n samples:

    CKA = |Y^T X|^2 / (|X^T X| |Y^T Y|)      X, Y centred by column, Frobenius norms

which is the cosine of the Gram matrices X X^T and Y Y^T [n, n]. Layers are convolutions and linear layers: LeNet-5 has
five.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from fedkin.api import prepare
from fedkin.config import Config, Count, Positive
from fedkin.data.federation import Federation
from fedkin.engine.inline import Inline
from fedkin.errors import FedkinError
from fedkin.layout import Bound
from fedkin.randomness import numpy_generator
from fedkin.similarity import cosine
from fedkin.simulate import Show, simulate, watched
from fedkin.studies.base import Found, Study
from fedkin.studies.enlarging import fitted

PANELS = 6
"""Layers that are drawn; a deeper model's are chosen evenly, the first and the last among them."""


@dataclass(frozen=True)
class LayerCKA(Study):
    """`method` is one whose clients have models of their own: with `fedavg-ft`, FedAvg's after local training."""

    name: ClassVar[str] = "layer-cka"
    paper: ClassVar[str] = "pFedSim, Figure 1"
    about: ClassVar[str] = "CKA similarity of clients' models, layer by layer: where models of different data differ"

    data: str = "digits"
    partition: str = "dirichlet:0.1"
    clients: Count = 10
    method: str = "fedavg-ft"
    rounds: Count = 10
    epochs: Count = 5
    batch: Count = 32
    lr: Positive = 0.05
    model: str = "lenet5-bn"
    samples: Count = 256
    """Test samples, of all clients together, that every model is given."""

    def run(self, show: Show | None = None) -> Found:
        """Train, give every client's model the same samples, and compare."""
        split = {"data": self.data, "partition": self.partition, "clients": self.clients, "seed": self.seed}
        federation = fitted(Federation.of(Config.of(split)), self.model)
        if len(federation) < 2:
            raise FedkinError(f"layer-cka compares clients, so it needs two or more, but {len(federation)} was given")
        setup = prepare(
            self.method, data=federation, model=self.model, rounds=self.rounds, epochs=self.epochs, batch=self.batch,
            lr=self.lr, join=1.0, seed=self.seed, workers=self.workers, evaluate_every=self.rounds,
        )  # fmt: skip
        with watched(show, f"{self.method} on {self.data}", self.rounds) as watch:
            models = simulate(setup, watch=watch).models
        worker = Inline(setup.site()).worker
        tests = np.concatenate(federation.split.test)
        rows = numpy_generator(self.seed, "cka").permutation(tests)[: self.samples]
        inputs = worker.samples.inputs(torch.from_numpy(rows).to(worker.device))
        grams = [
            {name: centred_gram(out) for name, out in layer_outputs(worker.bound, models[i], inputs).items()}
            for i in range(len(models))
        ]
        alike = {name: cka([own[name] for own in grams]) for name in grams[0]}
        means = {name: float(off_diagonal(matrix).mean()) for name, matrix in alike.items()}
        most, least = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
        title = f"{federation.data.name}, {self.partition}, {self.method}, {self.rounds} rounds, {self.model}"
        return Found(
            table=[
                {"layer": name, "mean CKA": means[name], "least": float(pairs.min()), "most": float(pairs.max())}
                for name, pairs in ((name, off_diagonal(matrix)) for name, matrix in alike.items())
            ],
            figure=heat_maps(alike, means, title),
            says=[
                f"Mean CKA between models of different clients, on the same {len(rows)} samples: "
                + ", ".join(f"{name} {mean:.3f}" for name, mean in means.items())
                + ".",
                f"The clients' models are least alike in {least} ({means[least]:.3f}) and most alike in {most} "
                f"({means[most]:.3f}).",
            ],
        )


@torch.no_grad()
def layer_outputs(bound: Bound, w: Tensor, inputs: Tensor) -> dict[str, Tensor]:
    """What each layer of a model w [D] gives for inputs [n, ...]: name to [n, F], in order of use."""
    seen: dict[str, Tensor] = {}

    def note(name: str, out: Tensor) -> None:
        seen[name] = out.flatten(1)

    module = bound.eval(w.to(bound.w))
    hooks = [
        part.register_forward_hook(lambda _module, _inputs, out, name=name: note(name, out))
        for name, part in module.named_modules()
        if isinstance(part, (nn.Linear, nn.modules.conv._ConvNd))
    ]
    try:
        module(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def centred_gram(features: Tensor) -> Tensor:
    """X X^T [n, n] in double precision, of features [n, F] centred by column."""
    x = features.double()
    x = x - x.mean(0)
    return (x @ x.mT).cpu()


def cka(grams: Sequence[Tensor]) -> Tensor:
    """Linear CKA [K, K] between K models, from their centred Gram matrices [n, n]."""
    return cosine(torch.stack([gram.flatten() for gram in grams]))


def off_diagonal(matrix: Tensor) -> Tensor:
    """The entries [K (K - 1)] of a matrix [K, K] outside its diagonal."""
    return matrix[~torch.eye(len(matrix), dtype=torch.bool)]


def heat_maps(alike: dict[str, Tensor], means: dict[str, float], title: str) -> Figure:
    """A panel of clients by clients for each layer, all on one scale."""
    names = list(alike)
    chosen = sorted({round(k) for k in np.linspace(0, len(names) - 1, min(PANELS, len(names)))})
    figure = Figure(figsize=(2.4 * len(chosen) + 1.2, 3.4), layout="constrained")
    panels = figure.subplots(1, len(chosen), squeeze=False, sharey=True)[0]
    # From the tenth below the least value: models that started alike would otherwise all look the same.
    low = math.floor(10 * min(float(matrix.min()) for matrix in alike.values())) / 10
    for axes, k in zip(panels, chosen, strict=True):
        image = axes.imshow(alike[names[k]].numpy(), vmin=low, vmax=1, cmap="viridis")
        axes.set(title=f"{names[k]}\nmean {means[names[k]]:.3f}", xlabel="client")
    panels[0].set_ylabel("client")
    figure.colorbar(image, ax=panels, label="CKA", shrink=0.8)
    figure.suptitle(title, fontsize=10)
    return figure
