"""Networks: plain modules by name, their initialization, and a table of their parameters."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from torch import nn

from ..imports import is_code, made
from ..messages import unknown
from . import from_timm
from .init import NORM_SCALES, SCHEMES, initialize
from .mobilenet import MobileNetV2
from .resnet import ResNet
from .small import SmallResNet, SmallVGG
from .table import ParameterTable, parameter_table
from .vgg import VGG

__all__ = [
    "MODELS",
    "NORM_SCALES",
    "SCHEMES",
    "ParameterTable",
    "SmallResNet",
    "SmallVGG",
    "build",
    "initialize",
    "parameter_table",
]

IMAGENET_SIZE = 128  # smaller images get the variant for CIFAR and Tiny-ImageNet, others the one for ImageNet


class Architecture(NamedTuple):
    """A row of `MODELS`: a function of the number of classes and channels, and its name in figures and tables."""

    network: Callable[..., nn.Module]
    label: str
    smallest: int = 1  # pixels along each side of an image
    variants: bool = True  # whether the size of the images decides about `imagenet`


MODELS: dict[str, Architecture] = {
    "resnet18": Architecture(partial(ResNet, 18), "ResNet-18"),
    "resnet34": Architecture(partial(ResNet, 34), "ResNet-34"),
    "resnet50": Architecture(partial(ResNet, 50), "ResNet-50"),
    "vgg16": Architecture(partial(VGG, 16), "VGG-16", smallest=16),
    "vgg19": Architecture(partial(VGG, 19), "VGG-19", smallest=16),
    "mobilenet-v2": Architecture(MobileNetV2, "MobileNet-v2"),
    "small-vgg": Architecture(SmallVGG, "small VGG", variants=False),
    "small-resnet": Architecture(SmallResNet, "small ResNet", variants=False),
    "resnet50-imagenet": Architecture(partial(ResNet, 50, imagenet=True), "ResNet-50 (ImageNet)", variants=False),
    "vgg19-imagenet": Architecture(partial(VGG, 19, imagenet=True), "VGG-19 (ImageNet)", smallest=32, variants=False),
}


def build(name: str, classes: int, size: int, channels: int = 3) -> nn.Module:
    """Build the network of that name in `MODELS`, or the one that a factory of your own returns.

    Such a factory is named as "package.module:factory" or "path/to/file.py:factory". It receives the number of classes
    if it has a parameter `classes`, `num_classes` or `n_classes`, or if it needs exactly one argument. "timm:NAME" is a
    network of timm, and "timm:NAME@SIZE" the same for images of another size. The weights are those of torch's default
    initialization; use `initialize` to change them.

    >>> build("resnet50", classes=10, size=32).conv1.kernel_size, build("resnet50", 1000, 224).conv1.kernel_size
    ((3, 3), (7, 7))
    """
    if is_code(name):
        model = made(name, "model", dict.fromkeys(("classes", "num_classes", "n_classes"), classes), "an nn.Module")
        if not isinstance(model, nn.Module):
            raise ValueError(f"{name} returned {type(model).__name__}; a factory must return an nn.Module")
        return model
    check_name(name)
    if name.startswith(from_timm.PREFIX):
        return from_timm.build(name, classes, channels)
    row = MODELS[name]
    if size < (least := row.smallest):
        problem = f"images of {size}x{size} pixels are too small for this network, which needs {least}x{least}"
        raise ValueError(f"{problem}; use one for small images, such as small-vgg or small-resnet")
    variant = {"imagenet": size >= IMAGENET_SIZE} if row.variants else {}
    return row.network(classes, channels=channels, **variant)


def check_name(name: str) -> None:
    """Raise a `ValueError` if there is no network of this name, and it names no code either."""
    if name.startswith(from_timm.PREFIX):
        wanted(name)
    elif name not in MODELS and not is_code(name):
        own_ones = "package.module:factory for one of your own, or timm:NAME"
        raise ValueError(f"{unknown('model', name, MODELS)}, or {own_ones}")


def wanted(name: str) -> from_timm.Wanted | None:
    """Return which size and normalization of images a network of timm wants; None for others, which take any."""
    return from_timm.wanted(name) if name.startswith(from_timm.PREFIX) else None
