"""Initialization: explicit, on a whole network, before anything is pruned."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import UninitializedParameter

SCHEMES: dict[str, Callable[..., Tensor]] = {
    "kaiming-fan-in": partial(nn.init.kaiming_normal_, mode="fan_in", nonlinearity="relu"),  # N(0, 2 / fan-in)
    "kaiming-fan-out": partial(nn.init.kaiming_normal_, mode="fan_out", nonlinearity="relu"),  # N(0, 2 / fan-out)
    "xavier": nn.init.xavier_normal_,  # N(0, 2 / (fan-in + fan-out))
    "orthogonal": nn.init.orthogonal_,  # as a matrix of one row per output: orthonormal rows, or columns if fewer
}


def initialize(
    model: nn.Module, how: str | torch.Generator = "kaiming-fan-in", generator: torch.Generator | None = None
) -> nn.Module:
    """Set the parameters in place and return the model.

    The weights of every convolution and linear layer are drawn by the scheme `how`, a key of `SCHEMES`, and their
    biases are 0; batch-norms scale by 1, shift by 0 and forget their statistics. Other parameters stay.
    `initialize(model, generator)` is the default scheme with that generator.

    >>> a, b = (initialize(nn.Linear(3, 2), generator=torch.Generator().manual_seed(1)) for _ in range(2))
    >>> torch.equal(a.weight, b.weight)
    True
    """
    if isinstance(how, torch.Generator):
        generator, how = how, "kaiming-fan-in"
    if how not in SCHEMES:
        raise ValueError(f"there is no initialization {how!r}; choose one of {', '.join(SCHEMES)}")
    for name, module in model.named_modules():
        if any(isinstance(p, UninitializedParameter) for p in module.parameters(recurse=False)):
            raise ValueError(f"{name or 'the model'} is lazy and has no weights yet; run the model once first")
        if isinstance(module, _ConvNd | nn.Linear):
            SCHEMES[how](module.weight, generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, _BatchNorm):
            module.reset_parameters()  # 1, 0 and the running statistics of a new one
    return model
