"""Initialization: explicit, on a whole network, before anything is pruned."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd


def initialize(model: nn.Module, generator: torch.Generator | None = None) -> nn.Module:
    """Set the parameters in place and return the model.

    The weights of every convolution and linear layer are drawn from N(0, 2 / fan-in) (Kaiming normal), their
    biases are 0; batch-norms scale by 1, shift by 0 and forget their statistics. Other parameters stay.

    >>> a, b = (initialize(nn.Linear(3, 2), torch.Generator().manual_seed(1)) for _ in range(2))
    >>> torch.equal(a.weight, b.weight)
    True
    """
    for module in model.modules():
        if isinstance(module, _ConvNd | nn.Linear):
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu", generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, _BatchNorm):
            module.reset_parameters()  # 1, 0 and the running statistics of a new one
    return model
