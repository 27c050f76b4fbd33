"""Backward passes: the gradients of a network on an example, without a trace on the network."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.utils._python_dispatch import TorchDispatchMode

from .inputs import call, mapped, tensors
from .precision import tf32
from .rng import forked

PROJECTION = 1  # the seed of the random factors of the outputs


class SafeGroupNorm(TorchDispatchMode):
    """A mode that raises an error where torch would end the process: in the gradient of some group-norms on the CPU.

    Torch has no gradient of a group-norm for an input with channels last that needs no gradient itself.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip it, torch would import its compiler, which takes a second

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.native_group_norm_backward.default:
            x, mask = args[1], args[9]
            if x.device.type == "cpu" and not mask[0] and not x.is_contiguous():
                raise RuntimeError(
                    "torch has no gradient of a group-norm for an input with channels last and no gradient"
                )
        return func(*args, **(kwargs or {}))


def gradients(
    network: nn.Module, example: Any, wanted: Sequence[Tensor], seed: int = 0
) -> tuple[list[Tensor], list[Tensor | None]]:
    """Return the outputs for an example, and the gradients of a random sum of them with respect to some parameters.

    Nothing is stored in the parameters. The gradient of a parameter that the outputs do not use, or that is frozen, is
    None.
    """
    args, kwargs = mapped(call(example), lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf)
    device = next((t.device for t in (*network.parameters(), *tensors(call(example)))), torch.device("cpu"))
    generator = torch.Generator("cpu").manual_seed(PROJECTION)
    with torch.enable_grad(), forked(device, seed), tf32(device, False):
        returned = list(tensors(network(*args, **kwargs)))
        ends = [t for t in returned if t.requires_grad]
        trainable = [parameter for parameter in wanted if parameter.requires_grad]
        found: dict[int, Tensor | None] = {}
        if ends and trainable:
            factors = [torch.randn(t.shape, generator=generator, dtype=torch.double, device="cpu").to(t) for t in ends]
            with SafeGroupNorm() if _may_need_it(ends) else nullcontext():
                flows = torch.autograd.grad(ends, trainable, factors, allow_unused=True)
            found = dict(zip(map(id, trainable), flows, strict=True))
    return [t.detach().clone() for t in returned], [found.get(id(parameter)) for parameter in wanted]


def _may_need_it(ends: list[Tensor]) -> bool:
    """Whether the backward pass has a group-norm, or functions in Python that may run one."""
    visited: set[Any] = set()
    nodes = [t.grad_fn for t in ends]
    while nodes:
        node = nodes.pop()
        if node is None or node in visited:
            continue
        if "GroupNorm" in node.name() or isinstance(node, BackwardCFunction):
            return True
        visited.add(node)
        nodes += [before for before, _ in node.next_functions]
    return False
