"""Several processes: one mean of the gradients over the ranks, before anything is scored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch.distributed
from torch import Tensor, nn


def ranks(model: nn.Module) -> int:
    """How many processes share the work: those of a DistributedDataParallel model's group, else one."""
    group = _group(model)
    return 1 if group is None else group.size()


def mean_over_ranks(model: nn.Module, tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its mean over the ranks, in place; every rank then holds the same numbers."""
    group = _group(model)
    for tensor in tensors:
        torch.distributed.all_reduce(tensor, group=group)
        tensor.div_(group.size())


def _group(model: Any) -> Any:
    """The process group of a DistributedDataParallel model, compiled or not; None of any other."""
    while type(model).__name__ == "OptimizedModule":
        model = model._orig_mod
    return model.process_group if type(model).__name__ == "DistributedDataParallel" else None
