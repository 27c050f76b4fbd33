"""A round: the masks that one step of pruning leaves, what it counts, and the file from which the next can continue."""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from ..files import container as files
from ..files.masks import pack, unpack
from ..masks import Masks, Scores, row
from ..messages import shortened
from ..running.shards import by_one
from .processes import Shards

FORMAT, VERSION = "barebones-round", 1


@dataclass(frozen=True)
class Record:
    """The numbers of one round."""

    index: int  # of the round, from 0; texts and files count rounds from 1
    keep: int  # weights kept after the round
    pruned: int  # kept before the round, not after it
    recovered: int  # kept after the round, not before it
    recovered_empty: int  # the recovered weights in output channels that kept no weight before
    saliency: float  # S(theta, c) of eq. 6 at the masks the round began with; nan if the criterion takes no gradient
    loss: float  # at the same masks
    seconds: float
    layers: dict[str, int] = field(repr=False)  # kept weights of each layer


@dataclass(frozen=True, eq=False)
class Round:
    """What one round leaves: the masks, which belong to it, and its numbers, which stay on the device until read."""

    index: int
    keep: int
    masks: Masks = field(repr=False)
    seconds: float = field(repr=False)
    plan: dict[str, Any] = field(repr=False)  # the settings of the run; a run that continues must have the same
    integers: Tensor = field(repr=False)  # pruned, recovered, recovered_empty, two digests, the kept of each layer
    floats: Tensor = field(repr=False)  # float64: saliency, loss
    not_finite: Tensor = field(repr=False)  # of the loss, then of the scores of each layer: whether any is not finite

    def check(self) -> None:
        """Raise a `FloatingPointError` if the loss or a score was not finite. This waits for the device."""
        loss, *flags = self.not_finite.tolist()
        wrong = [name for name, flag in zip(self.masks, flags, strict=True) if flag]
        subjects = ["the loss"] * loss + [f"the scores of {shortened(wrong)}"] * bool(wrong)
        if subjects:
            what = f"{' and '.join(subjects)} {'are' if wrong else 'is'} not finite"
            raise FloatingPointError(f"round {self.index + 1}: {what}; check the data, the weights and the precision")

    @cached_property
    def record(self) -> Record:
        """The numbers, read from the device once; a `FloatingPointError` if the loss or a score was not finite."""
        self.check()
        pruned, recovered, recovered_empty, _, _, *layers = self.integers.tolist()
        saliency, loss = self.floats.tolist()
        return Record(
            self.index, self.keep, pruned, recovered, recovered_empty, saliency, loss, self.seconds,
            layers=dict(zip(self.masks, layers, strict=True)),
        )  # fmt: skip

    @property
    def pruned(self) -> int:
        return self.record.pruned

    @property
    def recovered(self) -> int:
        return self.record.recovered

    @property
    def recovered_empty(self) -> int:
        return self.record.recovered_empty

    @property
    def saliency(self) -> float:
        return self.record.saliency

    @property
    def loss(self) -> float:
        return self.record.loss

    @property
    def weights_digest(self) -> int:
        """The digest of the dense weights that were scored."""
        return int(self.integers[3])

    @property
    def batches_digest(self) -> int:
        """The digest of the batches that were read; 0 if the criterion reads none."""
        return int(self.integers[4])

    def with_own_masks(self) -> "Round":
        """Copy the masks, so that whoever gets the round cannot change the run."""
        return replace(self, masks=Masks({name: mask.clone() for name, mask in self.masks.items()}))

    def without_masks(self) -> "Round":
        """Return the round with its numbers alone: the names of the layers stay, their masks are None."""
        return replace(self, masks=dict.fromkeys(self.masks))  # type: ignore[arg-type]

    def save(self, path: str | PathLike[str], **about: Any) -> None:
        """Write the round and further values for JSON, atomically, as a file from which `rounds` can continue."""
        self.check()
        tensors, layout = pack(self.masks)
        numbers = {
            "index": self.index,
            "keep": self.keep,
            "seconds": self.seconds,
            "plan": self.plan,
            "layout": layout,
            "counts": self.integers.tolist(),
            "measures": [value.hex() for value in self.floats.tolist()],
        }
        by_one(self.masks.values(), lambda: files.write(path, tensors, FORMAT, VERSION, about | numbers))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "Round":
        """Read a file that `save` wrote."""
        tensors, about = files.read(path, FORMAT, VERSION)
        integers = torch.tensor(about["counts"], dtype=torch.int64, device="cpu")
        floats = torch.tensor([*map(float.fromhex, about["measures"])], dtype=torch.float64, device="cpu")
        masks = unpack(tensors, about["layout"], path)
        flags = torch.zeros(1 + len(masks), dtype=torch.bool, device="cpu")  # `save` refuses other rounds
        return cls(about["index"], about["keep"], masks, about["seconds"], about["plan"], integers, floats, flags)


# What a round counts, as tensors that stay on the device until somebody reads them.


