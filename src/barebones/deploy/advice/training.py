"""The training step (forward, backward, SGD update, masks) of the dense, the masked and the shrunk network, timed."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...gpu.graphs import Captured
from ...holding import hold
from ...masks import Masks
from ...running.backward import guarded
from ...running.precision import autocast, computing
from ..shrink import shrink
from .measuring import random_images
from .variants import runs_channels_last


def measure_steps(
    model: nn.Module, masks: Masks, example: Tensor, batch: int, repeats: int, device: torch.device, precision: str
) -> dict[str, float]:
    """Return the median seconds of one training step of each network, measured in turns."""
    small, wide = shrink(model, masks, example), shrink(model, masks, example, multiple_of=8)
    step = partial(_step, example=example, batch=batch, device=device, precision=precision)
    channels_last = runs_channels_last(small, example)
    steps = {}
    for name, held in {"dense": None, "masked": masks}.items():
        steps[name] = step(model, held, torch.contiguous_format)
        if channels_last:
            steps[f"{name}, channels last"] = step(model, held, torch.channels_last)
    steps["shrunk"] = step(small.module, small.masks, None)
    steps["shrunk to multiples of 8" + ", channels last" * channels_last] = step(wide.module, wide.masks, None)
    count = 20 if device.type == "cuda" else 1
    times: dict[str, list[float]] = {name: [] for name in steps}
    for learn in steps.values():
        for _ in range(10 if device.type == "cuda" else 1):
            learn()
    for _ in range(repeats):
        for name, learn in steps.items():
            _wait(device)
            began = perf_counter()
            for _ in range(count):
                learn()
            _wait(device)
            times[name].append((perf_counter() - began) / count)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def _step(
    model: nn.Module, masks: Masks | None, layout: torch.memory_format | None, *,
    example: Tensor, batch: int, device: torch.device, precision: str,
) -> Callable[[], None]:  # fmt: skip
    """Return the training step of a copy; `layout` is the memory format of weights and images (None: unchanged)."""
    network: nn.Module = deepcopy(model).train().to(device, memory_format=layout)  # type: ignore[call-overload]
    images = random_images(example, batch).to(device, memory_format=layout or torch.preserve_format)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4, fused=True)
    if masks:
        hold(network, {name: mask.to(device) for name, mask in masks.items()}, optimizer)
    with torch.no_grad():
        classes = network(images).shape[1]
    labels = torch.arange(batch, device=device) % classes

    def learn(images: Tensor, labels: Tensor) -> None:
        with computing(device, precision):
            with autocast(precision, device):
                loss = F.cross_entropy(network(images), labels)
            optimizer.zero_grad()
            with guarded([loss]):
                loss.backward()
            optimizer.step()

    call = Captured(learn) if device.type == "cuda" else learn
    return lambda: call(images, labels)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
