"""Shrunk networks in the lab: what shrinking removed, and how much faster the network trains."""

import statistics
from copy import deepcopy
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from ...accounting import account
from ...deploy.shrink import Cuts, Shrunk, apply_cuts, find_cuts
from ...deploy.shrink.comparison import accepts
from ...deploy.shrink.layout import with_channels_last
from ...masks import Masks, kept
from ...paths import effective
from ...running.backward import gradients
from ...running.outputs import outputs
from ...running.rng import forked
from ...scope import masked_copy
from .training import Training

MIN_SECONDS, MIN_STEPS = 1.0, 3  # that a speed is measured over, at least
WARM_UP = {"cpu": 1, "cuda": 5}  # steps before measuring: first calls, and the capture of a CUDA graph


def useful(model: nn.Module, masks: Masks, images: Tensor) -> Masks:
    """Return masks of the weights on a path from input to output, if the network returns the same without the others.

    Shrinking fills up widths with channels that carry no signal. Weights in these would be trained, too, and the
    batch-norms of constant channels amplify rounding errors: in bf16, such a network may not train at all. All masks
    are returned if weights off the paths pass on a constant that is not zero, if nothing is on a path, or if the paths
    cannot be followed.
    """
    model, masks, images = _on_cpu(model, masks, images)
    try:
        on_paths = effective(model, masks, images)
    except ValueError:
        return masks
    all_returned, returned = (_returned(masked_copy(model, each), images) for each in (masks, on_paths))
    return on_paths if kept(on_paths) and torch.equal(all_returned, returned) else masks


def cuts_to_train(model: nn.Module, masks: Masks, images: Tensor) -> Cuts:
    """Find how to shrink a network to the form that trains fastest: widths in multiples of 8, channels last in memory.

    This is done on the CPU if the network runs there. It takes thousands of small operations, and each would wait for a
    GPU on which other runs train.
    """
    return find_cuts(*_on_cpu(model, masks, images), multiple_of=8, before_training=True)


def to_train(model: nn.Module, masks: Masks, cuts: Cuts) -> Shrunk:
    """Return the shrunk network."""
    small = apply_cuts(model, masks, cuts)
    if next(small.module.parameters(), None) is None:
        raise ValueError("no signal passes through the network, so nothing is left to train; use a lower sparsity")
    return small


def laid_out(model: nn.Module, images: Tensor) -> nn.Module:
    """Put the model's channels last in memory if it can be trained with them, and return it."""
    trial = with_channels_last(deepcopy(model)).train()
    try:
        gradients(trial, images, list(trial.parameters()), unaided=True)
    except (RuntimeError, ValueError):  # its memory format matters, as to a `view`; other errors will show in training
        return model
    return with_channels_last(model)


def images_per_second(masked: Training, shrunk: Training) -> dict[str, float] | None:
    """Measure how fast two networks train, with alternating steps.

    The random state is not changed. None if an epoch has too few steps to measure.
    """
    device, plan = masked.device, masked.plan
    warm, most = WARM_UP.get(device.type, 1), len(masked.data.train) // plan.batch_size - 1
    if not plan.epochs or most < warm + MIN_STEPS:
        return None
    runs = {"masked": masked.steps(), "shrunk": shrunk.steps()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    with forked(device):
        for number in range(most):
            for name, steps in runs.items():
                _wait(device)
                began = perf_counter()
                next(steps)
                _wait(device)
                times[name] += [perf_counter() - began] if number >= warm else []
            if number >= warm + MIN_STEPS and sum(map(sum, times.values())) > MIN_SECONDS:
                break
    return {name: plan.batch_size / statistics.median(seconds) for name, seconds in times.items()}


def account_of(small: Shrunk, model: nn.Module, masks: Masks, example: Tensor) -> dict[str, Any]:
    """Return what shrinking did, for JSON: the sizes, and the fraction of the dense FLOPs that remains."""
    dense, shrunk = account(model, masks, example).flops_dense, account(small.module, small.masks, example).flops_dense
    return {**small.plan.to_dict(), "flops": (shrunk or 0) / dense if dense else 1.0}


def _on_cpu(model: nn.Module, masks: Masks, images: Tensor) -> tuple[nn.Module, Masks, Tensor]:
    """Return all three on the CPU, if the network runs there."""
    if not accepts(moved := deepcopy(model).cpu(), images):
        return model, masks, images
    return moved, Masks({name: mask.cpu() for name, mask in masks.items()}), images.cpu()


def _returned(model: nn.Module, images: Tensor) -> Tensor:
    """Return what a network computes in eval mode and in train mode, with the same random numbers each time."""
    return torch.stack([outputs(model.train(train), images) for train in (False, True)])


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
