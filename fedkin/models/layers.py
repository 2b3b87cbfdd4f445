"""The pieces most of the models are put together from.

A model is an ordered dict of named layers that ends in `classifier`, so every model of the
catalogue is an `nn.Sequential`: `model[:-1]` is its feature extractor, `model[-1]` its classifier.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

import torch
from torch import nn

Shape = tuple[int, ...]
"""Shape of one sample: (channels, height, width), (channels, time) or (features,)."""

Layers = dict[str, nn.Module]


def conv_stage(
    number: int,
    inputs: int,
    outputs: int,
    kernel: int,
    *,
    stride: int = 1,
    padding: int = 0,
    norm: bool = False,
    pool: bool = True,
) -> Layers:
    """Convolution, batch norm if asked for, ReLU, 2x2 max pool unless told otherwise.

    [n, inputs, h, w] -> [n, outputs, h', w'].
    """
    # Pooling before the ReLU gives the same numbers and gradients and does a quarter of the ReLU's
    # work, but the pool itself is slower on values that are not yet cut off at 0. A training step of
    # lenet5-bn takes equally long either way, in place or not, so the papers' order stays, and no
    # layer overwrites the output of the one before it.
    layers: Layers = {f"conv{number}": nn.Conv2d(inputs, outputs, kernel, stride, padding)}
    if norm:
        layers[f"bn{number}"] = nn.BatchNorm2d(outputs)
    layers[f"conv{number}_relu"] = nn.ReLU()
    if pool:
        layers[f"pool{number}"] = nn.MaxPool2d(2)
    return layers


def with_head(extractor: Layers, shape: Shape, *widths: int, dropout: float = 0.0) -> nn.Sequential:
    """Flatten what the extractor makes of a sample, then fully connected layers of these widths.

    The last width is the number of classes and its layer the `classifier`; each layer before it is
    followed by a ReLU and, with `dropout`, preceded by a dropout layer.
    """
    layers = extractor | {"flatten": nn.Flatten()}
    sizes = (_features(layers, shape), *widths)
    for number, (inputs, outputs) in enumerate(pairwise(sizes[:-1]), start=1):
        if dropout:
            layers[f"fc{number}_dropout"] = nn.Dropout(dropout)
        layers[f"fc{number}"] = nn.Linear(inputs, outputs)
        layers[f"fc{number}_relu"] = nn.ReLU()
    layers["classifier"] = nn.Linear(sizes[-2], sizes[-1])
    return nn.Sequential(OrderedDict(layers))


def _features(layers: Layers, shape: Shape) -> int:
    """Number of features a sample of this shape has after these layers."""
    stack = nn.Sequential(*layers.values()).eval()  # eval: batch norm must not learn from the zeros
    with torch.no_grad():
        features = stack(torch.zeros(1, *shape)).shape[1]
    stack.train()
    return int(features)
