"""Masks: which weights of a model stay."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import register_pytree_node

from .messages import shape_of, shortened
from .running.shards import count, is_sharded, refuse_shards

LISTED = 12  # `str` lists the layers of masks that have at most this many

Scores = dict[str, Tensor]  # the keys and shapes of masks; a weight with a higher score is kept


class Masks(dict[str, Tensor]):
    """A dict from the names of parameters to bool tensors of their shapes, True for weights to keep.

    It prints as counts. `about` is what the file of loaded masks says about them. Wherever the library takes masks, a
    plain dict of such tensors will do.

    >>> masks = Masks({"a": torch.tensor([[True, False]]), "b": torch.tensor([True])})
    >>> masks
    Masks(2 layers, 2 of 3 weights kept)
    >>> print(masks)
    Masks(2 layers, 2 of 3 weights kept)
      a: 1×2, 1 of 2 kept
      b: 1, 1 of 1 kept
    """

    def __init__(self, *masks: Any, **named: Tensor) -> None:
        super().__init__(*masks, **named)
        self.about: dict[str, Any] = dict(masks[0].about) if masks and isinstance(masks[0], Masks) else {}

    def __repr__(self) -> str:
        layers = "1 layer" if len(self) == 1 else f"{len(self):,} layers"
        return f"Masks({layers}, {kept(self):,} of {size(self):,} weights kept)"

    def __str__(self) -> str:
        if len(self) > LISTED:
            return repr(self)
        rows = (f"  {n}: {shape_of(m)}, {count(m):,} of {m.numel():,} kept" for n, m in self.items())
        return "\n".join([repr(self), *rows])

    def copy(self) -> Masks:
        """Return other masks with the same tensors."""
        return Masks(self)

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Masks:
        return Masks({name: deepcopy(mask, memo) for name, mask in self.items()})

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as an `OrderedDict`, which `torch.load` reads with `weights_only=True` and without this library."""
        return OrderedDict, (), None, None, iter(self.items())


# torch's tree functions look into subclasses of dict only if they are registered
register_pytree_node(
    Masks,
    lambda masks: (list(masks.values()), list(masks)),
    lambda tensors, names: Masks(zip(names, tensors, strict=True)),
)


def row(masks: Sequence[Tensor]) -> Tensor:
    """Return masks as one flat tensor. Those that lie in a row in memory, as the ones of a round do, are not copied."""
    places = list(accumulate((mask.numel() for mask in masks), initial=masks[0].data_ptr()))  # a bool has one byte
    adjacent = all(mask.is_contiguous() and mask.data_ptr() == at for mask, at in zip(masks, places, strict=False))
    if adjacent and masks[0].untyped_storage().data_ptr() == masks[-1].untyped_storage().data_ptr():
        return masks[0].as_strided((places[-1] - places[0],), (1,))
    return torch.cat([mask.reshape(-1) for mask in masks])


def everything(weights: Mapping[str, Tensor]) -> Masks:
    return Masks({name: torch.ones(w.shape, dtype=torch.bool, device=w.device) for name, w in weights.items()})


def size(tensors: Mapping[str, Tensor]) -> int:
    return sum(t.numel() for t in tensors.values())


def kept(masks: Mapping[str, Tensor]) -> int:
    """Return the number of weights that the masks keep.

    >>> kept({"a": torch.tensor([True, False]), "b": torch.tensor([True])})
    2
    """
    return sum(count(m) for m in masks.values())


def empty(masks: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the layers that keep no weight.

    >>> empty({"a": torch.tensor([True, False]), "b": torch.tensor([False])})
    ['b']
    """
    return [name for name, mask in masks.items() if mask.numel() and not count(mask)]


def check_masks(masks: Mapping[str, Tensor]) -> None:
    if not isinstance(masks, Mapping) or any(getattr(m, "dtype", None) != torch.bool for m in masks.values()):
        raise ValueError("masks must be a dict from parameter names to bool tensors; pass result.masks")


@dataclass(frozen=True)
class Agreement:
    """How far two sets of masks keep the same weights, from 0.0 (none) to 1.0 (all)."""

    overall: float
    layers: dict[str, float]

    def __float__(self) -> float:
        return self.overall


def agreement(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Agreement:
    """Return the overlap of two sets of masks, 2 |a and b| / (|a| + |b|), overall and per layer.

    If both keep equally many weights, this is the share of these weights that both keep. Two empty masks agree.

    >>> float(agreement({"w": torch.tensor([True, True, False])}, {"w": torch.tensor([True, False, True])}))
    0.5
    """
    check_masks(a)
    check_masks(b)
    if a.keys() != b.keys() or any(a[name].shape != b[name].shape for name in a):
        differing = sorted(a.keys() ^ b.keys()) or [name for name in a if a[name].shape != b[name].shape]
        raise ValueError(f"the masks belong to two different models; they differ in {shortened(differing)}")
    if any(is_sharded(a[name]) != is_sharded(b[name]) for name in a):
        refuse_shards("masks", a, b)
    common = {name: count(a[name] & b[name].to(a[name].device)) for name in a}
    totals = {name: count(a[name]) + count(b[name]) for name in a}

    def overlap(common: int, total: int) -> float:
        return 2 * common / total if total else 1.0

    return Agreement(
        overlap(sum(common.values()), sum(totals.values())), {name: overlap(common[name], totals[name]) for name in a}
    )
