"""Tensor splits: images that stay on the training device as bytes, and are augmented and normalized there."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from .normalization import Normalization
from .split import Batch, Split

BLOCK = 1024  # images prepared at once, so that each batch needs only a few small kernels


class TensorSplit(Split):
    """Images (uint8, N x C x H x W) or other inputs with labels, both moved to the device of the normalization.

    Augmentation pads an image with `pad` black pixels on each side, crops it to its size at a random place, and
    mirrors half of the images. It runs as tensor operations on many images at once.
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

    def read(self, order: Tensor, batch: int, key: int | None) -> Iterator[Batch]:
        device = self.images.device
        draws = None if key is None or not (self.pad or self.flip) else self.draws(key).to(device)
        for block in order.to(device).split(max(1, BLOCK // batch) * batch):
            images = self.images[block]
            if draws is not None:
                images = cropped(images, self.pad, *draws[:, block])
            yield from zip(self.normalization(images).split(batch), self.labels[block].split(batch), strict=True)

    def draws(self, key: int) -> Tensor:
        """Draw 3 x N integers: each image's vertical and horizontal offset of the crop, and whether it is mirrored."""
        generator = torch.Generator("cpu").manual_seed(key)
        offsets = torch.randint(2 * self.pad + 1, (2, len(self)), generator=generator, device="cpu")
        mirrored = torch.randint(1 + self.flip, (1, len(self)), generator=generator, device="cpu")
        return torch.cat([offsets, mirrored])


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
