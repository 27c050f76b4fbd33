"""Digits: 1,797 images of handwritten digits with 8x8 pixels, which are part of scikit-learn."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .normalization import Normalization
from .split import Data, Request, held_out
from .tensors import TensorSplit

WHITE = 16  # the brightest pixel
TEST = 0.2  # share of each class
MEAN, STD = (0.3057,), (0.3760,)  # of the pixels that are not in the test split, with white as 1


class Split(NamedTuple):
    """Images to train with and images to test with."""

    train_images: Tensor  # float32, N x 1 x 8 x 8; mean 0 and standard deviation 1 over the training set
    train_labels: Tensor  # int64, N
    test_images: Tensor
    test_labels: Tensor


def digits(test: float = TEST, device: torch.device | str = "cpu") -> Split:
    """The digits, split the same way every time: of each class the fraction `test` is held back, drawn at random."""
    images, labels, train, held = _split(test)
    images = images.float()
    mean, std = images[train].mean(), images[train].std()
    images = (images - mean) / std
    return Split(*(t.to(device) for t in (images[train], labels[train], images[held], labels[held])))


def load(request: Request) -> Data:
    """Load the digits; 20 % of each class are the test split, and 10 % of the rest are the validation split.

    The splits are always the same. The images are not augmented.
    """
    images, labels, train, test = _split(TEST)
    out = held_out(len(train))
    normalization = Normalization(MEAN, STD, WHITE, request.device, request.channels_last)
    parts = [
        TensorSplit(images[rows], labels[rows], normalization, pad=0, flip=False)
        for rows in (train[~out], train[out], test)
    ]
    return Data("digits", 10, 8, 1, *parts)


def _split(test: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return all images (uint8), all labels, and the indices of the training and of the test images."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("the data set digits needs scikit-learn: pip install 'barebones[demo]'") from error
    arrays = load_digits()
    images = torch.as_tensor(arrays.images, dtype=torch.uint8).unsqueeze(1)
    labels = torch.as_tensor(arrays.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    held = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        members = order[labels[order] == label]
        held[members[: round(test * len(members))]] = True
    return images, labels, order[~held[order]], order[held[order]]
