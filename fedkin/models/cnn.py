"""Other convolutional networks: FedALP's, a very small one, and one for time series."""

from __future__ import annotations

from torch import nn

from fedkin.models.layers import Layers, Shape, conv_stage, with_head


def three_conv(shape: Shape, classes: int) -> nn.Sequential:
    """FedALP's MNIST-CNN and CIFAR10-CNN, 3 convolutions and 2 FC. [n, c, h, w] -> [n, classes].

    The paper prints no widths. These are the textbook ones for both datasets: 32, 64 and 64 channels
    of 3x3 without padding, a pool after the first two, FC 64.
    """
    stages = conv_stage(1, shape[0], 32, 3) | conv_stage(2, 32, 64, 3) | conv_stage(3, 64, 64, 3, pool=False)
    return with_head(stages, shape, 64, classes)


def alexnet(shape: Shape, classes: int) -> nn.Sequential:
    """AlexNet for 32x32 images, 5 convolutions and 3 FC. [n, c, h, w] -> [n, classes].

    The channels are those of the single-tower AlexNet (64, 192, 384, 256, 256). What FedALP changed
    for CIFAR-10 is not printed; here kernels are 3x3, conv1 has stride 2, pools are 2x2, and the two
    FC have 1024 units instead of 4096 because they get 1024 features instead of 9216.
    """
    stages = (
        conv_stage(1, shape[0], 64, 3, stride=2, padding=1)
        | conv_stage(2, 64, 192, 3, padding=1)
        | conv_stage(3, 192, 384, 3, padding=1, pool=False)
        | conv_stage(4, 384, 256, 3, padding=1, pool=False)
        | conv_stage(5, 256, 256, 3, padding=1)
    )
    return with_head(stages, shape, 1024, 1024, classes, dropout=0.5)


def small_cnn(shape: Shape, classes: int) -> nn.Sequential:
    """8, 16 and 32 channels of 3x3, then the mean over the image. [n, c, h, w] -> [n, classes].

    FedSimSup's "CNN with fewer parameters": fewer than `lenet5-sixth`; widths not printed.
    """
    stages = (
        conv_stage(1, shape[0], 8, 3, padding=1)
        | conv_stage(2, 8, 16, 3, padding=1)
        | conv_stage(3, 16, 32, 3, padding=1, pool=False)
        | {"mean": nn.AdaptiveAvgPool2d(1)}
    )
    return with_head(stages, shape, classes)


def cnn1d(shape: Shape, classes: int) -> nn.Sequential:
    """32 and 64 channels of width 5 along the time, FC 64. [n, channels, time] -> [n, classes]."""
    stages: Layers = {
        "conv1": nn.Conv1d(shape[0], 32, 5),
        "conv1_relu": nn.ReLU(),
        "pool1": nn.MaxPool1d(2),
        "conv2": nn.Conv1d(32, 64, 5),
        "conv2_relu": nn.ReLU(),
        "pool2": nn.MaxPool1d(2),
    }
    return with_head(stages, shape, 64, classes)
