"""A small VGG and a small ResNet for 8x8 images, deep enough to show the effects of extreme sparsity."""

import torch.nn.functional as F
from torch import Tensor, nn

from .resnet import Bottleneck, conv


class SmallVGG(nn.Module):
    """Eight 3x3 convolutions at 8x8, 4x4 and 2x2, with max-pools between them, average pool, linear layer.

    >>> sum(p.numel() for p in SmallVGG().parameters())
    267290
    """

    def __init__(self, classes: int = 10, width: int = 16, channels: int = 1) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for times in (1, 1, 0, 2, 2, 2, 0, 4, 8, 8):
            if times:
                layers += [conv(channels, times * width, 3), nn.BatchNorm2d(times * width), nn.ReLU()]
                channels = times * width
            else:
                layers += [nn.MaxPool2d(2)]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((2, 3)))


class SmallResNet(nn.Module):
    """A 3x3 stem, five bottlenecks (as in ResNet-50) at 8x8, 4x4 and 2x2, average pool, linear layer.

    >>> sum(p.numel() for p in SmallResNet().parameters())
    55834
    """

    def __init__(self, classes: int = 10, width: int = 8, channels: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(channels, 2 * width, 3), nn.BatchNorm2d(2 * width)
        channels, blocks = 2 * width, []
        for times, stride in ((1, 1), (2, 2), (2, 1), (4, 2), (4, 1)):
            blocks.append(Bottleneck(channels, times * width, stride))
            channels = times * width * Bottleneck.expansion
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.bn1(self.conv1(x))))
        return self.fc(x.mean((2, 3)))
