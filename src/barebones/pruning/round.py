"""A round: the masks and numbers that one step of pruning leaves, and the file from which the next one can continue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from ..files import container as files
from ..files.encoding import pack, unpack
from ..masks import Masks, copied
from ..running.shards import by_one
from .round_stats import check_finite

FORMAT, VERSION = "barebones-round", 1


@dataclass(frozen=True, repr=False)
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
    layers: dict[str, int]  # kept weights of each layer

    def __repr__(self) -> str:
        return (
            f"Record(round {self.index + 1}: keep {self.keep:,}, pruned {self.pruned:,}, recovered {self.recovered:,}, "
            f"saliency {self.saliency:.4g}, loss {self.loss:.4g})"
        )


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
        check_finite(self.not_finite, self.masks, self.index)

    @property
    def finite(self) -> bool:
        """Whether the loss and all scores were finite."""
        return not bool(self.not_finite.any())

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

    def with_own_masks(self) -> Round:
        """Return the round with copies of its masks, so that whoever gets it cannot change the run."""
        return replace(self, masks=copied(self.masks))

    def without_masks(self) -> Round:
        """Return the round with its numbers alone: the names of the layers stay, their masks are None."""
        return replace(self, masks=dict.fromkeys(self.masks))  # type: ignore[arg-type]

    def save(self, path: str | PathLike[str], **about: Any) -> None:
        """Write the round, atomically, as a safetensors file from which `rounds` can continue.

        `about` takes further values that JSON can represent.
        """
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
    def load(cls, path: str | PathLike[str]) -> Round:
        """Read a file that `save` wrote."""
        tensors, about = files.read(path, FORMAT, VERSION)
        integers = torch.tensor(about["counts"], dtype=torch.int64, device="cpu")
        floats = torch.tensor([*map(float.fromhex, about["measures"])], dtype=torch.float64, device="cpu")
        masks = unpack(tensors, about["layout"])
        flags = torch.zeros(1 + len(masks), dtype=torch.bool, device="cpu")  # `save` refuses other rounds
        return cls(
            about["index"], about["keep"], masks, about["seconds"], about["plan"], integers, floats, flags
        )  # fmt: skip


def on_host(rounds: Sequence[Round]) -> list[Round]:
    """Return rounds whose numbers were copied to the host, with three transfers for all of them."""
    rows = [(each.integers, each.floats, each.not_finite) for each in rounds]
    numbers = zip(*(torch.stack(column).cpu() for column in zip(*rows, strict=True)), strict=True)
    return [
        replace(each, integers=integers, floats=floats, not_finite=flags)
        for each, (integers, floats, flags) in zip(rounds, numbers, strict=True)
    ]
