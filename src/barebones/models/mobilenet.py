"""MobileNet-v2, as it is usually made for CIFAR."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

STAGES = (  # how much wider inside, channels, blocks, stride of the first
    (1, 16, 1, 1),
    (6, 24, 2, 2),  # stride 1 for CIFAR
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def pointwise(channels: int, width: int) -> nn.Sequential:
    """A 1x1 convolution and its batch-norm."""
    return nn.Sequential(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width))


def spatial(channels: int, width: int, stride: int, groups: int = 1) -> nn.Sequential:
    """A 3x3 convolution and its batch-norm."""
    convolution = nn.Conv2d(channels, width, 3, stride, padding=1, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(width))


class Inverted(nn.Module):
    """Widen, filter each channel by itself, narrow without a ReLU; at stride 1 with a way around.

    The way around is a 1x1 convolution where the number of channels changes. The original has none there, but the
    CIFAR version does, and so comes to the 2.3 M parameters of the paper.
    """

    def __init__(self, channels: int, width: int, wider: int, stride: int) -> None:
        super().__init__()
        inside = channels * wider
        self.widen = pointwise(channels, inside)
        self.filter = spatial(inside, inside, stride, groups=inside)
        self.narrow = pointwise(inside, width)
        self.around = pointwise(channels, width) if channels != width and stride == 1 else nn.Sequential()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        out = self.narrow(F.relu(self.filter(F.relu(self.widen(x)))))
        return out + self.around(x) if self.stride == 1 else out


class MobileNetV2(nn.Module):
    """A 3x3 stem, seven stages of inverted bottlenecks, a 1x1 convolution to 1280, average pool, one linear layer.

    The stem and the second stage, of stride 2 for ImageNet, have stride 1 for CIFAR and Tiny-ImageNet.

    >>> sum(p.numel() for p in MobileNetV2().parameters())
    2296922
    """

    def __init__(self, classes: int = 10, channels: int = 3, imagenet: bool = False) -> None:
        super().__init__()
        self.stem = spatial(channels, 32, stride=2 if imagenet else 1)
        blocks = []
        channels = 32
        for stage, (wider, width, count, stride) in enumerate(STAGES):
            first = 1 if stage == 1 and not imagenet else stride
            for index in range(count):
                blocks.append(Inverted(channels, width, wider, stride=1 if index else first))
                channels = width
        self.blocks = nn.Sequential(*blocks)
        self.head = pointwise(channels, 1280)
        self.classifier = nn.Linear(1280, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.stem(x)))
        return self.classifier(F.relu(self.head(x)).mean((2, 3)))
