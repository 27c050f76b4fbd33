"""ImageNet, from the folders train and val with one folder per class: crops of 224x224 pixels."""

from __future__ import annotations

import os
from pathlib import Path

from .folder import FolderSplit
from .images import SUFFIXES
from .split import Data, Request

SIZE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def load(request: Request) -> Data:
    """Load the data set: `train` for training, `val` for testing; classes are numbered in sorted order of folders."""
    root = next((r for r in (request.root, request.root / "imagenet") if (r / "train").is_dir()), request.root)
    if not (root / "train").is_dir():
        hint = "; downloading it needs an account at image-net.org" if request.download else ""
        raise FileNotFoundError(
            f"there is no ImageNet in {root}; put the folders train and val there, each with one folder per class{hint}"
        )
    normalization = request.normalization(MEAN, STD)
    classes = _classes(root / "train")
    if (test_classes := _classes(root / "val")) != classes:
        odd = min(set(test_classes) ^ set(classes))
        raise ValueError(f"{root}/train and {root}/val must have folders of the same names, but only one has {odd}")
    train, test = (
        FolderSplit(*_listed(root / name, classes), SIZE, normalization, request.workers) for name in ("train", "val")
    )
    return Data("imagenet", len(classes), (3, SIZE, SIZE), train=train, validation=None, test=test)


def _classes(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is missing; create it, with one folder of images per class")
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise ValueError(f"{folder} contains no folders; put each image into a folder of its class")
    return names


def _listed(folder: Path, classes: list[str]) -> tuple[list[str], list[int]]:
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        with os.scandir(folder / name) as entries:
            images = sorted(e.path for e in entries if e.name.lower().endswith(SUFFIXES) and not e.name.startswith("."))
        if not images:
            raise ValueError(f"{folder / name} contains no images")
        paths += images
        labels += [label] * len(images)
    return paths, labels
