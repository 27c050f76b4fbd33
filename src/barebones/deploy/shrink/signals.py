"""Signals: whether each input channel of a layer depends on the model's input or is constant.

A channel carries a constant signal if no path of kept weights leads to it from the model's input: its value is then
made of biases and shifts alone, the same for every input and at every position.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ...paths import trace
from ...running.outputs import outputs

SLACK = 1e-5  # relative; a channel whose values differ by at most this counts as constant
Watch = Callable[[str, Tensor], None]  # gets the name of a layer and its input, as (channels, values)


def reached(
    model: nn.Module, masks: Mapping[str, Tensor], example: Any, layers: Mapping[str, nn.Module]
) -> tuple[dict[str, Tensor], bool]:
    """Return which input channels of each layer a path of kept weights connects with the model's input.

    If the forward pass reads values in Python, or a length that depends on them, this is also returned, and all
    channels count as reached.
    """
    channels: dict[str, Tensor] = {}

    def watch(name: str, values: Tensor) -> None:
        channels[name] = channels.get(name, False) | (values != 0).any(1)

    with _watched(layers, watch):
        traced = trace(model, masks, example, backward=False, strict=True)
    if traced.peeked:
        channels = {name: torch.ones_like(bits) for name, bits in channels.items()}
    return channels, traced.peeked


def constants(model: nn.Module, runs: list[tuple[bool, Any]], layers: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Return the value of each input channel that is the same in all runs (train mode, input), else NaN."""
    values: dict[str, Tensor] = {}

    def watch(name: str, observed: Tensor) -> None:
        if not observed.numel():  # an expert that gets no token
            return
        low, high = observed.amin(1), observed.amax(1)
        value = values.setdefault(name, low.clone())
        slack = SLACK * (1 + value.abs())
        constant = ((low - value).abs() <= slack) & ((high - value).abs() <= slack)
        constant &= (value != 0) | ((low == 0) & (high == 0))  # zero is exactly zero
        values[name] = torch.where(constant, value, torch.nan)

    with _watched(layers, watch):
        for train, example in runs:
            outputs(model.train(train), example)
    return values


@contextmanager
def _watched(layers: Mapping[str, nn.Module], watch: Watch) -> Iterator[None]:

    def hook(name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                x = (args[0] if args else kwargs["input"]).detach()
                dim = -1 if isinstance(module, nn.Linear) else x.dim() - len(module.kernel_size) - 1  # type: ignore[arg-type]
                watch(name, x.movedim(dim, 0).unsqueeze(-1).flatten(1).cpu())  # a single vector has one value each

        return look

    handles = [layer.register_forward_pre_hook(hook(name), with_kwargs=True) for name, layer in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
