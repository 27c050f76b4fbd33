"""VGG-16 and 19 with batch-norm for CIFAR and Tiny-ImageNet, and for ImageNet with torchvision's parameter names."""

from torch import Tensor, nn

WIDTHS = (64, 128, 256, 512, 512)
COUNTS = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}  # by depth: convolutions per stage


class VGG(nn.Module):
    """Five stages of 3x3 convolutions with max-pools between them, an average pool and a linear layer.

    For ImageNet there is a fifth max-pool, the average pool returns 7x7 pixels, the classifier has three linear
    layers with dropout, and the convolutions have biases.

    >>> sum(p.numel() for p in VGG(19).parameters())
    20035018
    """

    def __init__(self, depth: int, classes: int = 10, channels: int = 3, imagenet: bool = False) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width, count in zip(WIDTHS, COUNTS[depth], strict=True):
            for _ in range(count):
                layers += [nn.Conv2d(channels, width, 3, padding=1, bias=imagenet), nn.BatchNorm2d(width), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers if imagenet else layers[:-1])
        self.avgpool = nn.AdaptiveAvgPool2d(7 if imagenet else 1)
        self.classifier = imagenet_classifier(classes) if imagenet else nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def imagenet_classifier(classes: int) -> nn.Sequential:
    return nn.Sequential(
        *[nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), nn.Dropout()],
        *[nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout()],
        nn.Linear(4096, classes),
    )
