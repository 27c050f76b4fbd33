"""The comparison of two networks: the same inputs, the same random numbers, outputs that are equal but for rounding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ...running.inputs import call, tensors
from ...running.rng import forked
from .coupling import copied


class Failed(Exception):
    """A trial that does not run, or that computes something else."""


def doubled(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def random_like(value: Any, times: int) -> Any:
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    wide = torch.cat([value] * times)
    return torch.randn_like(wide) if wide.is_floating_point() else wide


def single(tree: Any) -> Any:
    """One sample: of each tensor that is as long as the first one."""
    batch = next((len(t) for t in tensors(tree) if t.dim()), 0)
    return tree_map(lambda t: t[:1] if isinstance(t, Tensor) and t.dim() and len(t) == batch else t, tree)


def larger(tree: Any) -> Any:
    """One sample of twice the height and width, or whatever comes behind the channels."""
    return tree_map(lambda t: _stretched(t, range(2, t.dim())) if isinstance(t, Tensor) else t, single(tree))


def longer(tree: Any) -> Any:
    """One sample of twice the length, where that comes before the channels."""
    return tree_map(lambda t: _stretched(t, range(1, min(2, t.dim()))) if isinstance(t, Tensor) else t, single(tree))


def _stretched(value: Tensor, dims: Iterable[int]) -> Tensor:
    for dim in dims:
        value = torch.cat([value, value], dim)
    return torch.randn_like(value) if value.is_floating_point() else value


def outputs(network: nn.Module, example: Any, device: torch.device, seed: int = 0) -> list[Tensor]:
    args, kwargs = copied(call(example))
    with torch.no_grad(), forked(device, seed):
        return [t.detach().clone() for t in tensors(network(*args, **kwargs)) if t.is_floating_point()]


def differentiated(network: nn.Module, example: Any, device: torch.device, seed: int = 0) -> None:
    """Run it forward and backward; no gradient is left behind."""
    args, kwargs = copied(call(example))
    with torch.enable_grad(), forked(device, seed):
        returned = [t for t in tensors(network(*args, **kwargs)) if t.requires_grad]
        trained = [p for p in network.parameters() if p.requires_grad]
        if returned and trained:
            torch.autograd.grad(returned, trained, [torch.ones_like(t) for t in returned], allow_unused=True)


def without_dropout(network: nn.Module) -> nn.Module:
    for module in network.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    return network


def compare(wanted: list[Tensor], got: list[Tensor], tolerance: float, mode: str, how: str) -> None:
    if [t.shape for t in wanted] != [t.shape for t in got]:
        raise Failed(f"its outputs have another shape {how}")
    for a, b in zip(wanted, got, strict=True):
        scale = float(a[a.isfinite()].abs().max()) if a.isfinite().any() else 0.0
        if not torch.allclose(a, b, rtol=0, atol=tolerance * scale + 1e-30, equal_nan=True):
            apart = float((a - b).abs().max())
            raise Failed(f"in {mode} mode its outputs differ by {apart:.3g} {how}, where the largest is {scale:.3g}")


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
