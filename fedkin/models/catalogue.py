"""The models fedkin knows by name, with where each comes from and what it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from fedkin.errors import FedkinError, unknown
from fedkin.models.cnn import alexnet, cnn1d, small_cnn, three_conv
from fedkin.models.dense import mlp, mlp_sixth, mnist_nn
from fedkin.models.layers import Shape
from fedkin.models.lenet import (
    lenet5,
    lenet5_bn,
    lenet5_bn_sixth,
    lenet5_short,
    lenet5_sixth,
    spfl_cnn,
)
from fedkin.models.mobilenet import mobilenetv2
from fedkin.models.transformer import small_transformer


@dataclass(frozen=True)
class ModelCard:
    """A model of the catalogue."""

    name: str
    source: str
    """The paper, and its table or section, that the model comes from."""
    about: str
    takes: Literal["image", "window", "any"]
    """Samples of shape (channels, height, width), of shape (channels, time), or of any shape."""
    smallest: int
    """The least height and width, or the least time, that the model can work on."""
    make: Callable[[Shape, int], nn.Module] = field(repr=False)

    @property
    def needs(self) -> str:
        """What the model takes, in words."""
        return {
            "image": f"images (channels, height, width) of at least {self.smallest} x {self.smallest} pixels",
            "window": f"windows (channels, time) of at least {self.smallest} steps",
            "any": "samples of any shape",
        }[self.takes]

    def check(self, shape: Shape) -> None:
        """Raise an error if samples of this shape are not for this model."""
        axes = {"image": 3, "window": 2, "any": len(shape)}[self.takes]
        if len(shape) != axes or min(shape[1:], default=self.smallest) < self.smallest:
            raise FedkinError(f"model {self.name!r} cannot take samples of shape {shape}: it needs {self.needs}")


_ALP = "FedALP, section 3.1"
_SUP = "FedSimSup, section 4"
_CARDS = (
    ModelCard("spfl-cnn", "SPFL, Table 4", "2 convolutions 5x5 (20, 50), FC 512", "image", 16, spfl_cnn),
    ModelCard("lenet5-bn", "pFedSim, Table 5", "LeNet-5 with batch norm", "image", 16, lenet5_bn),
    # 17 pixels leave 2x2 positions before the mean, so batch norm can train on a batch of one sample.
    ModelCard("mobilenetv2", "pFedSim, Table 9", "MobileNetV2, stem of stride 1", "image", 17, mobilenetv2),
    ModelCard("mnist-nn", _ALP, "one hidden layer of 50", "any", 1, mnist_nn),
    ModelCard("mnist-cnn", _ALP, "3 convolutions 3x3 (32, 64, 64), FC 64", "image", 18, three_conv),
    ModelCard("cifar10-cnn", _ALP, "3 convolutions 3x3 (32, 64, 64), FC 64", "image", 18, three_conv),
    ModelCard("alexnet", _ALP, "AlexNet for 32x32 images, dropout 0.5", "image", 15, alexnet),
    ModelCard("lenet5", _SUP, "LeNet-5 with ReLU and max pools", "image", 16, lenet5),
    ModelCard("lenet5-short", _SUP, "LeNet-5 with two linear layers in place of three", "image", 16, lenet5_short),
    ModelCard("lenet5-sixth", _SUP, "a sixth of LeNet-5, the usual supervisor", "image", 16, lenet5_sixth),
    ModelCard("lenet5-bn-sixth", _SUP, "the same with batch norm, for models with it", "image", 16, lenet5_bn_sixth),
    ModelCard("small-cnn", _SUP, "3 convolutions 3x3, the smallest supervisor", "image", 4, small_cnn),
    ModelCard("small-transformer", _SUP, "4x4 patches, the largest supervisor", "image", 8, small_transformer),
    ModelCard("mlp", "fedkin", "2 hidden layers of 64", "any", 1, mlp),
    ModelCard("mlp-sixth", "fedkin", "2 hidden layers of 16, a supervisor for any samples", "any", 1, mlp_sixth),
    ModelCard("cnn1d", "fedkin", "2 convolutions along the time (32, 64), FC 64", "window", 16, cnn1d),
)
_BY_NAME = {card.name: card for card in _CARDS}


def names() -> list[str]:
    """The names `build` knows, paper by paper."""
    return list(_BY_NAME)


def describe(name: str) -> ModelCard:
    """What there is to know about a model of the catalogue."""
    if name not in _BY_NAME:
        raise unknown("model", name, _BY_NAME)
    return _BY_NAME[name]


def default_for(shape: Shape) -> str:
    """The name of a sensible model for samples of this shape."""
    if len(shape) == 3 and min(shape[1:]) >= 28:
        return "lenet5"
    if len(shape) == 2 and shape[1] >= describe("cnn1d").smallest:
        return "cnn1d"
    return "mlp"


def supervisor_for(shape: Shape, *, norm: bool = False) -> str:
    """The name of a network of about a sixth of the default one, with batch `norm` or not: the usual supervisor."""
    if len(shape) == 3 and min(shape[1:]) >= describe("lenet5-sixth").smallest:
        return "lenet5-bn-sixth" if norm else "lenet5-sixth"
    return "mlp-sixth"
