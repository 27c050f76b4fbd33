"""Rules for functions without weights of their own.

Elementwise functions couple what they combine. Functions along dimensions, as a softmax, a sum or a pool, fix the
channels that vary along these. Functions that only move values run on the numbers as they are; a size or a place that
is given as a number binds channels. In `view(batch, length, -1, 64)` the 64 channels of a head can only be removed
together. Where all sizes are numbers, the network may have computed them from the shape of the tensor or may always use
the same: a trial will tell.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ..calls import Call, dims_of, index_parts
from .labels import INPUT, NOTHING, Labels, couple_parts, mixed, plain, varies


def passing(labels: Labels, call: Call) -> Tensor:
    groups = labels.groups_of(call.tensors[0])
    return call.out if call.inplace else labels.numbered(groups)


def alias(labels: Labels, call: Call) -> Tensor:
    """Functions that return the same memory, or a copy of it."""
    x = call.args[0]
    labels.of(x)
    return x.view_as(x) if call.name != "contiguous" or x.is_contiguous() else x.contiguous()


def meeting(labels: Labels, call: Call) -> Tensor:
    return labels.numbered(labels.join(*map(labels.shape_or_groups, call.tensors)))


def comparison(labels: Labels, call: Call) -> Any:
    """The result of a comparison belongs to the channels that are compared."""
    groups = labels.join(*map(labels.shape_or_groups, call.tensors))
    result = plain(call)
    return labels.remember(result, groups) if isinstance(result, Tensor) else result


def cast(labels: Labels, call: Call) -> Any:
    """Another type or device: the numbers stay what they are."""
    x = call.args[0]
    groups, result = labels.groups_of(x), plain(call)
    if not isinstance(result, Tensor):  # a number in Python
        labels.fix(groups)
        return result
    if not result.is_floating_point():
        return labels.remember(result.clone(), groups)
    return x.view_as(x) if x.requires_grad else labels.numbered(groups)


def fresh(labels: Labels, call: Call) -> Any:
    """A new tensor, of which its maker gives only the type: what is computed with its channels must keep them."""
    labels.of(call.args[0])
    return labels.like_input(plain(call))


def fill(labels: Labels, call: Call) -> Tensor:
    """A constant written over channels leaves them where they are."""
    return meeting(labels, Call(torch.add, call.args[:2], {})) if len(call.tensors) > 1 else call.args[0]


def along(labels: Labels, call: Call) -> Any:
    """Functions whose results along a dimension depend on all values along it."""
    x = call.args[0] if call.args else call.kwargs["input"]
    groups, dims = labels.groups_of(x), dims_of(call, x)
    mixes = any(varies(groups, d) for d in dims)
    if mixes:
        labels.fix(groups)

    def result(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        if value.shape == x.shape:
            return labels.numbered(groups)
        if mixes:
            return labels.like_input(value)
        one = groups.amax(dims, keepdim=True) if dims else groups
        return labels.numbered(one.expand(value.shape) if value.dim() == x.dim() else one.reshape(value.shape))

    return tree_map(result, plain(call))


def extreme(labels: Labels, call: Call) -> Any:
    return meeting(labels, call) if sum(t.is_floating_point() for t in call.tensors) == 2 else along(labels, call)


def glu(labels: Labels, call: Call) -> Tensor:
    x, dim = call.args[0], call.named("input", "dim").get("dim", -1)
    groups = labels.groups_of(x)
    couple_parts(labels, groups, dim, groups.shape[dim] // 2)
    return labels.numbered(groups.chunk(2, dim)[0])


def pool(labels: Labels, call: Call) -> Any:
    x = call.args[0] if call.args else call.kwargs["input"]
    groups = labels.groups_of(x)
    digits = [int(c) for c in call.name if c in "123"]
    spatial = range(-digits[0], 0) if digits else range(2 - x.dim(), 0)
    if any(varies(groups, d) for d in spatial):
        return mixed(labels, call)
    if not digits or "avg" in call.name or "max" in call.name:  # torch refuses some inputs without channels
        labels.pooled.append(groups.unique())
    one = groups.amax(tuple(spatial), keepdim=True)
    return tree_map(lambda v: labels.numbered(one.expand(v.shape)) if v.is_floating_point() else v, plain(call))


def pad(labels: Labels, call: Call) -> Tensor:
    """Padding; padded channels stay, and padded borders belong to no channel."""
    arguments = call.named("input", "pad", "mode" if call.name == "pad" else "value")
    x, sizes = arguments["input"], list(arguments["pad"])
    groups = labels.groups_of(x)
    single = len(groups.unique()) == 1
    for i, size in enumerate(sizes[::2]):
        dim = -1 - i
        channels = varies(groups, dim) or (single and groups.shape[dim] == 1)
        after = sizes[2 * i + 1]
        if channels and (arguments.get("mode", "constant") != "constant" or min(size, after) < 0) and (size or after):
            labels.fix(groups)
        value = INPUT if channels else NOTHING
        groups = torch.nn.functional.pad(groups, [0, 0] * i + [size, after], value=value)
    return labels.numbered(groups)


# ---- functions that only move values: they run on the numbers as they are ----


def view(labels: Labels, call: Call) -> Tensor:
    """Views and reshapes: a size that is given binds channels, unless it was computed from the tensor's shape."""
    x = call.args[0]
    if call.name == "view" and len(call.args) > 1 and isinstance(call.args[1], torch.dtype):
        return mixed(labels, call)
    groups = labels.groups_of(x)
    result = groups.reshape(plain(call).shape)
    given = _given(call, x, result)
    varying = [d for d in range(result.dim()) if varies(result, d)]
    bound = [d for d in varying if given[d]]
    if len(bound) == len(varying):
        divided = len(varying) > sum(varies(groups, d) for d in range(groups.dim()))  # one dimension became several
        bound = varying[:-1] if divided else []
    for d in bound:
        labels.couple(result, result.amax(d, keepdim=True))
    return call.func(*call.args, **call.kwargs)


