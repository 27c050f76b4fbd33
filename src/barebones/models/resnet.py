"""ResNet-18, 34 and 50 for CIFAR and Tiny-ImageNet, and for ImageNet with torchvision's parameter names."""

import torch.nn.functional as F
from torch import Tensor, nn


def conv(channels: int, width: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """Return a padded convolution without a bias, because a batch-norm follows it."""
    return nn.Conv2d(channels, width, kernel, stride, padding=kernel // 2, bias=False)


def shortcut(channels: int, width: int, stride: int) -> nn.Sequential:
    """Return the shortcut of a block: the identity, or a 1x1 convolution if the block changes the shape."""
    if stride == 1 and channels == width:
        return nn.Sequential()
    return nn.Sequential(conv(channels, width, 1, stride), nn.BatchNorm2d(width))


class Basic(nn.Module):
    """A residual block of two 3x3 convolutions."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(channels, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = conv(width, width, 3), nn.BatchNorm2d(width)
        self.downsample = shortcut(channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.downsample(x))


class Bottleneck(nn.Module):
    """A residual block of a 1x1 convolution that narrows, a 3x3 one with the stride, and a 1x1 one that widens."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        wide = width * self.expansion
        self.conv1, self.bn1 = conv(channels, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = conv(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = conv(width, wide, 1), nn.BatchNorm2d(wide)
        self.downsample = shortcut(channels, wide, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        return F.relu(self.bn3(self.conv3(out)) + self.downsample(x))


BLOCKS: dict[int, tuple[type[Basic | Bottleneck], tuple[int, int, int, int]]] = {  # by depth: block, blocks per stage
    18: (Basic, (2, 2, 2, 2)),
    34: (Basic, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
}


class ResNet(nn.Module):
    """A stem, four stages of 64, 128, 256 and 512 channels (four times as many for bottlenecks), and a linear layer.

    Each stage after the first halves the image. The stem is a 3x3 convolution for CIFAR and Tiny-ImageNet, and a 7x7
    convolution of stride 2 with a max-pool for ImageNet.

    >>> sum(p.numel() for p in ResNet(50).parameters())
    23520842
    """

    def __init__(self, depth: int, classes: int = 10, channels: int = 3, imagenet: bool = False) -> None:
        super().__init__()
        block, counts = BLOCKS[depth]
        self.conv1 = conv(channels, 64, 7, stride=2) if imagenet else conv(channels, 64, 3)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if imagenet else nn.Identity()
        channels, stages = 64, []
        for stage, count in enumerate(counts):
            blocks: list[nn.Module] = []
            for index in range(count):
                blocks.append(block(channels, 64 << stage, stride=2 if stage and index == 0 else 1))
                channels = (64 << stage) * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))
