"""Equality: whether a changed network computes what the original does, whatever the values of its weights are.

Two networks may agree because of the values that they have now: a branch that is multiplied by zero hides whatever a
change did to it. So they are compared with the values they have, and again with random weights, scales, biases and
statistics, on inputs of several sizes. Randomized networks are compared in float64 if they run in it.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..running.inputs import call, mapped
from ..running.modes import restored
from ..running.outputs import mismatch, outputs, rounded, tolerance
from ..running.randomize import randomize_
from ..words import first_line

RANGES = ((0, 1), (-1, 1), (0, 255), (-1000, 1000))  # of random inputs; each has its own random weights


def unequal(network: nn.Module, changed: nn.Module, example: Any, change: Callable[[nn.Module], nn.Module]) -> str:
    """Say how a changed network differs from the original, as a phrase for an error message; empty if it does not.

    `change` makes the same change to a copy of the network that has other values.
    """
    if problem := _difference(network, changed, example):
        return problem
    randomized, example = _in_float64(network, call(example))
    for seed, (low, high) in enumerate(RANGES):
        randomize_(randomized, seed)
        inputs = mapped(example, partial(_random, seed=seed, low=low, high=high))
        if not _runs(randomized, inputs):
            inputs = example
        if problem := _difference(randomized, change(deepcopy(randomized)), inputs, seed):
            return f"with other weights and inputs, {problem}"
    return ""


def with_values(network: nn.Module, source: nn.Module) -> nn.Module:
    """Return a copy of a network that has the parameters and buffers of another one, matched by name.

    >>> source = nn.Linear(2, 2)
    >>> with_values(nn.Linear(2, 2), source).weight is source.weight
    True
    """
    copy = deepcopy(network, {id(t): t for t in (*network.parameters(), *network.buffers())})
    given = dict(source.named_parameters(remove_duplicate=False)) | dict(source.named_buffers(remove_duplicate=False))
    for path, module in copy.named_modules(remove_duplicate=False):
        for table in (module._parameters, module._buffers):
            for name in table:
                table[name] = given.get(f"{path}.{name}" if path else name, table[name])
    return copy


def _difference(network: nn.Module, changed: nn.Module, example: Any, seed: int = 0) -> str:
    with restored(network):  # a network that counts its calls must not have counted this one
        expected = outputs(network, example, seed)
    try:
        with restored(changed):
            actual = outputs(changed, example, seed)
    except Exception as error:  # a user's forward may raise anything when its modules are others
        return f"the changed network does not run ({first_line(error)})"
    return mismatch(expected, actual, tolerance(network), lambda: rounded(network, example, seed, expected))


def _in_float64(network: nn.Module, example: Any) -> tuple[nn.Module, Any]:
    """Return a copy and the example in float64, or in its own precision if the network runs only in that."""
    double, doubles = (
        deepcopy(network).double(),
        mapped(example, lambda leaf: leaf.double() if _is_real(leaf) else leaf),
    )
    return (double, doubles) if _runs(double, doubles) else (deepcopy(network), example)


def _runs(network: nn.Module, example: Any) -> bool:
    try:
        outputs(network, example)
    except Exception:  # of any class: it is the user's forward
        return False
    return True


def _random(leaf: Any, seed: int, low: float, high: float) -> Any:
    """Return random numbers in place of real ones; integers and truth values have a meaning and stay."""
    if not _is_real(leaf):
        return leaf
    drawn = torch.rand(leaf.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    return (drawn * (high - low) + low).to(leaf)


def _is_real(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()
