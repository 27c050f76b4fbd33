"""Memory: which memory tensors use, and which of it operations write to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def address(tensor: Tensor) -> int:
    """Return the address of a tensor's memory, which its views and aliases share; 0 if it has none."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else id(tensor)


def addresses(tree: Any) -> set[int]:
    """Return the addresses of all tensors in a tree of arguments or results."""
    return {address(leaf) for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)} - {0}


class Writes(TorchDispatchMode):
    """A mode that collects the addresses that operations write to, except memory that is new since it began.

    It sees every in-place operation, however it is written: as a method, an operator, an argument or `out=`.

    >>> x = torch.ones(2)
    >>> with Writes() as writes:
    ...     _ = torch.nn.functional.relu(x.view(2, 1), True), (x + 1).relu_()
    >>> writes.addresses == {address(x)}
    True
    """

    def __init__(self) -> None:
        super().__init__()
        self.addresses: set[int] = set()
        self._new: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.addresses |= addresses(list(_written(func, args, kwargs))) - self._new
        result = func(*args, **kwargs)
        self._new |= addresses(result) - addresses((args, kwargs))
        return result


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    """Yield the arguments that an operation writes to, as its schema says."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield args[index] if index < len(args) else kwargs.get(argument.name)
