"""MobileNetV2."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from fedkin.models.layers import Layers, Shape, with_head

_STAGES = (
    # expansion, channels, blocks, stride of the first block
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenetv2(shape: Shape, classes: int) -> nn.Sequential:
    """MobileNetV2 with a stem of stride 1, as pFedSim uses it. [n, c, h, w] -> [n, classes].

    Table 9 of pFedSim, with two misprints corrected: the second depthwise convolution of 144 channels
    has 144 of them going in, not 24, and the blocks that keep 32 channels expand 32 to 192, not 24 to
    144. The table also shows a ReLU6 after every convolution and no shortcuts; here the projections
    are linear and the shortcuts exist, as in MobileNetV2's own paper. Parameters and buffers come in
    the same order and shapes as in the usual ImageNet weights.
    """
    layers = _conv("stem", shape[0], 32, 3)
    inputs, number = 32, 0
    for expansion, outputs, blocks, first_stride in _STAGES:
        for block in range(blocks):
            number += 1
            stride = first_stride if block == 0 else 1
            layers[f"block{number}"] = InvertedResidual(inputs, outputs, stride, expansion)
            inputs = outputs
    layers |= _conv("last", inputs, 1280, 1) | {"mean": nn.AdaptiveAvgPool2d(1)}
    return with_head(layers, shape, classes)


class InvertedResidual(nn.Sequential):
    """Expand 1x1, filter each channel 3x3, project 1x1; with a shortcut where the shape stays.

    [n, inputs, h, w] -> [n, outputs, ceil(h / stride), ceil(w / stride)].
    """

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        hidden = inputs * expansion
        layers = _conv("expand", inputs, hidden, 1) if expansion > 1 else {}
        layers |= _conv("depthwise", hidden, hidden, 3, stride=stride, groups=hidden)
        layers |= _conv("project", hidden, outputs, 1, linear=True)
        super().__init__(OrderedDict(layers))
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, added to its input where there is a shortcut."""
        y = x
        for layer in self:
            y = layer(y)
        return x + y if self.shortcut else y


def _conv(
    name: str,
    inputs: int,
    outputs: int,
    kernel: int,
    *,
    stride: int = 1,
    groups: int = 1,
    linear: bool = False,
) -> Layers:
    """Convolution that keeps the size (at stride 1), batch norm, and ReLU6 unless linear."""
    layers: Layers = {
        name: nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        f"{name}_bn": nn.BatchNorm2d(outputs),
    }
    return layers if linear else layers | {f"{name}_relu": nn.ReLU6()}
