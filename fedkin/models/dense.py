"""Fully connected networks."""

from __future__ import annotations

from torch import nn

from fedkin.models.layers import Shape, with_head


def mlp(shape: Shape, classes: int) -> nn.Sequential:
    """Two hidden layers of 64. [n, *shape] -> [n, classes] for samples of any shape."""
    return with_head({}, shape, 64, 64, classes)


def mlp_sixth(shape: Shape, classes: int) -> nn.Sequential:
    """Two hidden layers of 16, on small samples a sixth of `mlp`. [n, *shape] -> [n, classes]."""
    return with_head({}, shape, 16, 16, classes)


def mnist_nn(shape: Shape, classes: int) -> nn.Sequential:
    """FedALP's MNIST-NN, one hidden layer. [n, *shape] -> [n, classes].

    The paper leaves the width open; 784-50-10 is what the source of its MNIST partition uses.
    """
    return with_head({}, shape, 50, classes)
