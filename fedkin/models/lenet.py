"""LeNet-5 and its relatives of two convolutions."""

from __future__ import annotations

from torch import nn

from fedkin.models.layers import Shape, conv_stage, with_head


def lenet5(
    shape: Shape, classes: int, *, norm: bool = False, widths: tuple[int, ...] = (6, 16, 120, 84)
) -> nn.Sequential:
    """LeNet-5 with ReLU and max pools, 5x5 kernels without padding. [n, c, h, w] -> [n, classes].

    `widths` are those of the two convolutions and of the hidden linear layers.
    """
    conv1, conv2, *linear = widths
    stages = conv_stage(1, shape[0], conv1, 5, norm=norm) | conv_stage(2, conv1, conv2, 5, norm=norm)
    return with_head(stages, shape, *linear, classes)


def lenet5_short(shape: Shape, classes: int) -> nn.Sequential:
    """LeNet-5 without the linear layer of 84 units. [n, c, h, w] -> [n, classes].

    FedSimSup says of its LeNet-5 that it has two convolutions and two linear layers.
    """
    return lenet5(shape, classes, widths=(6, 16, 120))


def lenet5_bn(shape: Shape, classes: int) -> nn.Sequential:
    """LeNet-5 with batch norm after each convolution. [n, c, h, w] -> [n, classes].

    pFedSim's Table 5 prints `in=3` for the second convolution and one pool only; read as LeNet-5
    (6 channels in, a pool after each convolution) it has 62,050 parameters on CIFAR-10.
    """
    return lenet5(shape, classes, norm=True)


def lenet5_sixth(shape: Shape, classes: int) -> nn.Sequential:
    """LeNet-5 with about a sixth of its parameters. [n, c, h, w] -> [n, classes].

    The widths are 3 and 6 channels and 48 and 30 units. FedSimSup does not print its own; these keep
    the ratio within 8 % of a sixth on CIFAR-10, CIFAR-100 and FEMNIST alike (9,712 of 62,006
    parameters on CIFAR-10).
    """
    return lenet5(shape, classes, widths=(3, 6, 48, 30))


def lenet5_bn_sixth(shape: Shape, classes: int) -> nn.Sequential:
    """`lenet5-sixth` with batch norm, for models with batch norm. [n, c, h, w] -> [n, classes]."""
    return lenet5(shape, classes, norm=True, widths=(3, 6, 48, 30))


def spfl_cnn(shape: Shape, classes: int) -> nn.Sequential:
    """SPFL's network: 20 and 50 channels of 5x5 without padding, FC 512. [n, c, h, w] -> [n, classes].

    Table 4 lists no activations; there is a ReLU after each layer but the last, as in the authors' public
    code (whose FC has 500 units).
    """
    stages = conv_stage(1, shape[0], 20, 5) | conv_stage(2, 20, 50, 5)
    return with_head(stages, shape, 512, classes)
