"""Small networks for 8x8 images: a VGG and a ResNet, deep enough to show what extreme sparsity does to them."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class SmallVGG(nn.Module):
    """Three stages of `depth` convolutions at 8x8, 4x4 and 2x2, max-pools between, average pool, one linear layer."""

    def __init__(self, classes: int = 10, width: int = 32, depth: int = 3, channels: int = 1) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for stage in range(3):
            layers += [nn.MaxPool2d(2)] if stage else []
            for _ in range(depth):
                layers += [conv3(channels, width << stage), nn.BatchNorm2d(width << stage), nn.ReLU()]
                channels = width << stage
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((2, 3)))


class Block(nn.Module):
    """Two convolutions and a way around them: the identity, or a 1x1 convolution where the shape changes."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3(channels, width, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = conv3(width, width), nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class SmallResNet(nn.Module):
    """A 3x3 stem, three stages of `depth` basic blocks at 8x8, 4x4 and 2x2, average pool, one linear layer."""

    def __init__(self, classes: int = 10, width: int = 32, depth: int = 2, channels: int = 1) -> None:
        super().__init__()
        self.conv, self.bn = conv3(channels, width), nn.BatchNorm2d(width)
        blocks = []
        channels = width
        for stage in range(3):
            for index in range(depth):
                blocks.append(Block(channels, width << stage, stride=2 if stage and index == 0 else 1))
                channels = width << stage
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.blocks(F.relu(self.bn(self.conv(x)))).mean((2, 3)))


def conv3(channels: int, width: int, stride: int = 1) -> nn.Conv2d:
    """A 3x3 convolution that keeps the size; the batch-norm after it has the bias."""
    return nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)


def small_vgg(classes: int = 10, width: int = 32, depth: int = 3) -> SmallVGG:
    """A VGG with 3 * depth convolutions, for 1x8x8 images.

    >>> sum(p.numel() for p in small_vgg().parameters())
    482154
    """
    return SmallVGG(classes, width, depth)


def small_resnet(classes: int = 10, width: int = 32, depth: int = 2) -> SmallResNet:
    """A ResNet with 3 * depth blocks, for 1x8x8 images."""
    return SmallResNet(classes, width, depth)
