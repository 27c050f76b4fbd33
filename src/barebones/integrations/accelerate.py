"""Accelerate: keeps a network sparse in a loop of your own, also when `load_state` resumes it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..files.masks import load_masks, save_masks
from ..holding import Hold, audit, hold
from .source import MASKS, Source, masks_for

try:
    from accelerate import Accelerator
except ImportError:
    raise ImportError("this needs accelerate: pip install 'barebones[accelerate]'") from None


@contextmanager
def keep_sparse(accelerator: Accelerator, model: nn.Module, masks: Source, optimizer: Optimizer) -> Iterator[Hold]:
    """Hold masks of a prepared model in a `with` block, in which `save_state` and `load_state` include the masks.

    `masks` are masks, a mask file, or a function that prunes the model and returns masks. At the end of the block, a
    pruned weight that is not zero is an error.
    """

    def save(models: list[nn.Module], weights: list[Any], folder: str) -> None:
        if accelerator.is_main_process:
            save_masks(handle.state_dict(), Path(folder, MASKS))

    def load(models: list[nn.Module], folder: str) -> None:
        handle.load_state_dict(load_masks(Path(folder, MASKS)))  # before the weights and the optimizer's state

    with (
        hold(model, masks_for(model, masks), optimizer, gradients=True) as handle,
        accelerator.register_save_state_pre_hook(save),
        accelerator.register_load_state_pre_hook(load),
    ):
        yield handle
    audit(model, handle.state_dict())
