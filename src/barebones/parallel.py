"""Several processes: one mean of the gradients over the ranks, before anything is scored."""

from __future__ import annotations

from collections.abc import Iterable

import torch.distributed
from torch import Tensor, nn


def ranks(model: nn.Module) -> int:
    """How many processes share the work: those of a DistributedDataParallel model's group, else one."""
    return _group(model).size() if type(model).__name__ == "DistributedDataParallel" else 1


def mean_over_ranks(model: nn.Module, tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its mean over the ranks, in place; every rank then holds the same numbers."""
    group = _group(model)
    for tensor in tensors:
        torch.distributed.all_reduce(tensor, group=group)
        tensor.div_(group.size())


def _group(model: nn.Module) -> torch.distributed.ProcessGroup:
    return model.process_group  # type: ignore[return-value]
