"""Ranks: with several processes, the gradients are averaged over the ranks before anything is scored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch.distributed
from torch import Tensor, nn

from ..running.modes import by_kind


def ranks(model: nn.Module) -> int:
    """Return how many processes share the work: the size of a DistributedDataParallel model's group, else 1."""
    group = _group(model)
    return 1 if group is None else group.size()


def mean_over_ranks(model: nn.Module, tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its mean over the ranks, in place, with one sum of all tensors of a kind.

    Every rank then holds the same numbers.
    """
    group = _group(model)
    for alike in by_kind(tensors):
        row = torch.cat([tensor.reshape(-1) for tensor in alike])
        torch.distributed.all_reduce(row, group=group)
        parts = row.div_(group.size()).split([tensor.numel() for tensor in alike])
        for tensor, part in zip(alike, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))


def _group(model: Any) -> Any:
    """Return the process group of a DistributedDataParallel model, compiled or not; None for any other model."""
    while type(model).__name__ == "OptimizedModule":
        model = model._orig_mod
    return model.process_group if type(model).__name__ == "DistributedDataParallel" else None
