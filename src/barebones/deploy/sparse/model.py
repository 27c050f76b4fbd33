"""A model made sparse for the CPU: its masked layers replaced, its batch-norms folded, its ReLUs and sums fused."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Set
from typing import Any

import torch
from torch import Tensor, nn

from ...scope import bare, matched, parameters
from ..fold import difference, folded, outputs, tolerance
from .graph import fused
from .layer import Choice, SparseLayer, replaceable


def sparsify_for_cpu(
    model: nn.Module, masks: Mapping[str, Tensor], example: Any = None, fuse: bool = True
) -> nn.Module:
    """A copy in eval mode whose convolutions and linear layers compute with kept weights only, where that is faster.

    Its outputs are those of the masked model; the model given stays as it is. Masked layers of type `Linear`, `Conv1d`
    and `Conv2d` become a `SparseLayer`, which keeps weight and bias under their names; all others stay dense. Each
    measures, for every shape of input and number of threads, which way to compute is the fastest on this machine:
    with an example at once for its shapes, else (and for other shapes) when such an input first comes, which takes
    some tenths of a second. `choices` tells what was chosen. The sparse kernel is compiled on first use, for which a
    C++ compiler must be there; without one every layer stays dense, and `choices` says why.

    With an example, batch-norms are folded into the layers they alone read, and with `fuse`, a ReLU or a sum that
    alone reads a layer becomes part of it: the copy is then a `torch.fx.GraphModule` of the same modules. A model that
    cannot be traced, or that gives other outputs when fused, stays unfused. The copy is for inference only: its
    parameters are frozen, and inputs that require gradients are refused.

    The example is what the model is called with: an input, a tuple of arguments, a dict of them by name, or
    (args, kwargs).

    >>> net = nn.Sequential(nn.Linear(4, 2, bias=False), nn.ReLU())
    >>> sparsify_for_cpu(net, {"0.weight": torch.eye(2, 4) > 0})
    Sequential(
      (0): SparseLayer(2×4, 2 kept)
      (1): ReLU()
    )
    """
    found = copy.deepcopy(bare(model)).eval().requires_grad_(False)
    with torch.no_grad():
        for _, parameter, mask in matched(found, masks):
            parameter.masked_fill_(~mask, 0)
    if example is None:
        return _replaced(found, _names(found, masks))
    expected = outputs(found, example)
    found = folded(found, example)
    names = _names(found, masks)
    if fuse and (parts := fused(found, names, example)):
        graph, rectified = parts
        sparse = _replaced(graph, names, rectified)
        if difference(expected, outputs(sparse, example)) <= tolerance(sparse):
            return sparse
    sparse = _replaced(found, names)
    if (gap := difference(expected, outputs(sparse, example))) > (most := tolerance(sparse)):
        raise ValueError(
            f"made sparse, {type(found).__name__} gives other outputs: they differ by {gap:.2g} of the largest, and "
            f"rounding explains {most:g}; it may use the weights of its layers by other ways than calling them"
        )
    return sparse


def choices(model: nn.Module) -> list[Choice]:
    """How the layers of a model that `sparsify_for_cpu` made compute the inputs seen so far, in the model's order.

    >>> net = sparsify_for_cpu(nn.Linear(4, 2), {"weight": torch.eye(2, 4) > 0}, torch.zeros(1, 4))
    >>> [(choice.shape, choice.kept, choice.total) for choice in choices(net)]
    [((1, 4), 2, 8)]
    """
    found = [module for module in model.modules() if isinstance(module, SparseLayer)]
    return [choice for layer in found for choice in layer.choices.values()]


def _names(model: nn.Module, masks: Mapping[str, Tensor]) -> set[str]:
    """The paths of layers under masks that a sparse layer can stand for."""
    named = parameters(model)
    masked = {id(named[name]) for name in masks}
    return {name for name, layer in model.named_modules() if replaceable(layer) and id(layer.weight) in masked}


def _replaced(model: nn.Module, names: Set[str], rectified: Set[str] = frozenset()) -> nn.Module:
    """The model with sparse layers in the place of these, changed as it is; a layer used under two names stays one."""
    made: dict[nn.Module, SparseLayer] = {}
    for name, layer in model.named_modules():
        if name in names:
            made[layer] = SparseLayer(layer, name)
            made[layer].relu = name in rectified
    if model in made:
        return made[model]
    for module in list(model.modules()):
        for name, child in module._modules.items():
            if child in made:
                module._modules[name] = made[child]
    return model
