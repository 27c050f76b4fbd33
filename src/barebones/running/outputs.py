"""Outputs: what a model returns for an example, and whether two networks return the same.

Two outputs are the same if every tensor has the same shape, and if no value differs by more than `tolerance` times the
largest absolute value of its tensor. The tolerance allows for rounding, and ten times more in train mode, where
batch-norm divides by the standard deviation of few values. Where large values cancel, rounding explains more than that.
How much is measured: the network runs once more with weights and inputs that differ by one rounding.
"""

import math
from collections.abc import Callable
from copy import deepcopy
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from .inputs import call, mapped, tensors
from .precision import autocast, computing
from .rng import forked

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
IN_TRAIN_MODE = 10  # times the tolerance
SMALLEST = 1e-30  # a tensor of smaller values is compared as if its largest were this
ROUNDINGS = 100  # as many times the effect of one rounding of each weight may come from roundings on the way


def outputs(model: nn.Module, example: Any, seed: int = 0) -> Any:
    """Return what the model returns for a copy of the example, without gradients and TF32, and with this `seed`."""
    device = device_of(model, example)
    args, kwargs = mapped(call(example), lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf)
    with torch.no_grad(), forked(device, seed), computing(device, "fp32"), autocast("fp32", device):
        return model(*args, **kwargs)


def rounded(model: nn.Module, example: Any, seed: int = 0, expected: Any = None) -> Any:
    """Return the outputs of a copy whose weights, and the example's numbers, are each up or down by one rounding."""
    if expected is not None and difference(expected, outputs(deepcopy(model), example, seed)) > 0:
        return expected  # randomness is not rounding

    def neighbor(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
            return leaf
        # Bits of multiples of a large number look random, and no random function is called: one may be replayed here.
        bits = torch.arange(leaf.numel(), device=leaf.device).mul_(2654435761).bitwise_right_shift_(16).bitwise_and_(1)
        signs = bits.mul_(2).sub_(1).view(leaf.shape)
        return (leaf.detach().double() * (1 + torch.finfo(leaf.dtype).eps * signs)).to(leaf.dtype)

    copy = deepcopy(model)
    for parameter in copy.parameters():
        parameter.data = neighbor(parameter)
    return outputs(copy, mapped(call(example), neighbor), seed)


def difference(expected: Any, actual: Any) -> float:
    """Return the largest difference between two outputs, relative to the largest value of the expected tensor.

    It is infinite if the shapes differ, or if one value is NaN or infinite where the other is not. Integers are not
    compared: an index may change where two values are equal up to rounding.

    >>> difference(torch.tensor([1.0, -4.0]), torch.tensor([1.0, -3.0]))
    0.25
    """
    return max(_differences(expected, actual), default=0.0)


def tolerance(model: nn.Module, train: bool = False) -> float:
    """Return how large a `difference` rounding can explain, for a model with parameters of these types.

    >>> tolerance(nn.Linear(2, 2)), tolerance(nn.Linear(2, 2), train=True), tolerance(nn.Linear(2, 2).double())
    (0.0001, 0.001, 1e-09)
    """
    limit = max((TOLERANCE.get(p.dtype, 0.0) for p in model.parameters()), default=0.0) or TOLERANCE[torch.float32]
    return limit * IN_TRAIN_MODE if train else limit


def mismatch(expected: Any, actual: Any, limit: float, rounded: Callable[[], Any] | None = None) -> str:
    """Say how two outputs differ by more than `limit`, or than the outputs of `rounded` do; empty if they do not.

    >>> mismatch(torch.tensor([1.0, -4.0]), torch.tensor([1.0, -3.0]), limit=1e-4)
    'the outputs differ by 0.25 of their largest value, and rounding explains only 0.0001'
    >>> mismatch(torch.ones(2), torch.ones(3), limit=1e-4)
    'the outputs have the shapes [(3,)] instead of [(2,)]'
    """
    if _shapes(expected) != _shapes(actual):
        return f"the outputs have the shapes {_shapes(actual)} instead of {_shapes(expected)}"
    gaps = _differences(expected, actual)
    limits = [limit] * len(gaps)
    if rounded is not None and any(gap > limit for gap in gaps):
        noises = _differences(expected, rounded())
        limits = [max(limit, ROUNDINGS * noise) if math.isfinite(noise) else limit for noise in noises]
    gap, limit = max(zip(gaps, limits, strict=True), key=lambda pair: pair[0] - pair[1], default=(0.0, limit))
    if gap <= limit:
        return ""
    return f"the outputs differ by {gap:.2g} of their largest value, and rounding explains only {limit:g}"


def _differences(expected: Any, actual: Any) -> list[float]:
    if _shapes(expected) != _shapes(actual):
        return [float("inf")]
    pairs = zip(tensors(expected), tensors(actual), strict=True)
    return [_relative(a, b) for a, b in pairs if a.is_floating_point() or a.is_complex()]


def device_of(model: nn.Module, example: Any) -> torch.device:
    """Return the device of the model's first tensor, or of the example's."""
    first = next(chain(model.parameters(), model.buffers(), tensors(call(example))), None)
    return torch.device("cpu") if first is None else first.device


def _shapes(tree: Any) -> list[tuple[int, ...]]:
    return [tuple(t.shape) for t in tensors(tree)]


def _relative(expected: Tensor, actual: Tensor) -> float:
    if not expected.numel():
        return 0.0
    wide = torch.complex128 if expected.is_complex() else torch.float64
    expected, actual = expected.detach().cpu().to(wide), actual.detach().cpu().to(wide)
    gap = (expected - actual).abs().nan_to_num(nan=float("inf"), posinf=float("inf"))
    gap[(expected == actual) | (expected.isnan() & actual.isnan())] = 0
    scale = expected.abs().nan_to_num(nan=0, posinf=0).max().clamp(min=SMALLEST)
    return float(gap.max() / scale)
