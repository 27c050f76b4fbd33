"""Initialization of a whole network, as an explicit step before pruning."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import UninitializedParameter

from ..messages import unknown

SCHEMES: dict[str, Callable[..., Tensor]] = {
    "kaiming-fan-in": partial(nn.init.kaiming_normal_, mode="fan_in", nonlinearity="relu"),  # N(0, 2 / fan-in)
    "kaiming-fan-out": partial(nn.init.kaiming_normal_, mode="fan_out", nonlinearity="relu"),  # N(0, 2 / fan-out)
    "xavier": nn.init.xavier_normal_,  # N(0, 2 / (fan-in + fan-out))
    "orthogonal": nn.init.orthogonal_,  # one row per output; rows, or columns if fewer, are orthonormal
}

NORM_SCALES: dict[str, Callable[..., Tensor]] = {  # the scales of one batch-norm
    "ones": lambda scales, generator: nn.init.ones_(scales),
    "uniform": nn.init.uniform_,  # U(0, 1), as torch drew them before its version 1.2
}


def initialize(
    model: nn.Module,
    scheme: str = "kaiming-fan-in",
    generator: torch.Generator | None = None,
    *,
    norm_scale: str = "ones",
) -> nn.Module:
    """Initialize the model in place and return it.

    The weights of every convolution and linear layer are drawn by the scheme `scheme`, a key of `SCHEMES`, and their
    biases are set to 0. Batch-norms get shift 0, new running statistics and the scale 1; with `norm_scale="uniform"`
    each channel's scale is drawn from U(0, 1), as torch did before version 1.2. The weights are the same with both.
    Other parameters do not change.

    >>> a, b = (initialize(nn.Linear(3, 2), generator=torch.Generator().manual_seed(1)) for _ in range(2))
    >>> torch.equal(a.weight, b.weight)
    True
    """
    if scheme not in SCHEMES:
        raise ValueError(unknown("initialization", scheme, SCHEMES))
    if norm_scale not in NORM_SCALES:
        raise ValueError(unknown("scale of batch-norms", norm_scale, NORM_SCALES))
    for name, module in model.named_modules():
        if any(isinstance(p, UninitializedParameter) for p in module.parameters(recurse=False)):
            raise ValueError(f"{name or 'the model'} is lazy and has no weights yet; run the model once first")
        if isinstance(module, _ConvNd | nn.Linear):
            SCHEMES[scheme](module.weight, generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, _BatchNorm):
            module.reset_parameters()
    for module in model.modules():  # after all weights, so that these do not depend on it
        if isinstance(module, _BatchNorm) and module.affine:
            NORM_SCALES[norm_scale](module.weight, generator=generator)
    return model