def _given(call: Call, x: Tensor, result: Tensor) -> list[bool]:
    """Return, for each dimension of a view, whether its size was given as a number."""
    if call.name in ("view_as", "reshape_as"):
        return [True] * result.dim()
    if call.name in ("flatten", "ravel"):
        return [False] * result.dim()
    sizes: Any = call.kwargs.get("sizes", call.kwargs.get("size", call.kwargs.get("shape", call.args[1:])))
    if call.name == "unflatten":
        dim = call.named("input", "dim").get("dim", 0) % x.dim()
        sizes = call.kwargs.get("sizes", call.args[2] if len(call.args) > 2 else ())
        rest = result.dim() - dim - len(sizes)
        return [False] * dim + [size != -1 for size in sizes] + [False] * rest
    if len(sizes) == 1 and not isinstance(sizes[0], int):
        sizes = sizes[0]
    return [int(size) != -1 for size in sizes]


def expand(labels: Labels, call: Call) -> Any:
    """Expansions; a channel that is repeated over a dimension stays if it may be alone there."""
    x = call.args[0]
    groups, result = labels.groups_of(x), call.func(*call.args, **call.kwargs)
    sizes = (1,) * (result.dim() - x.dim()) + tuple(x.shape)
    if len(groups.unique()) == 1 and any(a == 1 < b for a, b in zip(sizes, result.shape, strict=True)):
        labels.fix(groups)
    return result


def concatenation(labels: Labels, call: Call) -> Tensor:
    """Concatenations couple what must have the same width in all parts."""
    parts = list(call.args[0] if call.args else call.kwargs["tensors"])
    dim = call.named("tensors", "dim").get("dim", 0)
    parts = [t for t in parts if t.dim() > 1 or t.numel()]  # torch allows empty tensors of one dimension
    dim = dim % parts[0].dim()
    known = [labels.shape_or_groups(t) for t in parts]
    others = [d for d in range(parts[0].dim()) if d != dim]

    def one_of(groups: Tensor | tuple[int, ...]) -> Tensor | tuple[int, ...]:
        if isinstance(groups, tuple):
            return (*groups[:dim], 1, *groups[dim + 1 :])
        one = groups.amax(dim, keepdim=True)
        labels.couple(groups, one)
        return one

    if any(varies(groups, d) for groups in known if isinstance(groups, Tensor) for d in others):
        labels.join(*map(one_of, known))
    numbers = [
        torch.zeros(t.shape, dtype=torch.double, device=labels.device) if isinstance(groups, tuple) else t
        for t, groups in zip(parts, known, strict=True)
    ]
    return torch.cat(numbers, dim)


