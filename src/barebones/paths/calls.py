"""Calls: what a call of a torch function says of itself: its name, its tensors, and whether it writes in place."""

from collections.abc import Callable
from functools import cache
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map


@cache
def _place_of_inplace(func: Callable[..., Any]) -> int | None:
    """Return the place of the argument `inplace` of a function, as in `F.relu(x, True)`; None if it has none."""
    try:
        names = list(signature(func).parameters)
    except (TypeError, ValueError):  # a function in C++: none of these has the argument
        return None
    return names.index("inplace") if "inplace" in names else None


class Call:
    """A call of a torch function: its name, arguments and tensors."""

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
