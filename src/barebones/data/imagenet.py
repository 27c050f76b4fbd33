"""ImageNet, from folders train and val with one folder per class: 224x224 pixels cut from images of any size."""

from __future__ import annotations

import os
from pathlib import Path

from .folder import FolderPart
from .images import SUFFIXES
from .normalization import Normalization
from .part import Data, Request

SIZE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def load(request: Request) -> Data:
    """The data set: all of `train` to train with, `val` to test with. A class is its folder's place in sorted order."""
    root = next((r for r in (request.root, request.root / "imagenet") if (r / "train").is_dir()), request.root)
    if not (root / "train").is_dir():
        hint = "; it cannot be downloaded without an account at image-net.org" if request.download else ""
        raise FileNotFoundError(
            f"there is no ImageNet in {root}: put the folders train and val there, each with a folder per class{hint}"
        )
    normalization = Normalization(MEAN, STD, device=request.device, channels_last=request.channels_last)
    classes = _classes(root / "train")
    if (tested := _classes(root / "val")) != classes:
        odd = min(set(tested) ^ set(classes))
        raise ValueError(f"{root}/train and {root}/val must hold folders of the same names, and {odd} is in one only")
    train, test = (
        FolderPart(*_listed(root / name, classes), SIZE, normalization, request.workers) for name in ("train", "val")
    )
    return Data("imagenet", len(classes), SIZE, channels=3, train=train, validation=None, test=test)


def _classes(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is missing; put a folder per class there, with its images")
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise ValueError(f"{folder} holds no folders; put each image into a folder of its class")
    return names


def _listed(folder: Path, classes: list[str]) -> tuple[list[str], list[int]]:
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        with os.scandir(folder / name) as entries:
            found = sorted(e.path for e in entries if e.name.lower().endswith(SUFFIXES) and not e.name.startswith("."))
        if not found:
            raise ValueError(f"{folder / name} holds no images")
        paths += found
        labels += [label] * len(found)
    return paths, labels