def stack(labels: Labels, call: Call) -> Tensor:
    parts = list(call.args[0] if call.args else call.kwargs["tensors"])
    groups = labels.join(*map(labels.shape_or_groups, parts))
    dim = call.named("tensors", "dim").get("dim", 0)
    return labels.numbered(torch.stack([groups] * len(parts), dim))


def parts(labels: Labels, call: Call) -> Any:
    """Chunks and splits: equal parts lose the same channels; others cannot lose any."""
    x = call.args[0]
    groups = labels.groups_of(x)
    dim = call.named("input", "sizes", "dim").get("dim", 0) % x.dim()
    if varies(groups, dim):
        sizes = {part.shape[dim] for part in plain(call)}
        if len(sizes) > 1:
            labels.fix(groups)
        else:
            couple_parts(labels, groups, dim, sizes.pop())
    return call.func(*call.args, **call.kwargs)


def taking(labels: Labels, call: Call) -> Any:
    """Functions that take values at given places of one dimension: its channels stay."""
    x, dims = call.args[0], dims_of(call, call.args[0])
    groups = labels.groups_of(x)
    if any(varies(groups, d) for d in dims) or labels.of(x) is None:
        labels.fix(groups)
    return call.func(*call.args, **call.kwargs)


def item(labels: Labels, call: Call) -> Any:
    """Indexing: equal parts lose the same channels; channels that are taken by number stay."""
    x, index = call.args[:2]
    if labels.of(x) is None:
        return mixed(labels, call)
    _judge_index(labels, labels.groups_of(x), index)
    return x[index]


def set_item(labels: Labels, call: Call) -> Any:
    x, index, value = call.args[:3]
    if not x.is_floating_point():
        return mixed(labels, call)
    if not x.requires_grad:  # a constant; what is written to it are numbers
        with torch.no_grad():
            (x if x._base is None else x._base).zero_()
    groups = labels.of(x)
    if groups is not None:
        _judge_index(labels, groups, index)
    old = x[index]
    if isinstance(value, Tensor) and value.dim():
        known = [labels.shape_or_groups(value)]
        if groups is not None:
            known.append(labels.shape_or_groups(old) if old.requires_grad else tuple(old.shape))
        joined = labels.join(*known)
        if isinstance(joined, Tensor) and joined.any():
            if groups is None and joined.shape != x.shape:  # a part of a constant: its other parts cannot be cut
                labels.fix(joined)
            x[index] = labels.numbered(joined)
    return x


def _judge_index(labels: Labels, groups: Tensor, index: Any) -> None:
    for part, dims in index_parts(groups.dim(), index):
        for d in dims:
            if not varies(groups, d) or (isinstance(part, slice) and part == slice(None)):
                continue
            if isinstance(part, slice) and part.step in (None, 1):
                start, stop, _ = part.indices(groups.shape[d])
                length = stop - start
                if length > 0 and groups.shape[d] % length == 0 and start % length == 0:
                    couple_parts(labels, groups, d, length)
                    continue
            labels.fix(groups)


def shuffle(labels: Labels, call: Call) -> Tensor:
    """Shuffles: the groups of `channel_shuffle` stay equally wide, and the channels of a pixel go together."""
    groups = labels.groups_of(call.args[0])
    if call.name == "channel_shuffle":
        couple_parts(labels, groups, 1, groups.shape[1] // call.named("input", "groups")["groups"])
    else:
        pixels = groups.unflatten(-3, (-1, call.named("input", "upscale_factor")["upscale_factor"] ** 2))
        labels.couple(pixels, pixels.amax(-3, keepdim=True))
    return call.func(*call.args, **call.kwargs)
