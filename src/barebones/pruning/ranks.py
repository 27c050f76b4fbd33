"""Ranks: with several processes, the gradients are summed over the ranks before anything is scored."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch.distributed
from torch import Tensor, nn

from ..running import digest
from ..running.modes import by_kind
from ..scope import bare


def place(model: nn.Module) -> tuple[int, int]:
    """Return the rank of this process and the number of ranks in a DistributedDataParallel model's group; else 0, 1."""
    group = _group(model)
    return (0, 1) if group is None else (group.rank(), group.size())


def to_call(model: nn.Module) -> nn.Module:
    """Return the module to call: a compiled model as it is, a data-parallel one without its wrapper.

    Gradients are asked for directly, which skips the wrapper's own reduction; `sum_over_ranks` does that instead.
    """
    inside = model
    while type(inside).__name__ == "OptimizedModule":
        inside = inside._orig_mod  # type: ignore[assignment]
    return bare(model) if type(inside).__name__ in ("DataParallel", "DistributedDataParallel") else model


def sum_over_ranks(model: nn.Module, tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its sum over the ranks, in place, with one reduction of all tensors of a kind.

    Every rank then holds the same numbers.
    """
    group = _group(model)
    for alike in by_kind(tensors):
        row = torch.cat([tensor.reshape(-1) for tensor in alike])
        torch.distributed.all_reduce(row, group=group)
        parts = row.split([tensor.numel() for tensor in alike])
        for tensor, part in zip(alike, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))


def differing(model: nn.Module, settings: Mapping[str, object], device: torch.device) -> list[str]:
    """Return on all ranks the names of the settings that are not the same on all of them."""
    digests = torch.tensor([digest.text(value) for value in settings.values()], device=device)
    ends = torch.stack([digests, -digests])
    torch.distributed.all_reduce(ends, torch.distributed.ReduceOp.MAX, group=_group(model))
    return [name for name, (most, least) in zip(settings, ends.T.tolist(), strict=True) if most != -least]


def _group(model: Any) -> Any:
    """Return the process group of a DistributedDataParallel model, compiled or not; None for any other model."""
    while type(model).__name__ == "OptimizedModule":
        model = model._orig_mod
    return model.process_group if type(model).__name__ == "DistributedDataParallel" else None
