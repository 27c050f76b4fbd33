"""Backward passes: the gradients of a network on an example, without a trace on the network."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils._python_dispatch import TorchDispatchMode

from .inputs import call, mapped, tensors
from .precision import computing
from .rng import forked

PROJECTION = 1  # the seed of the random factors of the outputs
# Torch's gradient of such a group-norm reads memory that is not there, and the process ends.
UNSAFE = (
    "torch has no gradient of a group-norm for an input with channels last that needs none; pass contiguous images, "
    "or let the layer in front of the norm train"
)


def guarded(ends: Sequence[Tensor]) -> AbstractContextManager[Any]:
    """Return a context in which the backward pass of these tensors raises an error where torch would crash."""
    on_cpu = any(end.device.type == "cpu" for end in ends)
    norms = (node for node in nodes(ends) if node.name() == "NativeGroupNormBackward0") if on_cpu else ()
    return _Guard() if any(node.next_functions[0][0] is None for node in norms) else nullcontext()


class _Guard(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip it, torch would import its compiler, which takes a second

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.native_group_norm_backward.default:
            x, wanted = args[1], args[9]
            if not wanted[0] and not x.is_contiguous():
                raise ValueError(UNSAFE)
        return func(*args, **(kwargs or {}))


def nodes(ends: Sequence[Tensor]) -> set[Node]:
    """Return all nodes of the graph that computed these tensors."""
    found: set[Node] = set()
    waiting = [end.grad_fn for end in ends]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting += [following for following, _ in node.next_functions]
    return found


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
    with torch.enable_grad(), forked(device, seed), computing(device, "fp32"):
        returned = list(tensors(network(*args, **kwargs)))
        ends = [t for t in returned if t.requires_grad]
        trainable = [parameter for parameter in wanted if parameter.requires_grad]
        found: dict[int, Tensor | None] = {}
        if ends and trainable:
            factors = [torch.randn(t.shape, generator=generator, dtype=torch.double, device="cpu").to(t) for t in ends]
            with guarded(ends):
                flows = torch.autograd.grad(ends, trainable, factors, allow_unused=True)
            found = dict(zip(map(id, trainable), flows, strict=True))
    return [t.detach().clone() for t in returned], [found.get(id(parameter)) for parameter in wanted]
