"""Image files: finding them in folders of classes, and reading them with Pillow."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".webp")
CHUNK = 100  # files that a thread decodes at once


def require_pillow() -> None:
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
    paths: Sequence[str | Path], size: tuple[int, int], threads: int, fit: bool = False, hint: str = ""
) -> Tensor:
    """Read image files of this width and height into a uint8 tensor; with `fit`, others are cut and resized to it."""
    from PIL import Image, ImageOps

    def read(start: int) -> Tensor:
        images = []
        for path in paths[start : start + CHUNK]:
            image = open_rgb(path)
            if fit:
                image = ImageOps.fit(image, size, Image.Resampling.BILINEAR)
            if image.size != size:
                raise ValueError(f"{path} is {image.width} x {image.height} pixels, not {size[0]} x {size[1]}{hint}")
            images.append(image)
        return to_tensor(images)

    with warnings.catch_warnings(), ThreadPoolExecutor(max(1, threads)) as pool:
        warnings.simplefilter("ignore")  # Pillow warns about damaged metadata, which is not used here
        return torch.cat(list(pool.map(read, range(0, len(paths), CHUNK))))


def listed(root: Path, parts: Sequence[str]) -> tuple[list[str], dict[str, tuple[list[str], list[int]]]]:
    """Return the classes of a folder, in sorted order, and the files and labels of each of its parts."""
    classes, files = _classes(root / parts[0]), {}
    for part in parts:
        if odd := set(_classes(root / part)) ^ set(classes):
            both = f"{root}/{parts[0]} and {root}/{part}"
            raise ValueError(f"{both} must have folders of the same names, but only one has {min(odd)}")
        images = [_images(root / part / name) for name in classes]
        labels = [label for label, paths in enumerate(images) for _ in paths]
        files[part] = [path for paths in images for path in paths], labels
    return classes, files


def _classes(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is missing; create it, with one folder of images per class")
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not names:
        raise ValueError(f"{folder} contains no folders; put each image into a folder of its class")
    return names


def _images(folder: Path) -> list[str]:
    names = [name for name in os.listdir(folder) if name.lower().endswith(SUFFIXES) and not name.startswith(".")]
    if not names:
        raise ValueError(f"{folder} contains no images")
    return sorted(f"{folder}/{name}" for name in names)
