"""Tables: which functions select a part of a tensor by indices or a length, and along which dimensions.

The rows of an embedding that the example's tokens do not use, and the positions behind the example's last one, are as
much in use as the others: they are selected for other inputs.
"""

from typing import Any

import torch
from torch import Tensor

from .calls import Call

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
