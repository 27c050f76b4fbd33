"""The order of weights in memory: channels last is faster, if the network runs and trains with it."""

from copy import deepcopy

import torch
from torch import nn

from ...messages import first_line
from ...running.backward import gradients
from .comparison import Comparison, Unusable, copy_sharing_parameters


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
        _check_backward(network, changed, comparison)
    except Unusable as error:
        return network, str(error)
    return changed, ""


def _check_backward(network: nn.Module, changed: nn.Module, comparison: Comparison) -> None:
    """Raise `Unusable` if the network can be trained, but not with channels last."""

    def train(network: nn.Module) -> None:
        with comparison.random_numbers():
            copy, wanted = copy_sharing_parameters(network).train(), list(network.parameters())
            gradients(copy, comparison.inputs[1], wanted, unaided=True)

    try:
        train(network)
    except Exception:  # it cannot be trained in any order
        return
    try:
        train(changed)
    except Exception as error:
        raise Unusable(f"it does not train with channels last ({first_line(error)})") from error
