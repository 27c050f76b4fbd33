"""Small networks in the lab: what shrinking left of a network, and how much faster it trains."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from copy import deepcopy
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from ..accounting import account
from ..data import Data
from ..deploy.shrink import Shrunk, shrink
from ..deploy.shrink.layout import run_backward, with_channels_last
from ..masks import Masks
from ..running.rng import forked
from .training import Training, TrainingPlan

LONG, FEW = 1.0, 3  # seconds and steps that a pace is measured over, at least
WARM = {"cpu": 1, "cuda": 5}  # steps before it: first calls, and the capture of a graph


def to_train(model: nn.Module, masks: Masks, images: Tensor) -> Shrunk:
    """The small network in the form that trains fastest: widths that vectors and tensor cores like, channels last."""
    small = shrink(model, masks, images, multiple_of=8, before_training=True)
    if next(small.module.parameters(), None) is None:
        raise ValueError("nothing is left to train once the network is shrunk: no signal passes through it")
    return small


def laid_out(model: nn.Module, images: Tensor) -> nn.Module:
    """The model itself, with its channels last in memory where it learns from these images so."""
    trial = with_channels_last(deepcopy(model)).train()
    try:
        run_backward(trial, images)
    except RuntimeError:  # it needs the order that it has, for a view of pixels and channels say; or training will tell
        return model
    return with_channels_last(model)


def images_per_second(
    networks: Mapping[str, tuple[nn.Module, Masks]],
    data: Data,
    plan: TrainingPlan,
    *,
    seed: int,
    precision: str,
    captured: bool,
) -> dict[str, float] | None:
    """How fast copies of these networks train, in turns of a step each that leave no trace.

    None where an epoch has too few steps for that.
    """
    device = next(p.device for model, _ in networks.values() for p in model.parameters())
    warm, most = WARM.get(device.type, 1), len(data.train) // plan.batch - 1
    if not plan.epochs or most < warm + FEW:
        return None
    with forked(device):
        runs = {
            name: Training(
                deepcopy(model), data, plan, masks, seed=seed, precision=precision, captured=captured
            ).steps()
            for name, (model, masks) in networks.items()
        }
        times: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(most):
            for name, steps in runs.items():
                _wait(device)
                began = perf_counter()
                next(steps)
                _wait(device)
                times[name] += [perf_counter() - began] if number >= warm else []
            if number >= warm + FEW and sum(map(sum, times.values())) > LONG:
                break
    return {name: plan.batch / statistics.median(own) for name, own in times.items()}


def account_of(small: Shrunk, model: nn.Module, masks: Masks, example: Tensor) -> dict[str, Any]:
    """What shrinking did, for JSON: the sizes, and the share of the dense FLOPs that is left."""
    dense, left = account(model, masks, example).flops_dense, account(small.module, small.masks, example).flops_dense
    return {**small.plan.to_dict(), "flops": (left or 0) / dense if dense else 1.0}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
