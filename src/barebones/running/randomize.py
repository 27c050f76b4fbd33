"""Randomizing: random values for a network, so that a comparison does not depend on the values it has now.

A branch that is multiplied by zero, as many are at initialization, hides whatever a change does to it. With random
values every path carries a signal.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

SHIFTS = ("bias", "beta", "shift")  # parts of the names of parameters that are added rather than multiplied
NEARLY_ZERO = 0.01  # a scale below this hides what it is multiplied with
SHIFT_SIZE = 0.5  # the standard deviation of biases and shifts; signals have about 1


def randomize_(network: nn.Module, seed: int, masked: Iterable[tuple[str, nn.Parameter, Tensor]] = ()) -> nn.Module:
    """Draw all float parameters, batch-norm statistics and zeros in buffers anew, and return the network.

    Weights are normal, with a variance that keeps the size of signals, and zero where `masked` (from `scope.matched`)
    prunes. Scales, and other parameters of one dimension, are between 0.5 and 1.5; biases and shifts are normal. What
    is nearly zero in a buffer may be a scale that a schedule raises later.

    >>> layer = randomize_(nn.Linear(2, 2), seed=0)
    >>> bool(torch.equal(layer.weight, randomize_(nn.Linear(2, 2), seed=0).weight))
    True
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    masks = {id(parameter): mask for _, parameter, mask in masked}
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.is_floating_point() or parameter.is_complex():
                mask = masks.get(id(parameter))
                parameter.copy_(_drawn(name.rpartition(".")[2], parameter, mask, generator))
        for name, buffer in network.named_buffers():
            if name.endswith("running_mean"):
                buffer.copy_(_normal(buffer, generator))
            elif name.endswith("running_var"):
                buffer.copy_(_uniform(buffer, generator))
            elif buffer.is_floating_point() and not buffer.is_sparse and (hidden := buffer.abs() < NEARLY_ZERO).any():
                buffer.copy_(torch.where(hidden, _uniform(buffer, generator).to(buffer), buffer))
    return network


def _drawn(name: str, parameter: Tensor, mask: Tensor | None, generator: torch.Generator) -> Tensor:
    kept = torch.ones(parameter.shape, dtype=torch.bool, device="cpu") if mask is None else mask.cpu()
    layer = parameter.dim() > 1 and "weight" in name
    if not layer and sum(size > 1 for size in parameter.shape) <= 1:  # a scale per channel may have the shape (C, 1, 1)
        shift = any(part in name for part in SHIFTS)
        return (_normal(parameter, generator) * SHIFT_SIZE if shift else _uniform(parameter, generator)) * kept
    fan_in = kept.flatten(1).sum(1).clamp(min=1).view(-1, *[1] * (parameter.dim() - 1))
    return _normal(parameter, generator) * (2 / fan_in).sqrt() * kept  # the 2 makes up for a ReLU


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=torch.float, device="cpu")


def _uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(like.shape, generator=generator, dtype=torch.float, device="cpu") + 0.5
