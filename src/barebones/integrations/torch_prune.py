"""torch.nn.utils.prune: its masks as ours, and a model without its hooks."""

import torch
from torch import nn
from torch.nn.utils import prune

from ..masks import Masks
from ..messages import shortened
from ..scope import layers, parameters


def from_torch_prune(model: nn.Module) -> Masks:
    """Return the masks that `torch.nn.utils.prune` has put into a model, and make its parameters plain again.

    `weight_orig` and `weight_mask` become `weight` with zeros where it is pruned. Masks of biases and other parameters
    are returned, too. Parameters stay the same objects, so an optimizer remains valid. Only `hold` keeps the zeros now.

    >>> model = nn.Sequential(nn.Linear(4, 2))
    >>> _ = prune.random_unstructured(model[0], "weight", amount=6)
    >>> from_torch_prune(model)
    Masks(1 layer, 2 of 8 weights kept)
    >>> int((model[0].weight == 0).sum())
    6
    """
    pruned = [
        (module, hook._tensor_name)
        for _, module in layers(model)
        for hook in module._forward_pre_hooks.values()
        if isinstance(hook, prune.BasePruningMethod)
    ]
    if not pruned:
        raise ValueError("torch.nn.utils.prune has pruned no parameter of this model; pass it before prune.remove")
    kept = {getattr(module, f"{name}_orig"): getattr(module, f"{name}_mask") != 0 for module, name in pruned}
    tied = []
    for path, module in layers(model):
        for name, parameter in module._parameters.items():
            mask = module._buffers.get(f"{name.removesuffix('_orig')}_mask")
            if parameter in kept and (mask is None or not torch.equal(mask != 0, kept[parameter])):
                tied.append(f"{path}.{name}")
    if tied:
        raise ValueError(f"{shortened(tied)} shares a parameter whose pruning differs; give all its modules one mask")
    for module, name in pruned:
        prune.remove(module, name)
    return Masks({name: kept[parameter] for name, parameter in parameters(model).items() if parameter in kept})
