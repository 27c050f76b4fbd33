"""Folder splits: image files that worker processes decode and augment when they are needed."""

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..running import digest
from .images import SUFFIXES, centre_crop, open_rgb, random_crop, require_pillow, to_tensor
from .normalization import Normalization
from .split import Batch, Split

Item = tuple[str, int, int | None]  # a file, its label, and the seed of its augmentation


class FolderSplit(Split):
    """Image files with labels, read as `size` x `size` pixels.

    Augmentation takes a random crop, resizes it, and mirrors half of the images. Without it, the crop is the middle
    of the image. The random numbers of an image depend on the epoch's seed and the image's index, so the batches are
    the same with any number of workers.
    """

    def __init__(
        self, paths: Sequence[str], labels: Sequence[int], size: int, normalization: Normalization, workers: int = 0
    ) -> None:
        require_pillow()
        assert len(paths) == len(labels)
        self.paths, self.labels, self.size = paths, labels, size
        self.normalization, self.workers = normalization, workers

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, order: Tensor, batch: int, key: int | None) -> Iterator[Batch]:
        items = (self._items(indices.tolist(), key) for indices in order.split(batch))
        yield from loaded(_Decoder(self.size), items, self.workers, self.normalization)

    def _items(self, indices: list[int], key: int | None) -> list[Item]:
        """Return all that a worker needs for a batch, so that workers hold no list of files."""
        return [(self.paths[i], self.labels[i], None if key is None else digest.text(key, i)) for i in indices]


def loaded(reader: Dataset[Any], items: Iterable[Any], workers: int, normalization: Normalization) -> Iterator[Batch]:
    """Yield the batches that `reader` makes from the items of each, with this many worker processes.

    The reader returns errors, because an error that is raised in a worker would carry the worker's traceback.
    """
    device = normalization.device
    loader = DataLoader(
        reader,
        batch_sampler=items,
        collate_fn=_unchanged,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        generator=torch.Generator("cpu").manual_seed(0),  # the loader seeds its workers from it; they ignore that
    )
    for result in loader:
        if isinstance(result, Exception):
            raise result
        inputs, labels = result
        yield normalization(inputs), labels.to(device, non_blocking=True)


class _Decoder(Dataset[Any]):
    """Decode one batch at a time; return errors."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __getitems__(self, items: list[Item]) -> tuple[Tensor, Tensor] | Exception:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Pillow warns about damaged metadata, which is not used here
                images = to_tensor([self._crop(path, seed) for path, _, seed in items])
            return images.contiguous(), torch.tensor([label for _, label, _ in items])
        except (OSError, ValueError) as error:
            return error

    def _crop(self, path: str, seed: int | None) -> Any:
        image = open_rgb(path)
        return centre_crop(image, self.size) if seed is None else random_crop(image, self.size, Random(seed))


def _unchanged(batch: Any) -> Any:
    return batch


def listed(root: Path, parts: Sequence[str]) -> tuple[list[str], dict[str, tuple[list[str], list[int]]]]:
    """Return the classes of a folder, and the files and labels of each of its parts, such as train and test.

    Each part has one folder per class, the same in all. Classes are numbered in sorted order.
    """
    classes = _classes(root / parts[0])
    for part in parts[1:]:
        if (others := _classes(root / part)) != classes:
            odd = min(set(others) ^ set(classes))
            raise ValueError(
                f"{root}/{parts[0]} and {root}/{part} must have folders of the same names, but only one has {odd}"
            )
    return classes, {part: _listed(root / part, classes) for part in parts}


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
