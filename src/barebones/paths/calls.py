"""Calls: what a call of a torch function says of itself: its name, its tensors, what it writes to and selects from."""

from collections.abc import Callable, Iterator
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
        """Return the arguments by name, given the names of the positional ones; `axis`, which torch takes, is `dim`."""
        given = {"dim": self.kwargs["axis"]} if "axis" in self.kwargs else {}
        return dict(zip(slots, self.args, strict=False)) | given | self.kwargs

    def plain(self) -> Any:
        """Return the function's result on the bare values, which is used for its shape."""
        args, kwargs = tree_map(lambda a: a.detach() if isinstance(a, Tensor) else a, (self.args, self.kwargs))
        return self.func(*args, **kwargs)


DIM_IS_THIRD = ("topk", "norm", "linalg_norm", "linalg_vector_norm", "roll", "normalize")
DEFAULT_DIM = {"sort": -1, "argsort": -1, "topk": -1, "gumbel_softmax": -1, "normalize": 1, "unbind": 0, "iter": 0}


def dims_of(call: Call, x: Tensor) -> tuple[int, ...]:
    """Return the dimensions along which a call works; all, if it names none and has no default."""
    name = call.name
    if name in ("layer_norm", "rms_norm"):
        shape = call.named("input", "normalized_shape")["normalized_shape"]
        return tuple(range(x.dim() - len(shape), x.dim()))
    if name in ("group_norm", "local_response_norm"):
        return (1,)
    place = 4 if name == "gumbel_softmax" else 2 if name in DIM_IS_THIRD else 1
    given = call.named(*map(str, range(place)), "dim")
    dim: Any = given.get("dim", given.get("dims", DEFAULT_DIM.get(name)))
    if dim is None or isinstance(dim, bool) or dim == () or dim == []:
        return tuple(range(x.dim()))
    dims = dim if isinstance(dim, tuple | list) else (dim,)
    return tuple(int(d) % x.dim() for d in dims) if x.dim() else ()


ELEMENTWISE = """
    relu relu6 leaky_relu rrelu elu selu celu gelu silu mish softplus softsign sigmoid log_sigmoid logsigmoid
    hardsigmoid hardswish hardtanh hardshrink softshrink tanhshrink threshold tanh dropout dropout1d dropout2d dropout3d
    alpha_dropout feature_dropout feature_alpha_dropout abs neg negative positive exp exp2 expm1 log log2 log10 log1p
    sqrt rsqrt square reciprocal sin cos tan sinh cosh asinh atan erf clamp clip clamp_min clamp_max round floor ceil
    trunc frac sign nan_to_num fake_quantize_per_tensor_affine"""
POOLS = [f"{kind}max_pool{n}d" for kind in ("", "adaptive_") for n in (1, 2, 3)]
MAX_POOLS = " ".join([*POOLS, *(f"{name}_with_indices" for name in POOLS)])

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
    dims = set()
    for k, places in index_parts(table.dim(), key):
        part = isinstance(k, Tensor | list)
        if isinstance(k, slice):
            part = range(*k.indices(table.shape[places[0]])) != range(table.shape[places[0]])
        dims |= set(places) if part else set()
    return dims


def index_parts(dims: int, key: Any) -> Iterator[tuple[Any, range]]:
    """Yield each part of an index with the dimensions that it is for: none for None, perhaps several for a mask."""
    keys, masks = list(key) if isinstance(key, tuple) else [key], (torch.bool, torch.uint8)
    sizes = [k.dim() if isinstance(k, Tensor) and k.dtype in masks else int(k is not None) for k in keys]
    dim, rest = 0, dims - sum(sizes) + 1  # what an ellipsis stands for
    for k, size in zip(keys, sizes, strict=True):
        if k is not Ellipsis:
            yield k, range(dim, dim + size)
        dim += rest if k is Ellipsis else size
