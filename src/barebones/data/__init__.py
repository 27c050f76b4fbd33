"""Data sets: those of the paper, and digits, all read in the same way."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from platformdirs import user_cache_path

from ..imports import is_code, sized
from ..messages import unknown
from ..running.devices import processors
from . import cifar, custom, digits, imagenet, images, tiny_imagenet
from .dataset import Data, Inputs, Request
from .split import Batch, Normalization, Split, TensorSplit

__all__ = ["DATA", "Batch", "Data", "DataSet", "Inputs", "Normalization", "Request", "Split", "TensorSplit", "load"]

MAX_WORKERS = 16


@dataclass(frozen=True)
class DataSet:
    """A row of `DATA`: how to load a data set, and what is known about it before it is read."""

    load: Callable[[Request], Data]
    inputs: Inputs  # what a network for this data set has to take and to tell apart
    label: str = ""  # in plots and tables; empty: the name of its row


DATA = {
    "cifar10": DataSet(partial(cifar.load, "cifar10"), Inputs(10, (3, 32, 32)), "CIFAR-10"),
    "cifar100": DataSet(partial(cifar.load, "cifar100"), Inputs(100, (3, 32, 32)), "CIFAR-100"),
    "tiny-imagenet": DataSet(tiny_imagenet.load, Inputs(200, (3, 64, 64)), "Tiny-ImageNet"),
    "imagenet": DataSet(imagenet.load, Inputs(1000, (3, 224, 224)), "ImageNet"),
    "digits": DataSet(digits.load, Inputs(10, (1, 8, 8)), "Digits"),
}


def load(
    name: str,
    root: str | os.PathLike[str] | None = None,
    device: torch.device | str = "cpu",
    download: bool = False,
    workers: int | None = None,
    channels_last: bool = False,
    size: int | None = None,
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
) -> Data:
    """Load the data set of this name in `DATA`, a folder of images, or the data that a factory of your own returns.

    A folder is named as "images:PATH" or "images:PATH@SIZE", a factory as "package.module:factory" or
    "path/to/file.py:factory"; docs/your-data.md says more about both. The batches will be on `device`.

    `root` is the folder of the data set, or the folder that contains it. The default is `$BAREBONES_DATA`, and if
    that is not set, the user's cache folder (`~/.cache/barebones` on Linux). Nothing is downloaded unless `download`
    is true. `workers` is the number of processes or threads that decode image files. The default is one per processor,
    and at most 16. The batches do not depend on it. Images are resized to `size` x `size` pixels, and bytes normalized
    by `mean` and `std`, if these are given.

    >>> data = load("digits")
    >>> data.classes, data.shape, len(data.train), len(data.test)
    (10, (1, 8, 8), 1294, 359)
    >>> images, labels = next(data.train.epoch(batch=64, seed=0, number=3, shuffle=True))
    >>> images.shape, labels.dtype
    (torch.Size([64, 1, 8, 8]), torch.int64)
    """
    check_name(name)
    if root is None:
        root = os.environ.get("BAREBONES_DATA") or user_cache_path("barebones")
    if workers is None:
        workers = min(MAX_WORKERS, processors())
    request = Request(Path(root).expanduser(), torch.device(device), download, workers, channels_last, size, mean, std)
    if name in DATA:
        return DATA[name].load(request)
    return custom.load(name, request) if is_code(name) else images.load(name, request)


def check_name(name: str) -> None:
    """Raise a `ValueError` if there is no data set of this name, and it names neither code nor a folder of images."""
    if name.startswith(images.PREFIX):
        sized(name)
    elif name not in DATA and not is_code(name):
        own_ones = f"{images.PREFIX}PATH for a folder of images, or file.py:factory for a data set of your own"
        raise ValueError(f"{unknown('data set', name, DATA)}, {own_ones}")
