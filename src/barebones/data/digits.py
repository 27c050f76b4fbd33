"""Digits: 1,797 handwritten ones of 8x8 pixels, which come with scikit-learn."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Split(NamedTuple):
    """Images to train with and images to test with."""

    train_images: Tensor  # float32, N x 1 x 8 x 8; mean 0 and standard deviation 1 over the training set
    train_labels: Tensor  # int64, N
    test_images: Tensor
    test_labels: Tensor


def digits(test: float = 0.2, device: torch.device | str = "cpu") -> Split:
    """The digits, split the same way every time: of each class the fraction `test` is held back, drawn at random."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("the digits come with scikit-learn: pip install 'barebones[demo]'") from error
    arrays = load_digits()
    images = torch.as_tensor(arrays.images, dtype=torch.float32).unsqueeze(1)
    labels = torch.as_tensor(arrays.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    held = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        members = order[labels[order] == label]
        held[members[: round(test * len(members))]] = True
    mean, std = images[~held].mean(), images[~held].std()
    images = (images - mean) / std
    train, test_set = order[~held[order]], order[held[order]]
    return Split(*(t.to(device) for t in (images[train], labels[train], images[test_set], labels[test_set])))
