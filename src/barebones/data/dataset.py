"""What is loaded: a data set with its splits, and what a loader and a network have to know about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .split import Normalization, Split, TensorSplit


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


def in_memory(
    name: str,
    classes: int,
    parts: Mapping[str, tuple[Tensor, Tensor]],
    normalization: Normalization,
    pad: int = 4,
    flip: bool = True,
    digest: str = "",
) -> Data:
    """Return a data set of images, as bytes, and labels: those of train and test, and perhaps of validation."""
    splits = {part: TensorSplit(*pair, normalization, pad, flip) for part, pair in parts.items()}
    shape = normalization.shape(*splits["train"].images.shape[1:])
    return Data(name, classes, shape, splits["train"], splits.get("validation"), splits["test"], digest=digest)
