"""Randomized networks: a cut network and its expanded one are compared with random values in both.

With the present values a wrong cut may not show: a branch may be multiplied by zero until training has begun.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...masks import Masks
from ...running.backward import gradients
from ...running.modes import restored
from ...running.outputs import mismatch, tolerance
from ...running.randomize import randomize_
from ...scope import matched, parameters
from .comparison import Comparison, Unusable, accepts, runnable
from .cut import kernels, scatter

# A gradient may be zero up to rounding, as that of a bias in front of a batch-norm. So a gradient below this fraction
# of the largest one is compared as if it were that large.
SMALLEST_GRADIENT = 1e-4
CHANGE = "without them, with other values"


def sever(large: nn.Module, cells: Mapping[str, Tensor]) -> None:
    """Set the connections between removed and kept channels to zero, by layer as (outputs, inputs)."""
    with torch.no_grad():
        for name, reads in cells.items():
            layer: Any = large.get_submodule(name)
            layer.weight.masked_fill_(kernels(reads, layer).to(layer.weight.device), 0)


def cut_masks(masks: Mapping[str, Tensor], origin: Mapping[str, Tensor], small: nn.Module) -> Masks:
    """Return the masks of the weights that are left."""
    named = parameters(small)
    return Masks({n: masks[n].flatten()[origin[n]].to(named[n].device) for n in named if n in masks})


def check_randomized(
    model: nn.Module,
    small: nn.Module,
    masks: Mapping[str, Tensor],
    origin: Mapping[str, Tensor],
    severed: Mapping[str, Tensor],
    rests_on_values: bool,
    comparison: Comparison,
) -> bool:
    """Raise `Unusable` unless a cut network and the model agree for random values, in outputs and gradients.

    The values are as after training: those of the cut network are in the model, at the indices of `origin`, and the
    `severed` connections are zero. If the model computes constants from removed channels (`rests_on_values`), these
    and what is frozen keep their values. Return whether the comparison tells anything: whether outputs differ at all.
    """
    kept = cut_masks(masks, origin, small)
    large, small = deepcopy(model), deepcopy(small)
    sever(large, severed)
    connected = _connected(large, masks, severed)
    frozen = [(p, p.detach().clone()) for p in small.parameters() if rests_on_values and not p.requires_grad]
    if not rests_on_values:
        randomize_(large, len(comparison.scaled), matched(large, connected))
    telling = False
    for seed, inputs in enumerate(comparison.scaled):
        randomize_(small, seed, matched(small, kept))
        with torch.no_grad():
            for parameter, value in frozen:
                parameter.copy_(value)
        scatter(large, small, origin)
        if next(large.parameters()).device.type != "cpu" and not accepts(deepcopy(large).cpu(), inputs):
            continue  # it computes indices from its values, and these are out of range
        with restored(large), restored(small):
            for train, backward in _passes(seed, comparison.trains):
                flowing = kept if backward else None
                telling |= _check(large.train(train), small.train(train), inputs, origin, flowing, comparison)
    return telling


def _passes(draw: int, trains: bool) -> list[tuple[bool, bool]]:
    """Return how networks run with each draw of their values, as (in train mode, with gradients).

    A backward pass costs twice as much as a forward pass, so gradients are compared once in each mode.
    """
    if not trains:
        return [(False, draw == 0)]
    return [(False, draw == 1), (True, draw == 0)] if draw < 2 else [(False, False)]


def _connected(large: nn.Module, masks: Mapping[str, Tensor], severed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the masks of the large network without the severed connections."""
    names = {id(parameter): name for name, parameter in parameters(large).items()}
    connected = dict(masks)
    for path, reads in severed.items():
        layer: Any = large.get_submodule(path)
        name = names[id(layer.weight)]
        connected[name] = connected.get(name, torch.ones(layer.weight.shape, dtype=torch.bool)) & ~kernels(reads, layer)
    return connected


def _check(
    large: nn.Module,
    small: nn.Module,
    inputs: Any,
    origin: Mapping[str, Tensor],
    kept: Masks | None,
    comparison: Comparison,
) -> bool:
    """Compare the outputs of two networks, and (with masks) the gradients of the kept weights that both have.

    Return whether the outputs tell anything. Nothing is compared if the large network does not run with these values,
    or returns numbers that are not finite.
    """
    of_large, of_small = parameters(large), parameters(small)
    both = [name for name, p in of_small.items() if p.requires_grad and name in of_large and name in origin]
    both = [] if kept is None else both

    def run(network: nn.Module, named: Mapping[str, Tensor]) -> tuple[list[Tensor], list[Tensor | None]]:
        if not both:
            return comparison.run(network, inputs), []
        with comparison.random_numbers():
            return gradients(network, inputs, [named[name] for name in both])

    try:
        expected, flows = run(large, of_large)
    except Exception:  # it does not run with these values, or has no gradients
        return kept is not None and _check(large, small, inputs, origin, None, comparison)
    floats = [t for t in expected if t.is_floating_point() or t.is_complex()]
    if any(bool(t.isnan().any()) for t in floats):
        return False
    with runnable(CHANGE):
        returned, found = run(small, of_small)
    mode = f"{CHANGE}, in {'train' if large.training else 'eval'} mode,"
    again = partial(comparison.rounded, large, large.training, inputs)
    if reason := mismatch(expected, returned, tolerance(large, large.training), again):
        raise Unusable(f"{mode} {reason}")
    gathered = [
        None if flow is None else flow.flatten()[origin[name].to(flow.device)]
        for name, flow in zip(both, flows, strict=True)
    ]
    gap = _gap(gathered, found, [None if kept is None else kept.get(name) for name in both])
    if gap > tolerance(large, train=True):
        raise Unusable(f"{mode} the gradients differ by {gap:.2g} of their largest value")
    return any(bool((t[t.isfinite()] != t[t.isfinite()][:1]).any()) for t in floats)


def _gap(expected: Sequence[Tensor | None], actual: Sequence[Tensor | None], masks: Sequence[Tensor | None]) -> float:
    """Return the largest difference of gradients at kept weights, relative to the largest value of each.

    A gradient that is None is zero. One that is not finite in the first network is not compared.
    """
    floor = SMALLEST_GRADIENT * max(
        (float(t.abs().max()) for t in expected if t is not None and _finite(t)), default=0.0
    )
    largest = 0.0
    for one, other, mask in zip(expected, actual, masks, strict=True):
        one, other = _or_zeros(one, other), _or_zeros(other, one)
        if one is None or other is None or not _finite(one):
            continue
        gap = (one - other).abs() if mask is None else (one - other).abs()[mask]
        if gap.numel():
            largest = max(largest, float(gap.max()) / max(float(one.abs().max()), floor, 1e-30))
    return largest


def _finite(flow: Tensor) -> bool:
    return flow.numel() > 0 and bool(flow.isfinite().all())


def _or_zeros(flow: Tensor | None, like: Tensor | None) -> Tensor | None:
    return torch.zeros_like(like) if flow is None and like is not None else flow
