"""MobileNet-v2 in its usual version for CIFAR, and for ImageNet."""

import torch.nn.functional as F
from torch import Tensor, nn

STAGES = (  # expansion, output channels, number of blocks, stride of the first block
    (1, 16, 1, 1),
    (6, 24, 2, 2),  # stride 1 for CIFAR
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def convolution(channels: int, width: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(channels, width, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(width))


class InvertedBottleneck(nn.Module):
    """A 1x1 convolution that widens, a depthwise 3x3 one, and a 1x1 one that narrows, without a ReLU after it.

    Blocks of stride 1 have a shortcut. It is a 1x1 convolution where the number of channels changes. The original
    network has no shortcut there, but the version for CIFAR has, and so it has the 2.3 M parameters of the paper.
    """

    def __init__(self, channels: int, width: int, expansion: int, stride: int) -> None:
        super().__init__()
        inside = channels * expansion
        self.widen = convolution(channels, inside)
        self.filter = convolution(inside, inside, 3, stride, groups=inside)
        self.narrow = convolution(inside, width)
        self.around = convolution(channels, width) if channels != width and stride == 1 else nn.Sequential()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        out = self.narrow(F.relu(self.filter(F.relu(self.widen(x)))))
        return out + self.around(x) if self.stride == 1 else out


class MobileNetV2(nn.Module):
    """A 3x3 stem, seven stages of inverted bottlenecks, a 1x1 convolution to 1280 channels, average pool, linear layer.

    The stem and the second stage have stride 2 for ImageNet, and stride 1 for CIFAR and Tiny-ImageNet.

    >>> sum(p.numel() for p in MobileNetV2().parameters())
    2296922
    """

    def __init__(self, classes: int = 10, channels: int = 3, imagenet: bool = False) -> None:
        super().__init__()
        self.stem = convolution(channels, 32, 3, stride=2 if imagenet else 1)
        blocks = []
        channels = 32
        for stage, (expansion, width, count, stride) in enumerate(STAGES):
            first = 1 if stage == 1 and not imagenet else stride
            for index in range(count):
                blocks.append(InvertedBottleneck(channels, width, expansion, stride=1 if index else first))
                channels = width
        self.blocks = nn.Sequential(*blocks)
        self.head = convolution(channels, 1280)
        self.classifier = nn.Linear(1280, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.stem(x)))
        return self.classifier(F.relu(self.head(x)).mean((2, 3)))
