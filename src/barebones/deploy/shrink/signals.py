"""Signals: what arrives at each input channel of a layer, the input's or a constant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...paths import trace
from ...running.inputs import call
from ...running.rng import forked
from .coupling import copied, hooked

Watch = Callable[[str, Tensor], None]


def reached(
    model: nn.Module, masks: Mapping[str, Tensor], example: Any, readers: Mapping[str, nn.Module]
) -> tuple[dict[str, Tensor], bool]:
    """Which input channels of each layer lie behind a path of kept weights from the model's input.

    And whether the forward looks at values in Python, or at how many there are of a kind: then everything may.
    """
    found: dict[str, Tensor] = {}

    def watch(name: str, lines: Tensor) -> None:
        found[name] = found.get(name, False) | (lines != 0).any(1)

    with hooked(_hooks(readers, watch)):
        seen = trace(model, masks, example, backward=False, strict=True)
    if seen.peeked:
        found = {name: torch.ones_like(bits) for name, bits in found.items()}
    return found, seen.peeked


def constants(
    model: nn.Module,
    runs: list[tuple[bool, Any]],
    readers: Mapping[str, nn.Module],
    device: torch.device,
) -> dict[str, Tensor]:
    """The value of each input channel where it is one and the same in all runs, (train mode, input); else NaN.

    The model's buffers move.
    """
    found: dict[str, Tensor] = {}

    def watch(name: str, lines: Tensor) -> None:
        low, high = lines.amin(1), lines.amax(1)
        value = found.setdefault(name, low.clone())
        slack = 1e-5 * (1 + value.abs())
        same = ((low - value).abs() <= slack) & ((high - value).abs() <= slack)
        same &= (value != 0) | ((low == 0) & (high == 0))
        found[name] = torch.where(same, value, torch.nan)

    with torch.no_grad(), hooked(_hooks(readers, watch)), forked(device):
        for mode, example in runs:
            args, kwargs = copied(call(example))
            model.train(mode)(*args, **kwargs)
    return found


def _hooks(readers: Mapping[str, nn.Module], watch: Watch) -> list[Any]:
    def hook(name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                x = (args[0] if args else kwargs["input"]).detach()
                dim = -1 if isinstance(module, nn.Linear) else x.dim() - len(module.kernel_size) - 1  # type: ignore[arg-type]
                watch(name, x.movedim(dim, 0).flatten(1).cpu())

        return look

    return [module.register_forward_pre_hook(hook(name), with_kwargs=True) for name, module in readers.items()]
