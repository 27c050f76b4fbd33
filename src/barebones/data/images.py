"""Images: files to pixels, with Pillow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".webp")
SCALE, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10  # of a random crop: its share of the area, width to height


def require_pillow() -> None:
    """Say at once, in one sentence, that Pillow is missing."""
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise ImportError("image files are read with Pillow: pip install 'barebones[data]'") from error


def opened(path: str | Path) -> Image.Image:
    """The image in RGB, whatever its mode; a file that is damaged or no image is a `ValueError` that names it."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            if "transparency" in image.info:  # a palette with see-through colours goes through RGBA, or Pillow warns
                return image.convert("RGBA").convert("RGB")
            return image.convert("RGB")
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing") from None
    except PermissionError:
        raise
    except Exception as error:  # broken files make Pillow's decoders raise nearly anything
        raise ValueError(f"{path} cannot be read as an image ({error})") from None


def stacked(images: Sequence[Image.Image]) -> Tensor:
    """RGB images of one size as uint8, N x 3 x H x W."""
    width, height = images[0].size
    pixels = torch.frombuffer(bytearray(b"".join(image.tobytes() for image in images)), dtype=torch.uint8)
    return pixels.view(len(images), height, width, 3).permute(0, 3, 1, 2)


def random_crop(image: Image.Image, size: int, random: Random) -> Image.Image:
    """A random box of 8 to 100 % of the area and 3:4 to 4:3, resized to `size` squared, mirrored half the time.

    Where ten boxes do not fit, the largest one in the middle that is within 3:4 to 4:3.
    """
    from PIL import Image

    width, height = image.size
    for _ in range(TRIES):
        area = width * height * random.uniform(*SCALE)
        ratio = math.exp(random.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        across, along = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < along <= height:
            left, top = random.randint(0, width - across), random.randint(0, height - along)
            break
    else:
        across, along = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
        left, top = (width - across) // 2, (height - along) // 2
    image = image.crop((left, top, left + across, top + along))
    image = image.resize((size, size), Image.Resampling.BILINEAR)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image


def centre_crop(image: Image.Image, size: int) -> Image.Image:
    """The shorter side resized to 8/7 of `size` (256 for 224), then the middle `size` squared."""
    from PIL import Image

    shorter = size * 8 // 7
    width, height = (shorter * side // min(image.size) for side in image.size)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.crop((left, top, left + size, top + size))
