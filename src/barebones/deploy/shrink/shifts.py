"""Shifts of channels without input, which count as pruned before training."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .coupling import Coupling
from .removal import ChannelReader, choose


def prune_shifts(
    coupling: Coupling, observe: Callable[[], list[ChannelReader]], network: nn.Module
) -> tuple[list[ChannelReader], dict[str, Tensor], dict[str, int]]:
    """Set to zero each shift whose channel could be removed if the shift were zero.

    This is repeated until no such shift is left. `observe` returns the readers of the network, with what arrives at
    each of them. Return its last result, the channels of each layer whose shift is now zero, and how many were not.
    """
    no_group, layers = torch.zeros_like(coupling.fixed), dict(network.named_modules())
    zeroed: dict[str, Tensor] = {}
    pruned: dict[str, int] = {}
    while True:
        reading, before = observe(), sum(pruned.values())
        removable = choose(coupling, reading, no_group, 1, 0).idle
        without_shifts = choose(coupling, [reader.without_shifts() for reader in reading], no_group, 1, 0).idle
        for (name, side), slot in coupling.slots.items():
            bias = getattr(layers.get(name), "bias", None)
            if side == "in" or not isinstance(bias, Tensor):
                continue
            channels = (without_shifts & ~removable)[coupling.groups(slot)].to(bias.device)
            count = int((channels & (bias != 0)).sum())
            if count:
                zero_shifts(layers[name], channels)
                zeroed[name] = zeroed.get(name, torch.zeros_like(channels)) | channels
                pruned[name] = pruned.get(name, 0) + count
        if sum(pruned.values()) == before:
            return reading, zeroed, pruned


def zero_shifts(layer: Any, channels: Tensor) -> None:
    """Set the shifts of these channels to zero, and so the statistics that they would correct."""
    channels = channels.to(layer.bias.device)
    with torch.no_grad():
        layer.bias[channels] = 0
        if getattr(layer, "running_mean", None) is not None:
            layer.running_mean[channels] = 0