def not_finite(scores: Scores, loss: Tensor, shards: Shards | None) -> Tensor:
    """Return one bool vector: the flag of the loss, then for each layer whether any score is not finite."""
    values = list(scores.values())
    if loss.device.type == "cuda" and all(v.dtype == torch.float32 for v in values):  # a few launches for all layers
        flags = torch.cat([loss.view(1), ~torch.stack(torch._foreach_norm(values, math.inf)).isfinite()])
    else:
        flags = torch.stack([loss, *map(_any_not_finite, values)])
    return flags if shards is None else shards.any_rank(flags)


def _any_not_finite(score: Tensor) -> Tensor:
    if score.device.type == "cpu" and score.is_floating_point() and score.sum().isfinite():
        return torch.zeros((), dtype=torch.bool, device="cpu")  # the cheap way; a sum may overflow where no score does
    return ~score.isfinite().all()


def changes(
    before: Masks | None, after: Masks, kept_before: int, transposed: dict[str, int], shards: Shards | None
) -> Tensor:
    """Count pruned weights, recovered ones, those recovered into empty channels, and the kept weights of each layer.

    `before` is None where no weight can return. The result is one int64 vector on the masks' device.
    """
    masks = list(after.values())
    in_a_row = masks[0].is_cuda and not transposed and shards is None and all(mask.numel() for mask in masks)
    if in_a_row:  # running counts over all layers: a few launches, where sums by layer would need hundreds
        channels, ends = _last_indices(tuple(mask.shape for mask in masks), masks[0].device)
        now = _between(row(masks), channels)
        layers = _between(now, ends)
    else:
        layers = summed([mask.count_nonzero() for mask in masks], shards)
    kept_now = layers.sum()
    if before is None:  # the difference was pruned
        stayed, recovered_empty = kept_now, torch.zeros_like(kept_now)
    elif in_a_row:
        was = row(list(before.values()))
        stayed = (row(masks) & was).sum()
        recovered_empty = now.masked_fill(_between(was, channels) > 0, 0).sum()
    else:
        stayed = summed([(before[name] & mask).count_nonzero() for name, mask in after.items()], shards).sum()
        returned = [_in_empty_channels(before[n], mask, transposed.get(n), shards) for n, mask in after.items()]
        recovered_empty = summed(returned, shards).sum()
    return torch.cat([torch.stack([kept_before - stayed, kept_now - stayed, recovered_empty]), layers])


def summed(counts: list[Tensor], shards: Shards | None) -> Tensor:
    return torch.stack(counts) if shards is None else shards.sums(torch.stack(counts))


@lru_cache(maxsize=8)
def _last_indices(shapes: tuple[torch.Size, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the last weight of each output channel, of all weights in a row, and the last channel of each layer."""
    rows = torch.tensor([shape[0] if shape else 1 for shape in shapes], device="cpu")
    lengths = torch.tensor([math.prod(shape[1:]) for shape in shapes], device="cpu").repeat_interleave(rows)
    return lengths.cumsum(0).sub(1).to(device), rows.cumsum(0).sub(1).to(device)


def _between(values: Tensor, lasts: Tensor) -> Tensor:
    """Return the sum of the values up to each of these indices, from the one before on."""
    return values.cumsum(0, dtype=torch.int32)[lasts].diff(prepend=torch.zeros_like(lasts[:1], dtype=torch.int32))


def _in_empty_channels(before: Tensor, after: Tensor, groups: int | None, shards: Shards | None) -> Tensor:
    used = used_channels(before, groups, shards)
    if after.device.type == "cpu" and groups is None and after.dim():
        return after[~used].count_nonzero()  # elsewhere, indexing with a mask would wait for the device
    return (after & ~by_channel(used, after, groups)).count_nonzero()


def used_channels(mask: Tensor, groups: int | None, shards: Shards | None = None) -> Tensor:
    """Return for each output channel whether it keeps a weight; `groups` is None unless the layer's inputs come first.

    Of a sharded layer, `mask` has the rows of this process. Where these are inputs, all processes are asked.
    """
    first, *rest = mask.shape or (1,)
    if groups is None:
        view = mask.reshape(1, 1, first, math.prod(rest))
    else:
        view = mask.reshape(groups, first // groups, rest[0], math.prod(rest[1:]))
    most = view.view(torch.uint8).amax if mask.numel() else view.sum  # the largest value of nothing is an error
    used = most((1, 3)).view(-1).bool()
    return used if shards is None or groups is None else shards.any_rank(used)


def by_channel(values: Tensor, mask: Tensor, groups: int | None) -> Tensor:
    """View one value for each output channel in a shape that broadcasts with the layer's mask."""
    dims = 1 if groups is None else 2  # up to that of the outputs
    if groups is not None:
        values = values.view(groups, -1).repeat_interleave(len(mask) // groups, 0)
    return values.view([*mask.shape[:dims], *[1] * (mask.dim() - dims)])
