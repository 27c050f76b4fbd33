"""Models for sparse inference on the CPU: masked layers replaced, batch-norms folded, ReLUs and sums fused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from copy import deepcopy
from functools import partial
from typing import Any

from torch import Tensor, nn

from ...running.outputs import device_of
from ...running.rng import forked
from ...scope import masked_copy, parameters, refuse_scripted
from ..equality import unequal, with_values
from ..fold import Pairs, foldable, with_folded
from .graph import fused
from .layer import LayerChoice, SparseLayer, replaceable


def sparsify_for_cpu(
    model: nn.Module, masks: Mapping[str, Tensor], example: Any = None, fuse: bool = True
) -> nn.Module:
    """Return a copy in eval mode whose convolutions and linear layers compute with kept weights, if that is faster.

    The copy has the outputs of the masked model, and the model itself does not change. Masked layers of type `Linear`,
    `Conv1d` and `Conv2d` become a `SparseLayer`, which keeps weight and bias under their names; all other layers stay
    dense. Each sparse layer measures which implementation is the fastest on this machine, for each input shape and
    number of threads. It does so right away for the shapes of the example, and for any other shape when the first such
    input arrives, which takes a few tenths of a second. `choices` lists the results. The sparse kernel is compiled on
    first use, which needs a C++ compiler. Without one every layer stays dense, and `choices` says why.

    If there is an example, a batch-norm that is the only reader of a layer is folded into that layer. With `fuse`, a
    ReLU or a sum that is the only reader of a layer becomes part of it, and the copy is a `torch.fx.GraphModule` of the
    same modules. A model stays unfused if it cannot be traced, and unfused or unfolded if its outputs would differ:
    they are compared with the weights it has, and with others. The copy is for inference only: its parameters are
    frozen, and inputs that require gradients are an error.

    The example is what the model is called with: one input, a tuple of arguments, a dict of arguments by name, or
    (args, kwargs).

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 2, bias=False), nn.ReLU())
    >>> sparsify_for_cpu(net, {"0.weight": torch.eye(2, 4) > 0})
    Sequential(
      (0): SparseLayer(2×4, 2 kept)
      (1): ReLU()
    )
    """
    refuse_scripted(model)
    masked = masked_copy(model, masks).eval().requires_grad_(False)
    names = _names(masked, masks)
    if example is None:
        return _replaced(masked, names)
    problem = ""
    with forked(device_of(masked, example)):
        for sparse, pairs in _attempts(masked, names, example, fuse):
            redo = partial(_redone, sparse, pairs)
            if not (problem := unequal(masked, sparse, example, redo)):
                return sparse
    raise ValueError(
        f"{type(masked).__name__} cannot be made sparse: {problem}; "
        "it may use its layers in other ways than calling them"
    )


def _attempts(masked: nn.Module, names: Set[str], example: Any, fuse: bool) -> Iterator[tuple[nn.Module, Pairs]]:
    """Yield sparse copies, the fastest first, each with the batch-norms that were folded."""
    pairs = foldable(masked, example)
    network = with_folded(deepcopy(masked), pairs)
    if fuse and (fusion := fused(network, names, example)):
        graph, rectified = fusion
        yield _replaced(graph, names, rectified), pairs
    yield _replaced(network, names), pairs
    if pairs:
        yield _replaced(deepcopy(masked), names), []


def _redone(sparse: nn.Module, pairs: Pairs, network: nn.Module) -> nn.Module:
    """Return the sparse model with the values of another network."""
    return with_values(sparse, with_folded(network, pairs))


def choices(model: nn.Module) -> list[LayerChoice]:
    """List which implementation each layer of a model from `sparsify_for_cpu` uses for the inputs seen so far.

    >>> import torch
    >>> net = sparsify_for_cpu(nn.Linear(4, 2), {"weight": torch.eye(2, 4) > 0}, torch.zeros(1, 4))
    >>> [(choice.shape, choice.kept, choice.total) for choice in choices(net)]
    [((1, 4), 2, 8)]
    """
    layers = [module for module in model.modules() if isinstance(module, SparseLayer)]
    return [choice for layer in layers for choice in layer.choices.values()]


def _names(model: nn.Module, masks: Mapping[str, Tensor]) -> set[str]:
    """Return the names of the masked layers that a sparse layer can replace."""
    named = parameters(model)
    masked = {id(named[name]) for name in masks}
    return {name for name, layer in model.named_modules() if replaceable(layer) and id(layer.weight) in masked}


def _replaced(model: nn.Module, names: Set[str], rectified: Set[str] = frozenset()) -> nn.Module:
    """Replace the named layers of the model by sparse ones; a layer under two names becomes one sparse layer.

    In a traced graph, a layer that is never called, but whose weight is read, is no layer any more, and stays.
    """
    sparse: dict[nn.Module, SparseLayer] = {}
    for name, layer in model.named_modules():
        if name in names and replaceable(layer):
            sparse[layer] = SparseLayer(layer, name)
            sparse[layer].relu = name in rectified
    if model in sparse:
        return sparse[model]
    for module in list(model.modules()):
        for name, child in module._modules.items():
            if child in sparse:
                module._modules[name] = sparse[child]
    return model
