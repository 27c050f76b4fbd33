"""Sources of masks: what a callback may be given instead of masks."""

from collections.abc import Callable, Mapping
from os import PathLike

import torch.distributed
from torch import Tensor, nn

from ..files.masks import load_masks
from ..masks import Masks

MASKS = "masks.safetensors"  # in the folder of a checkpoint

Source = Mapping[str, Tensor] | str | PathLike[str] | Callable[[nn.Module], Mapping[str, Tensor]]


def masks_for(model: nn.Module, source: Source) -> Mapping[str, Tensor]:
    """Return masks as they are, from a mask file, or from a function of the model; all ranks take those of the first.

    >>> masks_for(nn.Linear(2, 1), lambda model: {"weight": model.weight > 9})
    {'weight': tensor([[False, False]])}
    """
    if isinstance(source, str | PathLike):
        return load_masks(source)
    if not callable(source):
        return source
    masks = source(model)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        device = next(model.parameters()).device  # a device that the processes can exchange tensors from
        masks = Masks({name: mask.to(device, torch.uint8) for name, mask in masks.items()})
        for mask in masks.values():
            torch.distributed.broadcast(mask, 0)
        return Masks({name: mask.bool() for name, mask in masks.items()})
    return masks
