"""Splits: the images to train, validate or test with, in batches that depend on nothing but a seed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from ..running import digest

MEASURED = 5_000  # images that mean and standard deviation are computed from
BLOCK = 1024  # images in memory that are prepared at once, so that each batch needs only a few small kernels
Batch = tuple[Tensor, Tensor]  # images (float32, N x C x H x W) and labels (int64, N), both on the split's device
ReadOne = Callable[[Any, int, int | None], tuple[Tensor, int]]


class Normalization:
    """Turn uint8 images into float32 ones, (pixel / white - mean) / std per channel, in the requested memory format.

    Without a mean, inputs are only moved to the device.

    >>> half = Normalization(mean=[0.5], std=[0.5])
    >>> half(torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2)).flatten().tolist()
    [-1.0, 1.0]
    """

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        white: int = 255,  # the value of a pixel that counts as 1
        device: torch.device | str = "cpu",
        channels_last: bool = False,
        size: int | None = None,  # pixels along each side that images are resized to; None: they keep their size
    ) -> None:
        self.device = torch.device(device)
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self.normalizes, self.size = len(mean) > 0, size
        self.mean, self.std = (
            (torch.tensor(values, dtype=torch.float64, device="cpu") * white).float().view(1, -1, 1, 1).to(self.device)
            for values in (mean, std)
        )

    def shape(self, *shape: int) -> tuple[int, ...]:
        """Return the shape of inputs of this shape as the network gets them."""
        return (shape[0], self.size, self.size) if self.size and len(shape) == 3 else shape

    def __call__(self, images: Tensor) -> Tensor:
        images = images.to(self.device, non_blocking=True)  # moved before the conversion, while a pixel is one byte
        if images.dim() != 4 or not (self.normalizes or images.is_floating_point()):
            return images
        floats = images.to(torch.float32, memory_format=self.memory_format)
        if self.size and floats.shape[2:] != (self.size, self.size):
            floats = F.interpolate(floats, (self.size, self.size), mode="bilinear", antialias=True)
        return floats.sub_(self.mean).div_(self.std) if self.normalizes else floats


class Split(ABC):
    """Images with labels, read one epoch at a time.

    All random numbers are drawn on the CPU, from generators seeded by (seed, number). So the global generators are
    not touched, every device gets the same batches, and training can resume at any epoch.
    """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of images."""

    @abstractmethod
    def read(self, batches: tuple[Tensor, ...], key: int | None) -> Iterator[Batch]:
        """Yield batches of the images of these indices.

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
    ) -> Iterator[Batch]:
        """Yield every image once, as epoch `number` of a training with this `seed`.

        The first `skip` batches are left out without being read, which lets a training resume within an epoch. How an
        image is augmented does not depend on its batch.
        """
        if batch < 1:
            raise ValueError(f"a batch must have at least one image, not {batch}")
        order = torch.arange(len(self), device="cpu")
        if shuffle:
            generator = torch.Generator("cpu").manual_seed(digest.text("order", seed, number))
            order = torch.randperm(len(self), generator=generator, device="cpu")
        if drop_last:
            if batch > len(self):
                raise ValueError(f"a batch of {batch} cannot be drawn from {len(self)} images; use a smaller one")
            order = order[: len(self) // batch * batch]
        return self.read(order.split(batch)[skip:], digest.text("augment", seed, number) if augment else None)

    def scoring(self, batch: int, seed: int = 0) -> "ScoringBatches":
        """Return batches for `prune`: shuffled, augmented, all of the same size."""
        return ScoringBatches(self, batch, seed)


class TensorSplit(Split):
    """Images (uint8, N x C x H x W) or other inputs with labels, both moved to the device of the normalization.

    Augmentation pads an image with `pad` black pixels on each side, crops it to its size at a random place, and
    mirrors half of the images.
    """

    def __init__(
        self, images: Tensor, labels: Tensor, normalization: Normalization, pad: int = 4, flip: bool = True
    ) -> None:
        assert len(images) == len(labels)
        self.images = images.to(normalization.device).contiguous()
        self.labels = labels.to(normalization.device, torch.int64)
        self.normalization, self.pad, self.flip = normalization, pad, flip

    def __len__(self) -> int:
        return len(self.images)

    def read(self, batches: tuple[Tensor, ...], key: int | None) -> Iterator[Batch]:
        device = self.images.device
        draws = None if key is None or not (self.pad or self.flip) else self.draws(key).to(device)
        at_once = max(1, BLOCK // len(batches[0])) if batches else 1
        for start in range(0, len(batches), at_once):
            block = batches[start : start + at_once]
            indices, sizes = torch.cat(block).to(device), [len(batch) for batch in block]
            images = self.images[indices]
            if draws is not None:
                images = cropped(images, self.pad, *draws[:, indices])
            yield from zip(self.normalization(images).split(sizes), self.labels[indices].split(sizes), strict=True)

    def draws(self, key: int) -> Tensor:
        """Draw 3 x N integers: each image's vertical and horizontal offset of the crop, and whether it is mirrored."""
        generator = torch.Generator("cpu").manual_seed(key)
        offsets = torch.randint(2 * self.pad + 1, (2, len(self)), generator=generator, device="cpu")
        mirrored = torch.randint(1 + self.flip, (1, len(self)), generator=generator, device="cpu")
        return torch.cat([offsets, mirrored])


