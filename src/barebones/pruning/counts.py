"""Counts: what one round of pruning counted and measured, kept in tensors on the device until somebody reads it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..gpu import kernels
from ..masks import Masks, Scores
from ..words import shortened


class Counted(NamedTuple):
    """What one round counted, packed into three tensors. `pack` and `unpack` alone know their order."""

    integers: Tensor  # int64: pruned, recovered, recovered_empty, two digests, then the kept weights of each layer
    floats: Tensor  # float64: saliency, loss
    not_finite: Tensor  # bool: whether the loss, then the scores of each layer, held anything that is not finite

    @classmethod
    def pack(
        cls,
        changes: Tensor,
        weights_digest: Tensor,
        batches_digest: Tensor,
        saliency: Tensor,
        loss: Tensor,
        not_finite: Tensor,
    ) -> Counted:
        """Put the numbers of one round together; `changes` comes from the function of that name."""
        integers = torch.cat([changes[:3], torch.stack([weights_digest, batches_digest]), changes[3:]])
        return cls(integers, torch.stack([saliency, loss]), not_finite)

    def unpack(self) -> Numbers:
        """Read the numbers from the device."""
        pruned, recovered, recovered_empty, weights_digest, batches_digest, *layers = self.integers.tolist()
        saliency, loss = self.floats.tolist()
        return Numbers(pruned, recovered, recovered_empty, weights_digest, batches_digest, layers, saliency, loss)


class Numbers(NamedTuple):
    """The same as plain Python numbers."""

    pruned: int
    recovered: int
    recovered_empty: int
    weights_digest: int  # of the dense weights that were scored
    batches_digest: int  # of the batches that were read; 0 where there were none
    layers: list[int]  # kept weights of each layer
    saliency: float
    loss: float


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


def read(rounds: Sequence[Counted]) -> list[Counted]:
    """Copy what several rounds counted to the host, with one transfer for each of the three kinds of tensors."""
    kinds = [torch.stack(tensors).cpu() for tensors in zip(*rounds, strict=True)]
    return [Counted(*tensors) for tensors in zip(*kinds, strict=True)]


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
    layer_masks = list(after.values())
    if not transposed and kernels.available(layer_masks[0].device):
        flat_before = None if before is None else torch.cat([mask.reshape(-1) for mask in before.values()])
        flat_after = torch.cat([mask.reshape(-1) for mask in layer_masks])
        channels = kernels.channels(tuple(tuple(mask.shape) for mask in layer_masks), layer_masks[0].device)
        return kernels.tally(flat_before, flat_after, *channels)
    layers = torch.stack([mask.count_nonzero() for mask in layer_masks])
    kept_now = layers.sum()
    if before is None or not revives:  # nothing returns, so the difference was pruned
        zero = torch.zeros_like(kept_now)
        return torch.cat([torch.stack([kept_before - kept_now, zero, zero]), layers])
    stayed = torch.stack([(before[name] & mask).count_nonzero() for name, mask in after.items()]).sum()
    views = [
        (by_output(before[name], transposed.get(name)), by_output(mask, transposed.get(name)))
        for name, mask in after.items()
    ]
    recovered_empty = torch.stack([_kept_in_empty_channels(old, new) for old, new in views]).sum()
    return torch.cat([torch.stack([kept_before - stayed, kept_now - stayed, recovered_empty]), layers])


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
