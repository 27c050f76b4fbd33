"""A round: what one step of pruning leaves, and the file from which the next can continue."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from ..files import container as files
from ..files import masks as maskfile
from ..masks import Masks

FORMAT, VERSION = "barebones-round", 1


@dataclass(frozen=True)
class Record:
    """The numbers of one round."""

    index: int
    keep: int  # weights kept after it
    pruned: int  # kept before, not after
    recovered: int  # kept after, not before
    recovered_empty: int  # of these, the ones in output channels that were wholly empty
    saliency: float  # S(theta, c) of eq. 6 at the masks it began with; nan where the criterion takes no gradient
    loss: float  # at the same masks
    seconds: float
    layers: dict[str, int]  # kept weights in each layer


@dataclass(frozen=True, eq=False)
class Round:
    """What a round leaves: the masks, which it owns, and its numbers, which stay on the device until read."""

    index: int
    keep: int
    masks: Masks
    seconds: float
    plan: dict[str, Any] = field(repr=False)  # what the run was asked to do; to continue, it must be asked the same
    counts: Tensor = field(repr=False)  # int64: pruned, recovered, recovered_empty, two digests, kept in each layer
    measures: Tensor = field(repr=False)  # float64: saliency, loss
    bad: Tensor | None = field(default=None, repr=False)  # bool: whether the loss, then each layer, was not finite

    def check(self) -> None:
        """Raise a `FloatingPointError` if anything it computed with was not finite; an accelerator is waited for."""
        if self.bad is None or not any(flags := self.bad.tolist()):
            return
        loss, *layers = flags
        where = [name for name, flag in zip(self.masks, layers, strict=True) if flag]
        what = " and ".join(["the loss"] * loss + ["the scores"] * bool(where))
        at = f" of {', '.join(where[:5])}{f' and {len(where) - 5} more' if len(where) > 5 else ''}" if where else ""
        verb, advice = "are" if where else "is", "check the data and the weights, or use a higher precision"
        raise FloatingPointError(f"round {self.index}: {what}{at} {verb} not finite; {advice}")

    @cached_property
    def record(self) -> Record:
        """The numbers, read from the device once; a `FloatingPointError` if they are not finite."""
        self.check()
        pruned, recovered, recovered_empty, _, _, *kept = self.counts.tolist()
        saliency, loss = self.measures.tolist()
        layers = dict(zip(self.masks, kept, strict=True))
        return Record(self.index, self.keep, pruned, recovered, recovered_empty, saliency, loss, self.seconds, layers)

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
        """Of the dense weights that it scored."""
        return int(self.counts[3])

    @property
    def batches_digest(self) -> int:
        """Of the batches that it read; 0 where it read none."""
        return int(self.counts[4])

    def save(self, path: str | PathLike[str]) -> None:
        """Write it, atomically, as a safetensors file from which `rounds` can continue."""
        self.check()
        tensors, layout = maskfile.pack(self.masks)
        about = {
            "index": self.index,
            "keep": self.keep,
            "seconds": self.seconds,
            "plan": self.plan,
            "layout": layout,
            "counts": self.counts.tolist(),
            "measures": [value.hex() for value in self.measures.tolist()],
        }
        files.write(path, tensors, FORMAT, VERSION, about)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Round:
        """Read a file that `save` wrote."""
        tensors, about = files.read(path, FORMAT, VERSION)
        return cls(
            index=about["index"],
            keep=about["keep"],
            masks=maskfile.unpack(tensors, about["layout"]),
            seconds=about["seconds"],
            plan=about["plan"],
            counts=torch.tensor(about["counts"], dtype=torch.int64, device="cpu"),
            measures=torch.tensor([*map(float.fromhex, about["measures"])], dtype=torch.float64, device="cpu"),
        )
