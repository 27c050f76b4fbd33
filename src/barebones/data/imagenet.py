"""ImageNet, from the folders train and val with one folder per class: crops of 224x224 pixels."""

from __future__ import annotations

import math
import warnings
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from torch import Tensor

from ..running import digest
from .dataset import Data, Request
from .images import listed, open_rgb, require_pillow, to_tensor
from .split import ItemSplit

if TYPE_CHECKING:
    from PIL import Image

SIZE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SCALE, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10  # random crops: share of the area, width / height, attempts


def load(request: Request) -> Data:
    """Load the data set: `train` for training, `val` for testing; classes are numbered in sorted order of folders.

    Augmentation takes a random crop of an image, resizes it, and mirrors half of the images. Without it, the crop is
    the middle of the image.
    """
    require_pillow()
    root = next((r for r in (request.root, request.root / "imagenet") if (r / "train").is_dir()), request.root)
    if not (root / "train").is_dir():
        hint = "; downloading it needs an account at image-net.org" if request.download else ""
        wanted = "the folders train and val there, each with one folder per class"
        raise FileNotFoundError(f"there is no ImageNet in {root}; put {wanted}{hint}")
    normalization = request.normalization(MEAN, STD)
    shape = normalization.shape(3, SIZE, SIZE)
    classes, files = listed(root, ("train", "val"))
    read_one = partial(_crop, size=shape[-1])
    train, test = (
        ItemSplit(list(zip(*files[part], strict=True)), read_one, normalization, request.workers)
        for part in ("train", "val")
    )
    return Data("imagenet", len(classes), shape, train=train, validation=None, test=test)


def _crop(item: tuple[str, int], index: int, key: int | None, size: int) -> tuple[Tensor, int]:
    path, label = item
    with warnings.catch_warnings(action="ignore"):  # Pillow warns about damaged metadata, which is not used here
        image = open_rgb(path)
    image = center_crop(image, size) if key is None else random_crop(image, size, Random(digest.text(key, index)))
    return to_tensor([image])[0], label


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


def center_crop(image: Image.Image, size: int) -> Image.Image:
    """Resize the shorter side to 8/7 of `size` (256 for 224), then crop the middle `size` x `size` pixels."""
    from PIL import Image

    shorter = size * 8 // 7
    width, height = (shorter * side // min(image.size) for side in image.size)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.crop((left, top, left + size, top + size))
