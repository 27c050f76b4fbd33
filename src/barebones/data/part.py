"""Parts: what of a data set is trained on, held out or tested on, in batches that depend on a seed and nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

Batch = tuple[Tensor, Tensor]  # images (float32, N x C x H x W) and labels (int64, N), both on the part's device


class Part(ABC):
    """Images with labels, read one epoch at a time.

    All randomness is drawn on the CPU from generators of its own, seeded by (seed, number): the global generators
    are not touched, every device gets the same batches, and training can go on at any epoch.
    """

    @abstractmethod
    def __len__(self) -> int:
        """How many images."""

    @abstractmethod
    def read(self, order: Tensor, batch: int, key: int | None) -> Iterator[Batch]:
        """The images of these indices, `batch` at a time, each augmented as (key, its index) says; None is as it is."""

    def epoch(
        self,
        batch: int,
        seed: int = 0,
        number: int = 0,
        shuffle: bool = False,
        augment: bool = False,
        drop_last: bool = False,
        skip: int = 0,
    ) -> Iterator[Batch]:
        """Every image once, as epoch `number` of the run `seed` sees it; `drop_last` leaves out a short last batch.

        How an image is augmented depends on (seed, number) and the image, not on the batch it falls into. The first
        `skip` batches are left out without being read, for who has seen them.
        """
        if batch < 1:
            raise ValueError(f"a batch must hold at least one image, not {batch}")
        order = torch.arange(len(self), device="cpu")
        if shuffle:
            generator = torch.Generator("cpu").manual_seed(mixed("order", seed, number))
            order = torch.randperm(len(self), generator=generator, device="cpu")
        if drop_last:
            if batch > len(self):
                raise ValueError(f"a batch of {batch} is more than the {len(self)} images there are; ask for less")
            order = order[: len(self) // batch * batch]
        order = order[skip * batch :]
        if not len(order):
            return iter(())
        return self.read(order, batch, mixed("augment", seed, number) if augment else None)

    def scoring(self, batch: int, seed: int = 0) -> Scoring:
        """What `prune` takes as batches: shuffled, augmented, all of the same size."""
        return Scoring(self, batch, seed)


class Scoring:
    """Shuffled, augmented batches of equal size, as often as they are iterated.

    Each pass asks torch's global generator (CPU) once which epoch it is, as a shuffling DataLoader does. `prune`
    seeds that generator for every pass, so it gets other batches each pass and the same ones on a replay.
    """

    def __init__(self, part: Part, batch: int, seed: int) -> None:
        if not 1 <= batch <= len(part):
            raise ValueError(f"a batch of {batch} cannot be drawn from {len(part)} images; ask for 1 to {len(part)}")
        self.part, self.batch, self.seed = part, batch, seed

    def __len__(self) -> int:
        """Batches per pass."""
        return len(self.part) // self.batch

    def __iter__(self) -> Iterator[Batch]:
        number = int(torch.randint(2**62, (), device="cpu"))
        return self.part.epoch(self.batch, self.seed, number, shuffle=True, augment=True, drop_last=True)


@dataclass(frozen=True)
class Data:
    """A data set, ready to be read."""

    name: str
    classes: int
    size: int  # pixels along each side of an image
    channels: int
    train: Part
    validation: Part | None  # held out of the training images; None where all of them are trained on
    test: Part


@dataclass(frozen=True)
class Request:
    """What was asked of `load`, as the loader of each data set gets it."""

    root: Path  # the folder that holds the data set, or is it
    device: torch.device  # where the batches go
    download: bool = False
    workers: int = 0  # processes, or threads, that decode image files
    channels_last: bool = False


def mixed(*words: object) -> int:
    """A seed made of several values: other values, an unrelated seed.

    >>> mixed("order", 0, 1) == mixed("order", 0, 1), mixed("order", 0, 1) == mixed("order", 1, 0)
    (True, False)
    """
    return int.from_bytes(sha256(repr(words).encode()).digest()[:8], "big") >> 1


def held_out(count: int, share: float = 0.1) -> Tensor:
    """Which of `count` images are held out: those whose index, hashed, comes first.

    No generator is involved, so the split is the same in every run and with every release of torch.

    >>> held_out(20).nonzero().flatten().tolist()
    [8, 9]
    """
    order = sorted(range(count), key=lambda index: sha256(str(index).encode()).digest())
    held = torch.zeros(count, dtype=torch.bool, device="cpu")
    held[order[: round(share * count)]] = True
    return held
