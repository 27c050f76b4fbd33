"""Splits: the images to train, validate or test with, in batches that depend on nothing but a seed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from ..running import digest
from .normalization import Normalization

MEASURED = 5_000  # images that mean and standard deviation are computed from
Batch = tuple[Tensor, Tensor]  # images (float32, N x C x H x W) and labels (int64, N), both on the split's device


class Split(ABC):
    """Images with labels, read one epoch at a time.

    All random numbers are drawn on the CPU, from generators seeded by (seed, number). So the global generators are
    not touched, every device gets the same batches, and training can resume at any epoch.
    """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of images."""

    @abstractmethod
    def read(self, order: Tensor, batch: int, key: int | None) -> Iterator[Batch]:
        """Yield the images of these indices, `batch` at a time.

        Each image is augmented by random numbers that depend on `key` and its index; with None it is not augmented.
        """

    def epoch(
        self,
        batch: int,
        seed: int = 0,
        number: int = 0,
        shuffle: bool = False,
        augment: bool = False,
        drop_last: bool = False,
        skip: int = 0,
        rank: int = 0,
        ranks: int = 1,
    ) -> Iterator[Batch]:
        """Yield every image once, as epoch `number` of a training with this `seed`.

        `drop_last` leaves out the last batch if it is smaller than the others. The first `skip` batches are left out
        without being read, which lets a training resume within an epoch. The augmentation of an image depends on
        (seed, number) and on the image, not on the batch that it is in. With several `ranks`, this one gets its part of
        each batch, or the whole of a batch that has fewer images than there are ranks.
        """
        if batch < 1:
            raise ValueError(f"a batch must have at least one image, not {batch}")
        order = torch.arange(len(self), device="cpu")
        if shuffle:
            generator = torch.Generator("cpu").manual_seed(digest.text("order", seed, number))
            order = torch.randperm(len(self), generator=generator, device="cpu")
        if drop_last:
            if batch > len(self):
                raise ValueError(
                    f"a batch of {batch} is larger than the split of {len(self)} images; use a smaller one"
                )
            order = order[: len(self) // batch * batch]
        order = order[skip * batch :]
        if not len(order):
            return iter(())
        key = digest.text("augment", seed, number) if augment else None
        own = [part[rank::ranks] if len(part) >= ranks else part for part in order.split(batch)]
        if len(own[-1]) > len(own[0]):  # a last batch that is not split
            return chain(self.read(torch.cat(own[:-1]), len(own[0]), key), self.read(own[-1], len(own[-1]), key))
        return self.read(torch.cat(own), len(own[0]), key)

    def scoring(self, batch: int, seed: int = 0) -> ScoringBatches:
        """Return batches for `prune`: shuffled, augmented, all of the same size."""
        return ScoringBatches(self, batch, seed)


class ScoringBatches:
    """Shuffled, augmented batches of equal size, which can be iterated any number of times.

    Each pass draws its epoch number from torch's global CPU generator, as a shuffling DataLoader does. `prune` seeds
    that generator for every pass, so each pass has new batches, and replaying a pass gives the same ones.
    """

    def __init__(self, split: Split, batch: int, seed: int) -> None:
        if not 1 <= batch <= len(split):
            raise ValueError(f"a batch of {batch} cannot be drawn from {len(split)} images; use 1 to {len(split)}")
        self.split, self.batch, self.seed = split, batch, seed

    def __len__(self) -> int:
        """Return the number of batches in a pass."""
        return len(self.split) // self.batch

    def __iter__(self) -> Iterator[Batch]:
        number = int(torch.randint(2**62, (), device="cpu"))
        return self.split.epoch(self.batch, self.seed, number, shuffle=True, augment=True, drop_last=True)


@dataclass(frozen=True)
class Inputs:
    """What a network for some data has to take and to tell apart."""

    classes: int
    shape: tuple[int, ...]  # of one input, without the batch
    dtype: str = "float32"

    @property
    def size(self) -> int:
        """Pixels along the shorter side of an image; 0 if the inputs are no images."""
        return min(self.shape[1:]) if len(self.shape) == 3 else 0

    @property
    def channels(self) -> int:
        """The channels of an image; 0 if the inputs are no images."""
        return self.shape[0] if len(self.shape) == 3 else 0

    def example(self, batch: int) -> Tensor:
        """Return random inputs of this form, the same in every call; those that are integers are zeros."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        if not dtype.is_floating_point:
            return torch.zeros(batch, *self.shape, dtype=dtype)
        return torch.randn(batch, *self.shape, generator=torch.Generator("cpu").manual_seed(0), dtype=dtype)


@dataclass(frozen=True)
class Data:
    """A loaded data set."""

    name: str
    classes: int
    shape: tuple[int, ...]  # of one input; that of an image is channels, height, width
    train: Split
    validation: Split | None  # held out of the training images; None if all of them are trained on
    test: Split
    dtype: str = "float32"  # of the inputs that the network gets
    digest: str = ""  # of data of the user's own, which may change; empty for a published data set

    @property
    def inputs(self) -> Inputs:
        """What a network for this data has to take and to tell apart."""
        return Inputs(self.classes, self.shape, self.dtype)


@dataclass(frozen=True)
class Request:
    """The arguments of `load`, as the loader of each data set receives them."""

    root: Path  # the folder of the data set, or the folder that contains it
    device: torch.device  # of the batches
    download: bool = False
    workers: int = 0  # processes or threads that decode image files
    channels_last: bool = False
    size: int | None = None  # pixels along each side of the images that the network wants; None: as they are
    mean: tuple[float, ...] = ()  # of the normalization that the network wants; empty: that of the data set
    std: tuple[float, ...] = ()

    def normalization(self, mean: Sequence[float], std: Sequence[float], white: int = 255) -> Normalization:
        """Return how bytes become the floats that a network gets; without a mean they stay as they are."""
        if len(mean) and self.mean:  # images of another number of channels get the average
            alike = len(self.mean) == len(mean)
            mean, std = (v if alike else [sum(v) / len(v)] * len(mean) for v in (self.mean, self.std))
        return Normalization(mean, std, white, self.device, self.channels_last, self.size)

    def shape(self, *shape: int) -> tuple[int, ...]:
        """Return the shape of inputs of this shape as the network gets them."""
        return (shape[0], self.size, self.size) if self.size and len(shape) == 3 else shape


def statistics(split: Split) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each channel of a split of bytes, with 255 as 1.

    They are computed from up to `MEASURED` images, evenly spaced.
    """
    sums: Tensor | float = 0.0
    pixels = 0
    for images, _ in split.read(torch.arange(0, len(split), -(-len(split) // MEASURED)), 256, None):
        values = images.double().transpose(0, 1).flatten(1) / 255
        sums = sums + torch.stack([values.sum(1), values.square().sum(1)])
        pixels += values.shape[1]
    mean, square = sums / pixels  # type: ignore[misc]
    std = (square - mean.square()).clamp(min=0).sqrt()
    return mean.tolist(), torch.where(std > 1e-6, std, 1.0).tolist()  # a channel of one value has no spread


def held_out(count: int, share: float = 0.1) -> Tensor:
    """Return a mask of the images held out for validation: those whose index has the smallest hash.

    The mask needs no random generator, so it is the same in every run and with every release of torch.

    >>> held_out(20).nonzero().flatten().tolist()
    [8, 9]
    """
    order = sorted(range(count), key=lambda index: sha256(str(index).encode()).digest())
    held = torch.zeros(count, dtype=torch.bool, device="cpu")
    held[order[: round(share * count)]] = True
    return held
