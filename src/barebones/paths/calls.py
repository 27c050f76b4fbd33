"""Calls: what a call of a torch function says of itself: its name, its tensors, what it writes to and selects from."""

from collections.abc import Callable
from functools import cache
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map


@cache
def _place_of_inplace(func: Callable[..., Any]) -> int | None:
    """Return the place of a function's argument `inplace`, as in `F.relu(x, True)`."""
    try:
        names = list(signature(func).parameters)
    except (TypeError, ValueError):  # a function in C++: none of these has the argument
        return None
    return names.index("inplace") if "inplace" in names else None


class Call:
    """A call of a torch function."""

    def __init__(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.func, self.args, self.kwargs = func, args, {key: value for key, value in kwargs.items() if key != "out"}
        name = getattr(func, "__name__", "")
        owner = getattr(func, "__self__", None) if name in ("__get__", "__set__") else None  # a property's
        self.name = f"{owner.__name__}.{name}" if owner else name.split(".")[0].strip("_")
        place = _place_of_inplace(func)
        self.inplace = (name[-1:] == "_" != name[-2:-1]) or name == "__setitem__" or kwargs.get("inplace") is True
        self.inplace |= place is not None and len(args) > place and args[place] is True
        self.out: Any = args[0] if self.inplace else kwargs.get("out")  # what it writes to, if not a new tensor
        self.tensors = [t for t in tree_leaves((args, self.kwargs)) if isinstance(t, Tensor)]
        self.live = [t for t in self.tensors if t.requires_grad]
        self.weight: str | None = None  # if the result is a weight: the name of the first parameter in it
        self.share = False  # whether the result is a share

    @property
    def returns_integers(self) -> bool:
        """Whether the call asks for a result that is not a float, as `torch.cumsum(x, 0, dtype=torch.int)` does."""
        dtype = self.kwargs.get("dtype")
        return isinstance(dtype, torch.dtype) and not (dtype.is_floating_point or dtype.is_complex)

    def named(self, *slots: str) -> dict[str, Any]:
        """Return the arguments by name, given the names of the positional ones."""
        return dict(zip(slots, self.args, strict=False)) | self.kwargs

    def plain(self) -> Any:
        """Return the function's result on the bare values, which is used for its shape."""
        args, kwargs = tree_map(lambda a: a.detach() if isinstance(a, Tensor) else a, (self.args, self.kwargs))
        return self.func(*args, **kwargs)


# Functions that select a part of a table by indices or a length, and their arguments. The rows of an embedding that the
# example's tokens do not use, and the positions behind its last one, are in use as well: for other inputs.
SLOTS = {
    "embedding": ("index", "table"),
    "embedding_bag": ("index", "table"),
    "index_select": ("table", "dim", "index"),
    "narrow": ("table", "dim"),
    "gather": ("table", "dim", "index"),
    "take_along_dim": ("table", "index", "dim"),
    "take": ("table", "index"),
    "getitem": ("table", "index"),
}
NAMES = {"input": "table", "self": "table", "weight": "table", "indices": "index"}  # of keyword arguments


def selection(call: Call) -> tuple[Tensor, tuple[int, ...]] | None:
    """Return the table from which a call selects, and the dimensions along which it does; None for other calls.

    >>> table = torch.ones(5, 3)
    >>> selection(Call(torch.Tensor.__getitem__, (table, slice(2)), {}))[1]
    (0,)
    >>> selection(Call(torch.Tensor.__getitem__, (table, (None, slice(0, 5))), {})) is None
    True
    """
    slots = SLOTS.get(call.name)
    if slots is None:
        return None
    bag = call.name.startswith("embedding")
    given = {("index" if bag and key == "input" else NAMES.get(key, key)): v for key, v in call.kwargs.items()}
    given |= dict(zip(slots, call.args, strict=False))
    table, index = given.get("table"), given.get("index")
    if not isinstance(table, Tensor) or not table.is_floating_point() or table.dim() == 0:
        return None
    if bag:
        dims = {0}
    elif call.name == "getitem":
        dims = _indexed(table, index)
    elif call.name == "take" or given.get("dim") is None:
        dims = set(range(table.dim()))
    else:
        dims = {given["dim"] % table.dim()}
        if call.name in ("gather", "take_along_dim") and isinstance(index, Tensor) and index.dim() == table.dim():
            dims |= {d for d in range(table.dim()) if index.shape[d] != table.shape[d]}
    return (table, tuple(sorted(dims))) if dims else None


def _indexed(table: Tensor, key: Any) -> set[int]:
    """Return the dimensions of which an index takes a part. One number is no choice: it is written in the model."""
    keys = list(key) if isinstance(key, tuple) else [key]
    sizes = [k.dim() if isinstance(k, Tensor) and k.dtype == torch.bool else int(k is not None) for k in keys]
    dims, dim = set(), 0
    for k, size in zip(keys, sizes, strict=True):
        if k is Ellipsis:
            dim += table.dim() - (sum(sizes) - 1)
            continue
        part = isinstance(k, Tensor | list)
        if isinstance(k, slice):
            part = range(*k.indices(table.shape[dim])) != range(table.shape[dim])
        dims |= set(range(dim, dim + size)) if part else set()
        dim += size
    return dims
