"""Ranks: with several processes, the gradients are averaged over the ranks before anything is scored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch.distributed
from torch import Tensor, nn


def ranks(model: nn.Module) -> int:
    """Return how many processes share the work: the size of a DistributedDataParallel model's group, else 1."""
    group = _group(model)
    return 1 if group is None else group.size()


def mean_over_ranks(model: nn.Module, tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its mean over the ranks, in place. Every rank then holds the same numbers."""
    group = _group(model)
    for tensor in tensors:
        torch.distributed.all_reduce(tensor, group=group)
        tensor.div_(group.size())


def _group(model: Any) -> Any:
    """Return the process group of a DistributedDataParallel model, compiled or not; None for any other model."""
    while type(model).__name__ == "OptimizedModule":
        model = model._orig_mod
    return model.process_group if type(model).__name__ == "DistributedDataParallel" else None
