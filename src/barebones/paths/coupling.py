"""Coupled channels: which channels of which layers can only be removed together.

A channel is one input or output of a layer: of a convolution, a linear layer, a batch-norm. If a convolution loses an
output channel, the batch-norm behind it must lose it too, as must every tensor that is added to its output and the
inputs of every layer that reads it. These channels form one coupled group. The model's own forward pass, run on the
numbers of the channels, finds the groups.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..running.inputs import call, tensors
from .channels.labels import ChannelSlot, Labels
from .channels.layers import CONVOLUTIONS, NORMS
from .channels.rules import OF_LAYERS, RULES
from .follow import guards, standing_in

LAYERS = (nn.Linear, CONVOLUTIONS, NORMS, nn.PReLU, nn.Embedding)
# Layers whose parameters are used by one function that mixes channels, so that nothing can be removed from them.
WHOLE = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase, nn.Bilinear)


@dataclass
class Coupling:
    """All channels of a model and the coupled group of each, known by the smallest number of its channels."""

    slots: dict[tuple[str, str], ChannelSlot]  # by (layer, side)
    group: Tensor  # of each channel
    fixed: Tensor  # one bool per group: whether it cannot be removed
    pooled: Tensor  # one bool per group: whether a pool reads it, which needs a channel

    def groups(self, slot: ChannelSlot) -> Tensor:
        return self.group[slot.span]

    def all_of(self, channels: Tensor) -> Tensor:
        """Return, for each group, whether a property (one bool per channel) holds for all of its channels."""
        return torch.ones_like(self.fixed).scatter_reduce(0, self.group, channels, "amin")


def find_coupling(model: nn.Module, example: Any, modes: tuple[bool, ...] = (False,), even: bool = False) -> Coupling:
    """Find the coupled groups of a model by one run on the example in each of these modes (True is train mode).

    With `even`, the groups of a grouped convolution are coupled, too, so that equally many channels of each stay.
    """
    model = deepcopy(model).double()  # numbers are exact in float64
    device = next((t.device for t in (*model.parameters(), *tensors(call(example)))), torch.device("cpu"))
    labels = Labels(RULES, OF_LAYERS, device)
    labels.even = even
    free = dict(_free_parameters(labels, model))
    for training in modes:
        with ExitStack() as stack:
            numbered = {key: labels.numbered(value) for key, value in free.items()}
            for guard in (*guards(device), standing_in(model, numbered, training), _watched(labels, model)):
                stack.enter_context(guard)
            inputs = tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, call(example))
            args, kwargs = tree_map(labels.like_input, inputs)
            with labels:
                returned = model(*args, **kwargs)
            for tensor in tensors(returned):
                labels.fix(labels.of(tensor))
    group = labels.groups()
    fixed, written, pooled = torch.zeros(3, labels.size, dtype=torch.bool, device="cpu")
    fixed[group[torch.cat(labels.fixed)]] = True
    written[group[torch.cat(labels.written)]] = True
    pooled[group[torch.cat(labels.pooled)]] = True
    return Coupling(labels.slots, group, fixed | ~written, pooled)  # the model's input, for example, is not written


def _free_parameters(labels: Labels, model: nn.Module) -> Iterator[tuple[int, Tensor]]:
    """Yield the id of each parameter that belongs to no layer, and numbers for its last dimension of several values."""
    for path, module in model.named_modules():
        if isinstance(module, (*LAYERS, *WHOLE)):
            continue
        for last, parameter in module._parameters.items():
            if parameter is None or not parameter.is_floating_point() or parameter.numel() < 2:
                continue
            dim = dimension(parameter)
            slot = labels.slot(f"{path}.{last}".lstrip("."), parameter, "both", parameter.shape[dim])
            yield id(parameter), slot.numbers.view(-1, *[1] * (parameter.dim() - dim - 1)).expand(parameter.shape)


def dimension(parameter: Tensor) -> int:
    """Return the dimension of a parameter without layer that holds its channels: the last one of several values."""
    return next(d for d in reversed(range(parameter.dim())) if parameter.shape[d] > 1)


@contextmanager
def _watched(labels: Labels, model: nn.Module) -> Iterator[None]:
    """Tell the labels which layer is running; layers that share their weights, or compute them, are left out."""
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            owners[id(parameter)] = owners.get(id(parameter), 0) + (parameter is not None)

    def enter(name: str, module: nn.Module, args: Any) -> None:
        labels.running.append((name, module))

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        labels.running.pop()

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            shared = any(owners[id(p)] > 1 for p in module._parameters.values())
            if isinstance(module, LAYERS) and not shared and "weight" in module._parameters:  # else it is computed
                hooks.enter_context(module.register_forward_pre_hook(partial(enter, name)))
                hooks.enter_context(module.register_forward_hook(leave, prepend=True))
        yield
