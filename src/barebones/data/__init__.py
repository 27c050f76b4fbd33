"""Data: the sets of the paper, and digits, all read in the same way."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from . import cifar, imagenet, tiny_imagenet
from .digits import Split, digits
from .digits import load as _load_digits
from .folder import FolderPart
from .part import Batch, Data, Part, Request, Scoring
from .tensors import TensorPart

__all__ = ["DATA", "SHAPES", "Batch", "Data", "FolderPart", "Part", "Scoring", "Split", "TensorPart", "digits", "load"]

DATA: dict[str, Callable[[Request], Data]] = {
    "cifar10": partial(cifar.load, "cifar10"),
    "cifar100": partial(cifar.load, "cifar100"),
    "tiny-imagenet": tiny_imagenet.load,
    "imagenet": imagenet.load,
    "digits": _load_digits,
}
SHAPES = {  # classes, pixels along a side and channels of each, for who wants to know before reading it
    "cifar10": (10, 32, 3),
    "cifar100": (100, 32, 3),
    "tiny-imagenet": (200, 64, 3),
    "imagenet": (1000, 224, 3),
    "digits": (10, 8, 1),
}
MOST_WORKERS = 16


def load(
    name: str,
    root: str | os.PathLike[str] | None = None,
    device: torch.device | str = "cpu",
    download: bool = False,
    workers: int | None = None,
    channels_last: bool = False,
) -> Data:
    """The data set of this name, its batches on `device`.

    `root` is the folder that holds the data set, or is it; by default `$BAREBONES_DATA`, or else
    `~/.cache/barebones`. Nothing is fetched unless `download` is true. `workers` decode image files (Tiny-ImageNet
    and ImageNet), by default one per processor and at most 16; the batches do not depend on how many there are.

    >>> data = load("digits")
    >>> data.classes, data.size, data.channels, len(data.train), len(data.test)
    (10, 8, 1, 1294, 359)
    >>> images, labels = next(data.train.epoch(batch=64, seed=0, number=3, shuffle=True))
    >>> images.shape, labels.dtype
    (torch.Size([64, 1, 8, 8]), torch.int64)
    """
    if name not in DATA:
        near = difflib.get_close_matches(name.lower(), DATA, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"there is no data set {name!r}; there are {', '.join(DATA)}{hint}")
    if root is None:
        root = os.environ.get("BAREBONES_DATA") or Path("~/.cache/barebones")
    if workers is None:
        workers = min(MOST_WORKERS, _processors())
    return DATA[name](Request(Path(root).expanduser(), torch.device(device), download, workers, channels_last))


def _processors() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
