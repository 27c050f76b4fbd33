"""Thickness: output channels that keep few weights give them up to the other channels of their layer."""

from collections.abc import Mapping

import torch
from torch import Tensor

from .selection import comparable, top_masks


def thickened(score: Tensor, mask: Tensor, least: int, groups: int | None, among: Tensor | None = None) -> Tensor:
    """Return a mask of equally many weights, in channels that keep at least `least` weights or all that they have.

    The weaker half of the channels below the minimum, those with the fewest weights, gives up; its weights go to the
    highest scores of the channels that are left; and so on, until no channel is below. Channels that kept nothing
    stay empty. Where the others have no room for what a channel would give up, each keeps its best `least` weights
    first. Channels stay below where that is more than the layer's count, or where less is `among` the choice.
    `groups` is None unless the layer's inputs come first.

    >>> score = torch.tensor([[9.0, 1, 1, 1], [8, 7, 2, 1], [6, 1, 1, 1]])
    >>> thickened(score, score > 5, least=2, groups=None).int().tolist()
    [[0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]]
    """
    whole, keep = by_channels(mask, groups), int(mask.count_nonzero())
    least = min(least, whole.shape[1], keep)
    counts = whole.sum(1)
    if not ((counts > 0) & (counts < least)).any():
        return mask
    (values,) = comparable({"": by_channels(score, groups)})
    may = torch.ones_like(whole) if among is None else by_channels(among, groups)
    kept, values, live = whole, values.view(whole.shape), torch.arange(len(whole), device=mask.device)
    while True:
        stay = counts > 0
        kept, values, may, live, counts = kept[stay], values[stay], may[stay], live[stay], counts[stay]
        best = values.where(kept, -torch.inf).amax(1)
        order = best.argsort(stable=True)  # from the weakest: fewest weights first, then the lowest of the best scores
        order = order[counts[order].argsort(stable=True)]
        order = order[counts[order] < least]
        room = may.sum(1)[order].cumsum(0) <= may.sum() - keep  # the others can take what these give up
        gone = order[: min((order.numel() + 1) // 2, int(room.sum()))]
        if not gone.numel():
            break
        may[gone] = False
        kept = top_masks({"": values}, keep, among={"": may})[""]
        counts = kept.sum(1)
    sizes = may.sum(1)
    if order.numel() and int(sizes.clamp(max=least).sum()) <= keep:
        rows, free = ({str(i): row for i, row in enumerate(each)} for each in (values, may))
        kept = torch.stack(list(top_masks(rows, keep, None, free, least, sizes.tolist()).values()))
    result = torch.zeros_like(whole)
    result[live] = kept
    return from_channels(result, mask, groups)


def inner(parameters: Mapping[str, Tensor]) -> list[str]:
    """Return the names of all weights but those of the last layer, whose output channels are the network's."""
    return [name for name, parameter in parameters.items() if parameter.dim() > 1][:-1]


def by_channels(tensor: Tensor, groups: int | None) -> Tensor:
    """Return a matrix with a row for each output channel; `groups` is None unless the layer's inputs come first."""
    if groups is None:
        return tensor.reshape(tensor.shape[0] if tensor.dim() else 1, tensor.shape[1:].numel())
    split = tensor.reshape(groups, tensor.shape[0] // groups, tensor.shape[1], -1)
    return split.transpose(1, 2).reshape(groups * tensor.shape[1], -1)


def from_channels(rows: Tensor, like: Tensor, groups: int | None) -> Tensor:
    """Undo `by_channels`, for a tensor of the shape of `like`."""
    if groups is None:
        return rows.reshape(like.shape)
    split = rows.view(groups, like.shape[1], like.shape[0] // groups, -1)
    return split.transpose(1, 2).reshape(like.shape)
