"""Rules for functions that compute values.

Elementwise functions couple what they combine. Functions along dimensions, as a softmax, a sum or a pool, fix the
channels that vary along these.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ....paths.calls import Call
from .labels import INPUT, NOTHING, Labels, couple_parts, mixed, plain, varies

DIM_IS_THIRD = ("topk", "norm", "linalg_norm", "linalg_vector_norm", "roll", "normalize")
DEFAULT_DIM = {"sort": -1, "argsort": -1, "topk": -1, "normalize": 1, "unbind": 0, "iter": 0}


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


def dims_of(call: Call, x: Tensor) -> tuple[int, ...]:
    name = call.name
    if name in ("layer_norm", "rms_norm"):
        shape = call.named("input", "normalized_shape")["normalized_shape"]
        return tuple(range(x.dim() - len(shape), x.dim()))
    if name in ("group_norm", "local_response_norm"):
        return (1,)
    place = 2 if name in DIM_IS_THIRD else 1
    dim: Any = next(
        (call.kwargs[key] for key in ("dim", "dims", "axis") if key in call.kwargs),
        call.args[place] if len(call.args) > place else DEFAULT_DIM.get(name),
    )
    if dim is None or isinstance(dim, bool) or dim == () or dim == []:
        return tuple(range(x.dim()))
    dims = dim if isinstance(dim, tuple | list) else (dim,)
    return tuple(int(d) % x.dim() for d in dims) if x.dim() else ()
