"""Small networks in the lab: what shrinking left of a network, and how much faster it trains."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from ..account import account
from ..data import Data
from ..masks import Masks
from ..rng import forked
from ..shrink import Shrunk
from ..training import Plan, Training

LONG, FEW = 1.0, 3  # seconds and steps that a pace is measured over, at least
WARM = {"cpu": 1, "cuda": 5}  # steps before it: first calls, and the capture of a graph


def wide(device: torch.device) -> int:
    """What channel counts are a multiple of: tensor cores work on eight at a time."""
    return 8 if device.type == "cuda" else 1


def images_per_second(
    model: nn.Module, masks: Masks, *, data: Data, plan: Plan, seed: int, precision: str, captured: bool
) -> float | None:
    """How fast a copy of the network trains, in a few steps that leave no trace; None where there are too few."""
    device = next(model.parameters()).device
    warm = WARM.get(device.type, 1)
    most = len(data.train) // plan.batch - 1
    if not plan.epochs or most < warm + FEW:
        return None
    with forked(device):
        training = Training(deepcopy(model), data, plan, masks, seed=seed, precision=precision, captured=captured)
        steps, done, began = training.steps(), 0, 0.0
        for number in range(most):
            next(steps)
            if number + 1 == warm:
                _wait(device)
                began = perf_counter()
            elif number + 1 > warm:
                done += 1
                if done >= FEW and perf_counter() - began > LONG:
                    break
        _wait(device)
        return done * plan.batch / (perf_counter() - began)


def account_of(
    small: Shrunk, model: nn.Module, masks: Masks, example: Tensor, pace: Callable[[nn.Module, Masks], float | None]
) -> dict[str, Any]:
    """What shrinking did, for JSON: sizes, the share of the dense FLOPs, images per second of both networks."""
    dense, left = account(model, masks, example), account(small.module, small.masks, example)
    speeds = {"masked": pace(model, masks), "shrunk": pace(small.module, small.masks)}
    return {
        **small.plan.to_dict(),
        "flops": (left.flops_dense or 0) / dense.flops_dense if dense.flops_dense else 1.0,
        "images_per_second": speeds if all(speeds.values()) else None,
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
