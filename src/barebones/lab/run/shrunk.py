"""Shrunk networks in the lab: which weights are worth training, and what shrinking removed."""

from contextlib import suppress
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from ...accounting import Account, account
from ...deploy.shrink import Shrunk, apply_cuts, find_cuts
from ...deploy.shrink.comparison import accepts
from ...masks import Masks, kept
from ...paths import effective, trace
from ...running.outputs import outputs
from ...scope import masked_copy


def to_train(model: nn.Module, masks: Masks, images: Tensor) -> Shrunk:
    """Shrink a network to the form that trains fastest: widths in multiples of 8, channels last in memory.

    How is found on the CPU if the network runs there. It takes thousands of small operations, and each would wait for a
    GPU on which other runs train.
    """
    there = deepcopy(model).cpu()
    if accepts(there, images):
        masks, images = Masks({name: mask.cpu() for name, mask in masks.items()}), images.cpu()
    else:
        there = model
    masks = useful(there, masks, images)
    small = apply_cuts(model, masks, find_cuts(there, masks, images, multiple_of=8, before_training=True))
    if next(small.module.parameters(), None) is None:
        raise ValueError("no signal passes through the network, so nothing is left to train; use a lower sparsity")
    return small


def useful(model: nn.Module, masks: Masks, images: Tensor) -> Masks:
    """Return masks of the weights on a path from input to output, if the network returns the same without the others.

    Shrinking fills up widths with channels that carry no signal. Weights in these would be trained, too, and the
    batch-norms of constant channels amplify rounding errors: in bf16, such a network may not train at all.
    """
    try:
        on_paths = effective(model, masks, images)
    except ValueError:
        return masks
    all_returned, returned = (_returned(masked_copy(model, each), images) for each in (masks, on_paths))
    return on_paths if kept(on_paths) and torch.equal(all_returned, returned) else masks


def places(small: Shrunk, images: Tensor) -> Masks | None:
    """Return where a weight is on a path, or would be: not in channels that fill up widths. None if that is unknown."""
    with suppress(ValueError):
        return trace(small.module, small.masks, images).places
    return None


def expanded(small: Shrunk, evolved: Masks, masks: Masks) -> tuple[nn.Module, Masks]:
    """Return the whole network and its masks after those of the small one moved: both prune what was removed."""
    whole = Masks({name: torch.zeros_like(mask) for name, mask in masks.items()} | small.expand_masks(evolved))
    return masked_copy(small.expand(), whole), whole


def counted(model: nn.Module, masks: Masks, example: Tensor) -> tuple[Account, str | None]:
    """Return the account of a network, without paths if they cannot be followed, and why they cannot."""
    try:
        return account(model, masks, example), None
    except ValueError as error:
        return account(model, masks), str(error)


def account_of(small: Shrunk, model: nn.Module, masks: Masks, example: Tensor) -> dict[str, Any]:
    """Return what shrinking did, for JSON: the sizes, and the fractions of FLOPs and of weights that are left."""
    dense, shrunk = account(model, masks, example).flops_dense, account(small.module, small.masks, example).flops_dense
    numbers = {"flops": (shrunk or 0) / dense if dense else 1.0, "weights": [kept(masks), kept(small.masks)]}
    return small.plan.to_dict() | numbers


def _returned(model: nn.Module, images: Tensor) -> Tensor:
    """Return what a network computes in eval mode and in train mode, with the same random numbers each time."""
    return torch.stack([outputs(model.train(train), images) for train in (False, True)])
