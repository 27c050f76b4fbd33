"""Digits: 1,797 images of handwritten digits with 8x8 pixels, which are part of scikit-learn."""

import torch

from ..imports import optional
from .dataset import Data, Request, in_memory
from .split import held_out

WHITE = 16  # the brightest pixel
TEST = 0.2  # share of each class
MEAN, STD = (0.3057,), (0.3760,)  # of the pixels that are not in the test split, with white as 1


def load(request: Request) -> Data:
    """Load the digits: always the same 20 % of each class are for testing, and 10 % of the rest for validation."""
    arrays = optional("sklearn.datasets", "the data set digits needs scikit-learn", "demo").load_digits()
    images = torch.as_tensor(arrays.images, dtype=torch.uint8).unsqueeze(1)
    labels = torch.as_tensor(arrays.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    in_test = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        members = order[labels[order] == label]
        in_test[members[: round(TEST * len(members))]] = True
    rest, test = order[~in_test[order]], order[in_test[order]]
    held = held_out(len(rest))
    chosen = {"train": rest[~held], "validation": rest[held], "test": test}
    parts = {part: (images[indices], labels[indices]) for part, indices in chosen.items()}
    return in_memory("digits", 10, parts, request.normalization(MEAN, STD, WHITE), pad=0, flip=False)
