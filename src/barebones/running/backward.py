"""Backward passes: their graph, and a guard for one of which torch would end the process."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils._python_dispatch import TorchDispatchMode


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


def nodes(ends: Sequence[Tensor], beyond: Callable[[Node], bool] = lambda node: True) -> set[Node]:
    """Return the functions that these tensors come from, but nothing in front of one for which `beyond` is false."""
    found: set[Node] = set()
    waiting = [end.grad_fn for end in ends]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting += [following for following, _ in node.next_functions if beyond(node)]
    return found
