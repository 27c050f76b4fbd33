"""Folder parts: image files, decoded and augmented by worker processes as they are needed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .images import centre_crop, opened, random_crop, require_pillow, stacked
from .normalization import Normalization
from .part import Batch, Part, mixed

Item = tuple[str, int, int | None]  # a file, its label, and the seed of its augmentation


class FolderPart(Part):
    """Image files with labels, read as `size` x `size` pixels.

    Augmented: a random crop, resized, and mirrored half the time; else the middle of the image. What is drawn for
    an image depends on the epoch's seed and its index, so any number of workers gives the same batches.
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
        device = self.normalization.device
        loader = DataLoader(
            _Reader(self.size),
            batch_sampler=(self._items(indices.tolist(), key) for indices in order.split(batch)),
            collate_fn=_as_it_is,
            num_workers=self.workers,
            pin_memory=device.type == "cuda",
            generator=torch.Generator("cpu").manual_seed(0),  # it draws a seed for its workers, which use none
        )
        for found in loader:
            if isinstance(found, Exception):
                raise found
            images, labels = found
            yield self.normalization(images), labels.to(device, non_blocking=True)

    def _items(self, indices: list[int], key: int | None) -> list[Item]:
        """What a worker needs to know: it holds no list of files."""
        return [(self.paths[i], self.labels[i], None if key is None else mixed(key, i)) for i in indices]


class _Reader(Dataset[Any]):
    """Decodes a batch at a time. An error is returned, not raised, so that no worker's traceback is put before it."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __getitem__(self, item: Item) -> tuple[Tensor, Tensor] | Exception:
        return self.__getitems__([item])

    def __getitems__(self, items: list[Item]) -> tuple[Tensor, Tensor] | Exception:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Pillow's, about metadata that nobody reads
                images = stacked([self._cut(path, seed) for path, _, seed in items])
            return images.contiguous(), torch.tensor([label for _, label, _ in items])
        except (OSError, ValueError) as error:
            return error

    def _cut(self, path: str, seed: int | None) -> Any:
        image = opened(path)
        return centre_crop(image, self.size) if seed is None else random_crop(image, self.size, Random(seed))


def _as_it_is(batch: Any) -> Any:
    return batch
