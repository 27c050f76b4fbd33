"""Round statistics: what one round of pruning counts, as tensors that stay on the device until somebody reads them."""

import functools
import math
from collections.abc import Iterable

import torch
from torch import Tensor

from ..masks import Masks, Scores, row
from ..messages import shortened


def not_finite(scores: Scores, loss: Tensor) -> Tensor:
    """Return one bool vector: the flag of the loss, then for each layer whether any score is not finite."""
    values = list(scores.values())
    if loss.device.type == "cuda" and all(v.dtype == torch.float32 for v in values):  # a few launches for all layers
        return torch.cat([loss.view(1), ~torch.stack(torch._foreach_norm(values, math.inf)).isfinite()])
    return torch.stack([loss, *(_any_not_finite(score) for score in values)])


def _any_not_finite(score: Tensor) -> Tensor:
    if score.device.type == "cpu" and score.is_floating_point() and score.sum().isfinite():
        return torch.zeros((), dtype=torch.bool, device="cpu")  # the cheap way; a sum may overflow where no score does
    return ~score.isfinite().all()


def check_finite(not_finite: Tensor, layers: Iterable[str], index: int) -> None:
    """Raise a `FloatingPointError` if the loss or any score of round `index` was not finite. This waits for the GPU."""
    loss, *flags = not_finite.tolist()
    wrong = [name for name, flag in zip(layers, flags, strict=True) if flag]
    if not loss and not wrong:
        return
    subjects = ["the loss"] * loss + [f"the scores of {shortened(wrong)}"] * bool(wrong)
    verb = "are" if wrong else "is"
    raise FloatingPointError(
        f"round {index + 1}: {' and '.join(subjects)} {verb} not finite; "
        "check the data and the weights, or use a higher precision"
    )


def changes(before: Masks | None, after: Masks, kept_before: int, revives: bool, transposed: dict[str, int]) -> Tensor:
    """Count pruned weights, recovered ones, those recovered into empty channels, and the kept weights of each layer.

    `before` is None where every weight was kept. `transposed` holds the layers whose inputs come first, and their
    groups. Returns one int64 vector on the masks' device.
    """
    masks = list(after.values())
    in_a_row = masks[0].is_cuda and not transposed and all(mask.numel() for mask in masks)
    if in_a_row:  # running counts over all layers: a few launches, where sums by layer would need hundreds
        channels, ends = _last_indices(tuple(mask.shape for mask in masks), masks[0].device)
        now = _between(row(masks), channels)
        layers = _between(now, ends)
    else:
        layers = torch.stack([mask.count_nonzero() for mask in masks])
    kept_now = layers.sum()
    if before is None or not revives:  # nothing returns, so the difference was pruned
        stayed, recovered_empty = kept_now, torch.zeros_like(kept_now)
    elif in_a_row:
        stayed = (row(masks) & row(list(before.values()))).sum()
        recovered_empty = now.masked_fill(_between(row(list(before.values())), channels) > 0, 0).sum()
    else:
        stayed = torch.stack([(before[name] & mask).count_nonzero() for name, mask in after.items()]).sum()
        views = [[by_output(masks[name], transposed.get(name)) for masks in (before, after)] for name in after]
        recovered_empty = torch.stack([_kept_in_empty_channels(*pair) for pair in views]).sum()
    return torch.cat([torch.stack([kept_before - stayed, kept_now - stayed, recovered_empty]), layers])


@functools.lru_cache(maxsize=8)
def _last_indices(shapes: tuple[torch.Size, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the last weight of each output channel, of all weights in a row, and the last channel of each layer."""
    rows = torch.tensor([shape[0] if shape else 1 for shape in shapes], device="cpu")
    lengths = torch.tensor([math.prod(shape[1:]) for shape in shapes], device="cpu").repeat_interleave(rows)
    return lengths.cumsum(0).sub(1).to(device), rows.cumsum(0).sub(1).to(device)


def _between(values: Tensor, lasts: Tensor) -> Tensor:
    """Return the sum of the values up to each of these indices, from the one before on."""
    return values.cumsum(0, dtype=torch.int32)[lasts].diff(prepend=torch.zeros_like(lasts[:1], dtype=torch.int32))


def by_output(mask: Tensor, groups: int | None) -> Tensor:
    """View a mask as (groups, inputs, outputs, rest). `groups` is None unless the layer's inputs come first."""
    first, *rest = mask.shape or (1,)
    if groups is None:
        return mask.reshape(1, 1, first, math.prod(rest))
    return mask.reshape(groups, first // groups, rest[0], math.prod(rest[1:]))


def _kept_in_empty_channels(before: Tensor, after: Tensor) -> Tensor:
    """Count the weights kept now in output channels that kept none before; both masks are views of `by_output`."""
    if before.numel() == 0:
        return before.count_nonzero()
    used = before.view(torch.uint8).amax((1, 3), keepdim=True).bool()
    if after.shape[:2] == (1, 1) and after.device.type == "cpu":
        return after[0, 0, ~used.view(-1)].count_nonzero()
    return (after & ~used).count_nonzero()  # indexing with a mask would wait for the GPU
