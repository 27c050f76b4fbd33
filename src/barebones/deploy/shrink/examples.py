"""Inputs for comparisons: random values of several sizes, random tokens, and other shapes, made from one example."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from ...running.inputs import tensors

Draw = Callable[[Tensor], Tensor]
# What inputs may look like: pixels between 0 and 1, normalized values, bytes, and values without any bounds.
SCALES: tuple[Draw, ...] = (
    torch.randn_like,
    torch.rand_like,
    lambda like: 255 * torch.rand_like(like),
    lambda like: 1000 * torch.randn_like(like),
)


def random_inputs(model: nn.Module, example: Any, accepts: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield normal values for a batch that is twice as large and for one of the same size, then a few of each scale.

    Integers that the model may use as indices are drawn below the size of the largest table that it `accepts` them for.
    """
    leaves, form = tree_flatten(example)
    sizes = {size for tensor in (*model.parameters(), *model.buffers()) for size in tensor.shape}

    def accepts_leaves(new: list[Any]) -> bool:
        return accepts(tree_unflatten(new, form))

    limits = [_limit(leaves, place, sizes, accepts_leaves) for place in range(len(leaves))]

    def drawn(draw: Draw, rows: Draw) -> Any:
        base = [rows(leaf) if isinstance(leaf, Tensor) and leaf.dim() else leaf for leaf in leaves]
        new = [_values(leaf, draw, limit) for leaf, limit in zip(base, limits, strict=True)]
        if any(limits) and not accepts_leaves(new):  # the integers may depend on each other
            new = [_values(leaf, draw, None) for leaf in base]
        return tree_unflatten(new, form)

    def few(leaf: Tensor) -> Tensor:
        return torch.cat([leaf] * samples)[:samples]

    yield drawn(torch.randn_like, lambda leaf: torch.cat([leaf, leaf]))
    yield drawn(torch.randn_like, torch.clone)
    samples = 2 if any(leaf.dim() > 3 for leaf in tensors(leaves)) else 4  # enough for batch-norms
    rows = few if accepts(drawn(torch.randn_like, few)) else torch.clone
    for draw in SCALES:
        yield drawn(draw, rows)


def _values(leaf: Any, draw: Draw, limit: int | None) -> Any:
    if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dim():
        return draw(leaf)
    return leaf if limit is None else torch.randint_like(leaf, limit)


def _limit(leaves: list[Any], place: int, sizes: set[int], accepts: Callable[[list[Any]], bool]) -> int | None:
    """Return the size of the largest table that an integer input may index; None for floats, masks and constants."""
    leaf = leaves[place]
    if not isinstance(leaf, Tensor) or leaf.is_floating_point() or leaf.is_complex() or leaf.dtype == torch.bool:
        return None
    first = next(value for value in leaves if isinstance(value, Tensor))
    if leaf.dim() == 0 or (leaf is not first and int(leaf.min()) >= 0 and int(leaf.max()) <= 1):
        return None
    fewest, most = int(leaf.max()) + 1, torch.iinfo(leaf.dtype).max  # the values of the example are allowed, at least
    for size in sorted({fewest, *(size for size in sizes if fewest < size <= most)} - {0, 1}, reverse=True):
        draws = (torch.full_like(leaf, size - 1), torch.randint_like(leaf, size))
        if all(accepts([*leaves[:place], draw, *leaves[place + 1 :]]) for draw in draws):
            return size
    return None


def other_sizes(inputs: Any, accepts: Callable[[Any], bool]) -> list[Any]:
    """Return what a model accepts of: one sample, one of twice the height and width, a sequence of twice the length."""
    batch = next((len(t) for t in tensors(inputs) if t.dim()), 0)

    def resized(stretched: slice, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        value = value[:1] if value.dim() and len(value) == batch else value
        for dim in range(value.dim())[stretched]:
            value = torch.cat([value, value], dim)
        return torch.randn_like(value) if value.is_floating_point() else value

    sizes = [tree_map(partial(resized, stretched), inputs) for stretched in (slice(0), slice(2, None), slice(1, 2))]
    return [size for size in sizes if accepts(size)]
