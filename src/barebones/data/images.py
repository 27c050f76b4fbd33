"""Image files: finding them in folders of classes, reading them, and folders of the user's own (images:PATH)."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..imports import optional, sized
from ..running import digest
from .dataset import Data, Request, in_memory
from .split import Normalization, TensorSplit, statistics

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".webp")
CHUNK = 100  # files that a thread decodes at once
PREFIX = "images:"
MOST = 16 * 2**30  # bytes of all images of a folder, which stay in memory


def load(name: str, request: Request) -> Data:
    """Load the folder that "images:PATH" or "images:PATH@SIZE" names, all its images as RGB bytes in memory.

    With a size, the middle of each image is cut out and resized. Without one, all images must have the size of the
    first. Augmentation shifts each image by up to an eighth of its shorter side, and mirrors half of them.
    """
    path, size = sized(name)
    root = Path(path).expanduser()
    size = size or request.size  # a network that wants a size gets it, whatever the sizes of the images
    require_pillow()
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {root}; name one with the folders train and test")
    parts = ["train", "test", *(["validation"] if (root / "validation").is_dir() else [])]
    classes, files = listed(root, parts)
    if len(classes) < 2:
        raise ValueError(f"{root / 'train'} has one class, {classes[0]}; at least two folders of images are needed")
    width, height = (size, size) if size else open_rgb(files["train"][0][0]).size
    count = sum(len(paths) for paths, _ in files.values())
    if (needed := count * 3 * width * height) > MOST:
        problem = f"{count:,} images of {width} x {height} pixels, which need {needed / 2**30:.0f} GB of memory"
        raise ValueError(f"{root} has {problem}; name a smaller size ({PREFIX}{root}@SIZE), or use your own Dataset")
    hint = f"; to resize all images, name a size, for example {PREFIX}{root}@{min(width, height)}"
    read = {
        part: (decoded(paths, (width, height), request.workers, bool(size), hint), torch.tensor(labels))
        for part, (paths, labels) in files.items()
    }
    mean, std = statistics(TensorSplit(*read["train"], Normalization((), ())))
    content = digest.hexadecimal(chain.from_iterable(read.values()))
    normalization, pad = request.normalization(mean, std), min(width, height) // 8
    return in_memory(name, len(classes), read, normalization, pad, digest=content)


def require_pillow() -> None:
    optional("PIL", "reading image files needs Pillow", "data")


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

    # Pillow warns about damaged metadata, which is not used here
    with warnings.catch_warnings(action="ignore"), ThreadPoolExecutor(max(1, threads)) as pool:
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