class ItemSplit(Split):
    """Items that are read when they are needed, by this many worker processes.

    `read_one` gets an item, its index and the key of the epoch, and draws its random numbers from the last two only.
    """

    def __init__(self, items: Sequence[Any], read_one: ReadOne, normalization: Normalization, workers: int) -> None:
        self.items, self.read_one, self.normalization, self.workers = items, read_one, normalization, workers

    def __len__(self) -> int:
        return len(self.items)

    def read(self, batches: tuple[Tensor, ...], key: int | None) -> Iterator[Batch]:
        device = self.normalization.device
        loader = DataLoader(
            _Reader(self.read_one),
            sampler=([(self.items[i], i, key) for i in batch.tolist()] for batch in batches),
            batch_size=None,  # the reader gets all items of a batch, and no list of all items goes to a worker
            num_workers=self.workers,
            pin_memory=device.type == "cuda",
            generator=torch.Generator("cpu").manual_seed(0),  # the loader seeds its workers from it; they ignore that
        )
        for result in loader:
            if isinstance(result, Exception):
                raise result
            inputs, labels = result
            yield self.normalization(inputs), labels.to(device, non_blocking=True)


class _Reader(Dataset[Any]):
    """Read a batch of items; an error is returned, because one that is raised would carry the worker's traceback."""

    def __init__(self, read_one: ReadOne) -> None:
        self.read_one = read_one

    def __getitem__(self, items: list[tuple[Any, int, int | None]]) -> Batch | Exception:
        try:
            inputs, labels = zip(*(self.read_one(*item) for item in items), strict=True)
        except (OSError, ValueError) as error:
            return error
        return torch.stack(inputs), torch.tensor(labels)


def cropped(images: Tensor, pad: int, down: Tensor, right: Tensor, mirrored: Tensor) -> Tensor:
    """Pad each image with `pad` zeros, crop it to its size at (down, right), and mirror it if `mirrored` is not 0.

    >>> image = torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8).view(1, 1, 2, 2)
    >>> cropped(image, 1, torch.tensor([2]), torch.tensor([1]), torch.tensor([1])).tolist()
    [[[[4, 3], [0, 0]]]]
    """
    _, channels, height, width = images.shape
    rows = torch.arange(height, device=images.device) + down[:, None]
    columns = torch.arange(width, device=images.device)
    columns = torch.where(mirrored[:, None] > 0, width - 1 - columns, columns) + right[:, None]
    pixels = (rows * (width + 2 * pad))[:, :, None] + columns[:, None, :]  # indices into the padded image, row by row
    padded = F.pad(images, (pad, pad, pad, pad))
    return padded.flatten(2).gather(2, pixels.flatten(1)[:, None].expand(-1, channels, -1)).view_as(images)


class ScoringBatches:
    """Shuffled, augmented batches of equal size, which can be iterated any number of times.

    Each pass draws its epoch number from torch's global CPU generator, as a shuffling DataLoader does. `prune` seeds
    that generator for every pass, so each pass has new batches, and replaying a pass gives the same ones.
    """

    def __init__(self, split: Split, batch: int, seed: int) -> None:
        self.split, self.batch, self.seed = split, batch, seed

    def __len__(self) -> int:
        return len(self.split) // self.batch

    def __iter__(self) -> Iterator[Batch]:
        number = int(torch.randint(2**62, (), device="cpu"))
        return self.split.epoch(self.batch, self.seed, number, shuffle=True, augment=True, drop_last=True)


def statistics(split: Split) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each channel, with 255 as 1, from up to `MEASURED` images of bytes."""
    sums: Tensor | float = 0.0
    pixels = 0
    for images, _ in split.read(torch.arange(0, len(split), -(-len(split) // MEASURED)).split(256), None):
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
