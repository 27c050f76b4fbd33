"""Masks: which weights stay. A dict from a parameter's name to a bool tensor of its shape; True keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Masks = dict[str, Tensor]  # bool; True = keep
Scores = dict[str, Tensor]  # same keys and shapes; higher = keep, always


def everything(weights: Mapping[str, Tensor]) -> Masks:
    """The masks that keep every weight."""
    return {name: torch.ones(w.shape, dtype=torch.bool, device=w.device) for name, w in weights.items()}


def size(tensors: Mapping[str, Tensor]) -> int:
    """How many elements there are in all."""
    return sum(t.numel() for t in tensors.values())


def kept(masks: Mapping[str, Tensor]) -> int:
    """How many weights the masks keep.

    >>> kept({"a": torch.tensor([True, False]), "b": torch.tensor([True])})
    2
    """
    return sum(int(m.count_nonzero()) for m in masks.values())


def copied(masks: Masks) -> Masks:
    """The same masks in memory of their own."""
    if all(m.device.type == "cuda" for m in masks.values()):  # one launch, not one for each
        flat = torch.cat([m.reshape(-1) for m in masks.values()])
        parts = flat.split([m.numel() for m in masks.values()])
        return {name: part.view(m.shape) for (name, m), part in zip(masks.items(), parts, strict=True)}
    return {name: mask.clone() for name, mask in masks.items()}


@dataclass(frozen=True)
class Agreement:
    """How far two sets of masks keep the same weights: 1.0 is all, 0.0 is none."""

    overall: float
    layers: dict[str, float]

    def __float__(self) -> float:
        return self.overall


def agreement(a: Masks, b: Masks) -> Agreement:
    """The overlap of two masks, 2 |a and b| / (|a| + |b|), in all and per layer.

    Where both keep equally many weights this is the share of them that both keep; two empty masks agree.

    >>> float(agreement({"w": torch.tensor([True, True, False])}, {"w": torch.tensor([True, False, True])}))
    0.5
    """
    for masks in (a, b):
        if not isinstance(masks, Mapping) or any(m.dtype != torch.bool for m in masks.values()):
            raise ValueError("masks is a dict from names to bool tensors; pass result.masks")
    if a.keys() != b.keys() or any(a[name].shape != b[name].shape for name in a):
        differing = sorted(a.keys() ^ b.keys()) or [name for name in a if a[name].shape != b[name].shape]
        raise ValueError(f"the masks are of two different models; they differ in {', '.join(differing[:5])}")
    both = {name: int((a[name] & b[name].to(a[name].device)).count_nonzero()) for name in a}
    sizes = {name: int(a[name].count_nonzero()) + int(b[name].count_nonzero()) for name in a}

    def overlap(common: int, total: int) -> float:
        return 2 * common / total if total else 1.0

    return Agreement(
        overlap(sum(both.values()), sum(sizes.values())),
        {name: overlap(both[name], sizes[name]) for name in a},
    )
