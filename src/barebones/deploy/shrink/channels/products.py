"""Rules for matrix products of activations: they keep the channels of rows and columns, and fix those they sum over."""

from typing import Any

import torch
from torch import Tensor

from ....paths.calls import Call
from .labels import Labels, mixed, varies


def product(labels: Labels, call: Call) -> Tensor:
    """Matrix products of activations."""
    a, b = call.args[:2] if len(call.args) > 1 else (call.args[0], call.kwargs["other"])
    if call.name == "rmatmul":
        a, b = b, a
    if a.dim() < 2 or b.dim() < 2:
        return mixed(labels, call)
    return labels.numbered(labels.join(_summed(labels, a, -1), _summed(labels, b, -2)))


def added_product(labels: Labels, call: Call) -> Tensor:
    """A matrix product plus a first argument."""
    start, a, b = call.tensors  # some of them may be given by name
    if a.dim() < 2 or b.dim() < 2:
        return mixed(labels, call)
    joined = labels.join(_summed(labels, a, -1), _summed(labels, b, -2))
    return labels.numbered(labels.join(joined, labels.shape_or_groups(start)))


def einsum(labels: Labels, call: Call) -> Tensor:
    """Einstein sums with letters only."""
    equation, *operands = call.args
    operands = list(operands[0]) if isinstance(operands[0], list | tuple) else operands
    if not isinstance(equation, str) or "..." in equation or "->" not in equation:
        return mixed(labels, call)
    inputs, output = equation.replace(" ", "").split("->")
    known: list[Any] = []
    for letters, operand in zip(inputs.split(","), operands, strict=True):
        if len(set(letters)) < len(letters):
            return mixed(labels, call)
        summed = [d for d, letter in enumerate(letters) if letter not in output]
        one = _summed(labels, operand, *summed)
        order = [letters.index(letter) for letter in output if letter in letters]
        if isinstance(one, tuple):
            sizes = iter([one[d] for d in order])
            known.append(tuple(next(sizes) if letter in letters else 1 for letter in output))
        else:
            moved = one.permute(*order, *summed).flatten(len(order)) if summed else one.permute(order)
            moved = moved[..., 0] if summed else moved
            known.append(moved[tuple(slice(None) if letter in letters else None for letter in output)])
    return labels.numbered(labels.join(*known))


def attention(labels: Labels, call: Call) -> Tensor:
    """Scaled dot-product attention: heads are channels, if their channels can only be removed together."""
    arguments = call.named("query", "key", "value", "attn_mask")
    q, k = (_summed(labels, arguments[name], -1) for name in ("query", "key"))
    k, v = (_summed(labels, t, -2) for t in (k, arguments["value"]))
    if arguments.get("enable_gqa"):
        heads = q[-3] if isinstance(q, tuple) else q.shape[-3]
        k, v = (_repeated(t, heads) for t in (k, v))
    mask = arguments.get("attn_mask")
    known = [q, k, v] if mask is None else [q, k, v, _summed(labels, mask, -1)]
    return labels.numbered(labels.join(*known))


def _repeated(known: Any, heads: int) -> Any:
    if isinstance(known, tuple):
        return (*known[:-3], heads, *known[-2:])
    return known.repeat_interleave(heads // known.shape[-3], -3)


def _summed(labels: Labels, value: Any, *dims: int) -> Any:
    """Return the groups of an operand that a product sums over some dimensions, or its shape if it has none left."""
    groups = value if isinstance(value, tuple) or value.dtype == torch.long else labels.shape_or_groups(value)
    if isinstance(groups, tuple):
        sizes = list(groups)
        for d in dims:
            sizes[d] = 1
        return tuple(sizes)
    if not dims:
        return groups
    one = groups.amax(dims, keepdim=True)
    if not any(varies(groups, d) for d in dims):
        return one
    labels.fix(groups)
    return tuple(one.shape)
