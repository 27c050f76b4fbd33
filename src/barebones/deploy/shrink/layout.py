"""The order of weights in memory: channels last is faster, if the network runs and trains with it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from ...running.inputs import call, tensors
from ...running.precision import tf32
from ...running.rng import forked
from .comparison import Comparison, Unusable, copy_sharing_parameters, first_line, without_dropout


def with_channels_last(network: nn.Module) -> nn.Module:
    """Put the channels of all 4-d parameters last in memory, and return the network.

    `contiguous` would leave kernels of one pixel or one channel alone, since these are in both orders at once.
    """
    for parameter in network.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.to(memory_format=torch.channels_last)
    return network


def channels_last_if_possible(network: nn.Module, comparison: Comparison) -> tuple[nn.Module, str]:
    """Return a copy with channels last and "", or the network itself and the reason why it must keep its order.

    The copy must compute and train in the precision of the network: in float64, GPUs ignore the order.
    """
    if all(p.dim() != 4 for p in network.parameters()):
        return network, ""
    changed = with_channels_last(deepcopy(network))
    try:
        expected = comparison.runs(network)
    except Exception as error:
        return network, f"it does not run in its own precision ({first_line(error)})"
    try:
        comparison.check(changed, expected, "with channels last")
        _check_backward(network, changed, comparison.inputs[1])
    except Unusable as error:
        return network, str(error)
    return changed, ""


def _check_backward(network: nn.Module, changed: nn.Module, inputs: Any) -> None:
    """Raise `Unusable` if the network can be trained, but not with channels last."""
    try:
        run_backward(without_dropout(copy_sharing_parameters(network)).train(), inputs)
    except Exception:  # it cannot be trained in any order
        return
    try:
        run_backward(without_dropout(copy_sharing_parameters(changed)).train(), inputs)
    except Exception as error:
        raise Unusable(f"it does not train with channels last ({first_line(error)})") from error


def run_backward(network: nn.Module, example: Any) -> None:
    """Run the network forward and backward on a copy of the example, without storing gradients."""
    args, kwargs = tree_map(lambda value: value.clone() if isinstance(value, torch.Tensor) else value, call(example))
    trainable = [p for p in network.parameters() if p.requires_grad]
    device = next((t.device for t in (*trainable, *tensors(call(example)))), torch.device("cpu"))
    with torch.enable_grad(), forked(device, seed=0), tf32(device, False):
        returned = [t for t in tensors(network(*args, **kwargs)) if t.requires_grad]
        if returned and trainable:
            torch.autograd.grad(returned, trainable, [torch.ones_like(t) for t in returned], allow_unused=True)
