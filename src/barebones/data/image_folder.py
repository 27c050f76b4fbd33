"""A folder of images of the user's own: images:PATH, with train and test, each with one folder per class."""

from pathlib import Path

import torch

from ..running import digest
from .folder import listed
from .images import decoded, fitted, open_rgb, require_pillow
from .normalization import Normalization
from .split import Data, Request, statistics
from .tensors import TensorSplit

PREFIX = "images:"
MOST = 16 * 2**30  # bytes of all images, which stay in memory
CHUNK = 100  # files that a thread decodes at once


def load(name: str, request: Request) -> Data:
    """Load the folder that "images:PATH" or "images:PATH@SIZE" names, all its images as RGB bytes in memory.

    With a size, the middle of each image is cut out and resized to SIZE x SIZE pixels. Without one, all images must
    have the size of the first. Augmentation shifts each image by up to an eighth of its shorter side, and mirrors half
    of them.
    """
    root, size = parsed(name)
    size = size or request.size  # a network that wants a size gets it, whatever the sizes of the images
    require_pillow()
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {root}; name one with the folders train and test")
    parts = ["train", "test", *(["validation"] if (root / "validation").is_dir() else [])]
    if not (root / "test").is_dir() and (root / "val").is_dir():
        raise FileNotFoundError(f"{root / 'test'} is missing; rename {root / 'val'} if it is meant for testing")
    classes, files = listed(root, parts)
    if len(classes) < 2:
        raise ValueError(f"{root / 'train'} has one class, {classes[0]}; at least two folders of images are needed")
    width, height = (size, size) if size else open_rgb(files["train"][0][0]).size
    count = sum(len(paths) for paths, _ in files.values())
    if (needed := count * 3 * width * height) > MOST:
        raise ValueError(
            f"{root} has {count:,} images of {width} x {height} pixels, which need {needed / 2**30:.0f} GB of memory; "
            f"name a smaller size ({PREFIX}{root}@SIZE), or write a Dataset of your own"
        )
    change = (lambda image: fitted(image, size)) if size else (lambda image: image)
    hint = f"; to resize all images, name a size, for example {PREFIX}{root}@{min(width, height)}"
    pixels = {
        part: decoded(paths, (width, height), request.workers, CHUNK, change, hint)
        for part, (paths, _) in files.items()
    }
    labels = {part: torch.tensor(numbers) for part, (_, numbers) in files.items()}
    mean, std = statistics(TensorSplit(pixels["train"], labels["train"], Normalization((), ())))
    normalization, pad = request.normalization(mean, std), min(width, height) // 8
    splits = {part: TensorSplit(pixels[part], labels[part], normalization, pad) for part in parts}
    return Data(
        name,
        len(classes),
        request.shape(3, height, width),
        train=splits["train"],
        validation=splits.get("validation"),
        test=splits["test"],
        digest=digest.hexadecimal(tensor for part in parts for tensor in (pixels[part], labels[part])),
    )


def parsed(name: str) -> tuple[Path, int | None]:
    """Return the folder and the size that "images:PATH@SIZE" names; the size is None if there is none.

    >>> parsed("images:pets@64")[1], parsed("images:me@home")[1]
    (64, None)
    """
    path, _, size = name.removeprefix(PREFIX).rpartition("@")
    if not path or not size.isdecimal():
        path, size = name.removeprefix(PREFIX), ""
    if not path or (size and not int(size)):
        raise ValueError(f"{name} names no folder of images; write {PREFIX}PATH, or {PREFIX}PATH@SIZE (in pixels)")
    return Path(path).expanduser(), int(size) if size else None
