"""Images: reading and cropping image files with Pillow."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".webp")
SCALE, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10  # random crops: share of the area, width / height, attempts


def require_pillow() -> None:
    """Raise an error that names the extra if Pillow is not installed."""
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise ImportError("reading image files needs Pillow: pip install 'barebones[data]'") from error


def open_rgb(path: str | Path) -> Image.Image:
    """Read an image file of any mode as RGB; raise a `ValueError` that names the file if it cannot be decoded."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            if "transparency" in image.info:  # without the step through RGBA, Pillow warns
                return image.convert("RGBA").convert("RGB")
            return image.convert("RGB")
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing") from None
    except PermissionError:
        raise
    except Exception as error:  # Pillow's decoders raise many kinds of errors on damaged files
        raise ValueError(f"{path} cannot be read as an image ({error})") from None


def to_tensor(images: Sequence[Image.Image]) -> Tensor:
    """Stack RGB images of one size into a uint8 tensor, N x 3 x H x W."""
    width, height = images[0].size
    pixels = torch.frombuffer(bytearray(b"".join(image.tobytes() for image in images)), dtype=torch.uint8)
    return pixels.view(len(images), height, width, 3).permute(0, 3, 1, 2)


def decoded(
    paths: Sequence[str | Path],
    size: tuple[int, int],
    threads: int,
    chunk: int,
    change: Callable[[Image.Image], Image.Image] = lambda image: image,
    hint: str = "",
) -> Tensor:
    """Read image files of one size, width and height, into a uint8 tensor; a thread decodes `chunk` files at once.

    `change` is applied to each image before its size is checked; `hint` ends the error about another size.
    """

    def read(start: int) -> Tensor:
        images = []
        for path in paths[start : start + chunk]:
            image = change(open_rgb(path))
            if image.size != size:
                raise ValueError(f"{path} is {image.width} x {image.height} pixels, not {size[0]} x {size[1]}{hint}")
            images.append(image)
        return to_tensor(images)

    with warnings.catch_warnings(), ThreadPoolExecutor(max(1, threads)) as pool:
        warnings.simplefilter("ignore")  # Pillow warns about damaged metadata, which is not used here
        return torch.cat(list(pool.map(read, range(0, len(paths), chunk))))


def fitted(image: Image.Image, size: int) -> Image.Image:
    """Cut out the largest square in the middle, and resize it to `size` x `size`."""
    from PIL import Image, ImageOps

    return ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)


def random_crop(image: Image.Image, size: int, random: Random) -> Image.Image:
    """Crop a random box, resize it to `size` x `size`, and mirror it with probability 1/2.

    The box has 8 to 100 % of the area and an aspect ratio of 3:4 to 4:3. If ten random boxes do not fit into the
    image, the crop is the largest box of such a ratio in the middle.
    """
    from PIL import Image

    width, height = image.size
    for _ in range(TRIES):
        area = width * height * random.uniform(*SCALE)
        ratio = math.exp(random.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        crop_width, crop_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            left, top = random.randint(0, width - crop_width), random.randint(0, height - crop_height)
            break
    else:
        crop_width, crop_height = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
        left, top = (width - crop_width) // 2, (height - crop_height) // 2
    image = image.crop((left, top, left + crop_width, top + crop_height))
    image = image.resize((size, size), Image.Resampling.BILINEAR)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image


def centre_crop(image: Image.Image, size: int) -> Image.Image:
    """Resize the shorter side to 8/7 of `size` (256 for 224), then crop the middle `size` x `size` pixels."""
    from PIL import Image

    shorter = size * 8 // 7
    width, height = (shorter * side // min(image.size) for side in image.size)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.crop((left, top, left + size, top + size))
