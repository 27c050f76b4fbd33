"""Rules for functions that compute each value from the values at its place: they couple what they combine."""

from typing import Any

import torch
from torch import Tensor

from ....paths.calls import Call
from .labels import Labels, plain


def passing(labels: Labels, call: Call) -> Tensor:
    """Functions of one value."""
    groups = labels.groups_of(call.tensors[0])
    return call.out if call.inplace else labels.numbered(groups)


def alias(labels: Labels, call: Call) -> Tensor:
    """Functions that return the same memory, or a copy of it."""
    x = call.args[0]
    labels.of(x)
    return x.view_as(x) if call.name != "contiguous" or x.is_contiguous() else x.contiguous()


def meeting(labels: Labels, call: Call) -> Tensor:
    """Functions of two or more values at the same place."""
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
