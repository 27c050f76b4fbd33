"""Normalization: from bytes to floats of mean 0 and standard deviation 1, on the training device."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


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

    def __call__(self, images: Tensor) -> Tensor:
        images = images.to(self.device, non_blocking=True)  # moved before the conversion, while a pixel is one byte
        if images.dim() != 4 or not (self.normalizes or images.is_floating_point()):
            return images
        floats = images.to(torch.float32, memory_format=self.memory_format)
        if self.size and floats.shape[2:] != (self.size, self.size):
            floats = F.interpolate(floats, (self.size, self.size), mode="bilinear", antialias=True)
        return floats.sub_(self.mean).div_(self.std) if self.normalizes else floats
