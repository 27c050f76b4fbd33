"""A folder of images of the user's own: images:PATH, with train and test, each with one folder per class."""

from itertools import chain
from pathlib import Path

import torch

from ..imports import sized
from ..running import digest
from .dataset import Data, Request, in_memory
from .images import decoded, listed, open_rgb, require_pillow
from .split import Normalization, TensorSplit, statistics

PREFIX = "images:"
MOST = 16 * 2**30  # bytes of all images, which stay in memory


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
