"""The order of weights in memory: channels last is faster, if the network runs and trains with it."""

from contextlib import suppress
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from ...messages import first_line
from ...running.backward import gradients
from .comparison import Comparison, Unusable, copy_sharing_parameters


def with_channels_last(network: nn.Module) -> nn.Module:
    """Put the channels of all 4-d parameters last in memory, and return the network."""
    for parameter in network.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.to(memory_format=torch.channels_last)
    return network


def reason_against_channels_last(network: nn.Module, example: Any) -> str:
    """Say why a network must keep its order: it does not compute or train with channels last. Else return ""."""
    if all(p.dim() != 4 for p in network.parameters()):
        return ""
    changed = with_channels_last(deepcopy(network))

    def train(network: nn.Module) -> None:
        with comparison.random_numbers():
            copy, wanted = copy_sharing_parameters(network).train(), list(network.parameters())
            gradients(copy, comparison.inputs[1], wanted, unaided=True)

    try:
        comparison = Comparison.for_network(network, example)
        comparison.check(network, changed, "with channels last")
    except Unusable as error:
        return str(error)
    except Exception as error:
        return f"it does not run in its own precision ({first_line(error)})"
    with suppress(Exception):  # it cannot be trained in any order
        train(network)
        try:
            train(changed)
        except Exception as error:
            return f"it does not train with channels last ({first_line(error)})"
    return ""
