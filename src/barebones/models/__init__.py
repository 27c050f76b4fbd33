"""Networks: plain modules by name, their parameters in a table, and their initialization."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import partial
from operator import attrgetter
from typing import Protocol

from torch import nn

from .init import SCHEMES, initialize
from .mobilenet import MobileNetV2
from .resnet import ResNet
from .small import SmallResNet, SmallVGG, small_resnet, small_vgg
from .table import ParameterTable, parameter_table
from .vgg import VGG

__all__ = [
    "MODELS",
    "SCHEMES",
    "VGG",
    "Factory",
    "MobileNetV2",
    "ParameterTable",
    "ResNet",
    "SmallResNet",
    "SmallVGG",
    "build",
    "initialize",
    "parameter_table",
    "small_resnet",
    "small_vgg",
]


class Factory(Protocol):
    """Makes a network for a number of classes and square images of `size` pixels a side."""

    def __call__(self, classes: int, size: int, channels: int = 3) -> nn.Module: ...


def _factory(network: Callable[..., nn.Module], smallest: int = 1, imagenet: bool | None = None) -> Factory:
    def make(classes: int, size: int, channels: int = 3) -> nn.Module:
        if size < smallest:
            raise ValueError(
                f"images of {size}x{size} pixels are too small for this network, which halves them until nothing is "
                f"left; it needs {smallest}x{smallest}. small-vgg and small-resnet are made for 8x8"
            )
        return network(classes, channels=channels, imagenet=size >= 128 if imagenet is None else imagenet)

    return make


MODELS: dict[str, Factory] = {  # for ImageNet from 128 pixels a side on, for CIFAR and Tiny-ImageNet below
    "resnet18": _factory(partial(ResNet, 18)),
    "resnet34": _factory(partial(ResNet, 34)),
    "resnet50": _factory(partial(ResNet, 50)),
    "vgg16": _factory(partial(VGG, 16), smallest=16),
    "vgg19": _factory(partial(VGG, 19), smallest=16),
    "mobilenet-v2": _factory(MobileNetV2),
    "small-vgg": lambda classes, size, channels=3: SmallVGG(classes, channels=channels),
    "small-resnet": lambda classes, size, channels=3: SmallResNet(classes, channels=channels),
    "resnet50-imagenet": _factory(partial(ResNet, 50), imagenet=True),
    "vgg19-imagenet": _factory(partial(VGG, 19), smallest=32, imagenet=True),
}


def build(name: str, classes: int, size: int, channels: int = 3) -> nn.Module:
    """The network of that name in `MODELS`, or what the factory "package.module:factory" returns.

    A factory is told the number of classes if it has a parameter `classes`, `num_classes` or `n_classes`, or cannot
    be called without one argument. Nothing is initialized beyond torch's defaults: that is `initialize`.

    >>> build("resnet50", classes=10, size=32).conv1.kernel_size, build("resnet50", 1000, 224).conv1.kernel_size
    ((3, 3), (7, 7))
    """
    if ":" in name:
        return _imported(name, classes)
    if name not in MODELS:
        raise ValueError(
            f"there is no model {name!r}{_did_you_mean(name.lower(), MODELS)}; choose one of {', '.join(MODELS)}, "
            "or package.module:factory for one of your own"
        )
    return MODELS[name](classes, size, channels)


def _imported(name: str, classes: int) -> nn.Module:
    path, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(path)
    except Exception as error:  # whatever a stranger's file raises
        hint = "; is its folder on PYTHONPATH?" if isinstance(error, ModuleNotFoundError) else ""
        raise ValueError(f"the model {name} cannot be imported ({type(error).__name__}: {error}){hint}") from error
    try:
        factory = attrgetter(attribute)(module)
    except AttributeError as error:
        raise ValueError(f"{path} has no {attribute!r}{_did_you_mean(attribute, vars(module))}") from error
    if isinstance(factory, nn.Module) or not callable(factory):
        kind = type(factory).__name__
        raise ValueError(f"{name} is of type {kind}; name a function or a class that makes an nn.Module")
    signature = inspect.signature(factory)
    said = [word for word in ("classes", "num_classes", "n_classes") if word in signature.parameters]
    for args, words in [*(((), {word: classes}) for word in said), ((), {}), ((classes,), {})]:
        try:
            signature.bind(*args, **words)
        except TypeError:
            continue
        try:
            model = factory(*args, **words)
        except (Exception, SystemExit) as error:  # as above
            raise ValueError(f"{name} raised {type(error).__name__}: {error}") from error
        if not isinstance(model, nn.Module):
            raise ValueError(f"{name} returned {type(model).__name__}; a factory must return an nn.Module")
        return model
    raise ValueError(f"{name}{signature} needs more than the number of classes; name a factory that supplies the rest")


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=2)
    return f" (did you mean {' or '.join(close)}?)" if close else ""
