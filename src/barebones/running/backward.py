"""Backward passes: the gradients of a network on an example, without a trace on the network."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils._python_dispatch import TorchDispatchMode

from .inputs import call, mapped, tensors
from .outputs import device_of
from .precision import computing
from .rng import forked

PROJECTION = 1  # the seed of the random factors of the outputs


def guarded(ends: Sequence[Tensor], unaided: bool = False) -> AbstractContextManager[Any]:
    """Return a context in which the backward pass of these tensors does not end the process; `unaided` raises instead.

    Torch's gradient of a group-norm reads memory that is not there if the input has channels last and its own gradient
    is not wanted. A copy of the input helps.
    """
    on_cpu = any(end.device.type == "cpu" for end in ends)
    return _Guard(unaided) if on_cpu and any("GroupNorm" in node.name() for node in nodes(ends)) else nullcontext()


class _Guard(TorchDispatchMode):
    def __init__(self, unaided: bool) -> None:
        super().__init__()
        self.unaided = unaided

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip it, torch would import its compiler, which takes a second

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        norm = func is torch.ops.aten.native_group_norm_backward.default
        if norm and not args[9][0] and not args[1].is_contiguous():
            if self.unaided:
                raise ValueError("torch has no gradient of a group-norm whose input has channels last and needs none")
            args = (args[0].contiguous(), args[1].contiguous(), *args[2:])
        return func(*args, **(kwargs or {}))


def nodes(ends: Sequence[Tensor]) -> set[Node]:
    found: set[Node] = set()
    waiting = [end.grad_fn for end in ends]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting += [following for following, _ in node.next_functions]
    return found


def gradients(
    network: nn.Module, example: Any, wanted: Sequence[Tensor], seed: int = 0, unaided: bool = False
) -> tuple[list[Tensor], list[Tensor | None]]:
    """Return the outputs for an example, and the gradients of a random sum of them with respect to some parameters.

    The gradient of a parameter that the outputs do not use, or that is frozen, is None. `unaided` is that of `guarded`.
    """
    args, kwargs = mapped(call(example), lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf)
    device = device_of(network, example)
    generator = torch.Generator("cpu").manual_seed(PROJECTION)
    with torch.enable_grad(), forked(device, seed), computing(device, "fp32"):
        returned = list(tensors(network(*args, **kwargs)))
        ends = [t for t in returned if t.requires_grad]
        trainable = [parameter for parameter in wanted if parameter.requires_grad]
        found: dict[int, Tensor | None] = {}
        if ends and trainable:
            factors = [torch.randn(t.shape, generator=generator, dtype=torch.double, device="cpu").to(t) for t in ends]
            with guarded(ends, unaided):
                flows = torch.autograd.grad(ends, trainable, factors, allow_unused=True)
            found = dict(zip(map(id, trainable), flows, strict=True))
    return [t.detach().clone() for t in returned], [found.get(id(parameter)) for parameter in wanted]
