"""The plan of a training: its optimizer, its precision and its learning rate, a pure function of the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.nn import Parameter
    from torch.optim import Optimizer

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
RISE = 0.3  # the share of a one-cycle training in which the rate rises, if the plan has no warm-up
START, END = 25, 25e4  # a one-cycle training begins at lr / START and ends at lr / END


@dataclass(frozen=True)
class TrainingPlan:
    """How to train: by default SGD with momentum, its rate divided by ten at each milestone, a fraction of the epochs.

    >>> plan = TrainingPlan(epochs=350, batch_size=128, lr=0.1, weight_decay=5e-4, milestones=(150 / 350, 250 / 350))
    >>> [plan.rate(epoch) for epoch in (0, 149, 150, 250)]
    [0.1, 0.1, 0.01, 0.001]
    """

    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    milestones: tuple[float, ...] = ()
    momentum: float = 0.9
    optimizer: str = "sgd"
    lr_schedule: str = "milestones"
    warmup: int = 0  # epochs
    label_smoothing: float = 0.0
    ham: bool = False
    sam: float = 0.0
    evolve: str | None = None
    ablate: float = 0.0

    def rate(self, epoch: int, step: int = 0, steps: int = 1) -> float:
        """Return the learning rate of a step of an epoch, which has `steps`; all are counted from 0."""
        step, warm = epoch * steps + step, self.warmup * steps
        if step < warm and self.lr_schedule != "one-cycle":
            return self.lr * (step + 1) / warm
        return LR_SCHEDULES[self.lr_schedule](self, step, steps)


def milestones(plan: TrainingPlan, step: int, steps: int) -> float:
    """Divide the rate by ten at each milestone, a fraction of the epochs. The first epoch always has the full one."""
    passed = sum(step // steps >= max(1, round(at * plan.epochs)) for at in plan.milestones)
    return plan.lr / 10**passed


def constant(plan: TrainingPlan, step: int, steps: int) -> float:
    return plan.lr


def cosine(plan: TrainingPlan, step: int, steps: int) -> float:
    """Follow half a cosine from the rate to zero, from the end of the warm-up to the end of training."""
    warm, end = plan.warmup * steps, plan.epochs * steps
    return _between(plan.lr, 0.0, (step - warm) / (end - warm))


def one_cycle(plan: TrainingPlan, step: int, steps: int) -> float:
    """Rise from 1/25 of the rate to the rate, then fall to almost zero, both along half a cosine."""
    last = plan.epochs * steps - 1
    peak = max((plan.warmup * steps or RISE * (last + 1)) - 1, 0.0)
    if step <= peak and peak:
        return _between(plan.lr / START, plan.lr, step / peak)
    return _between(plan.lr, plan.lr / END, (step - peak) / max(last - peak, 1.0))


def _between(start: float, end: float, done: float) -> float:
    return end + (start - end) / 2 * (1 + math.cos(math.pi * done))


LR_SCHEDULES: dict[str, Callable[[TrainingPlan, int, int], float]] = {
    "milestones": milestones,
    "cosine": cosine,
    "one-cycle": one_cycle,
    "constant": constant,
}


FUSED = ("cpu", "cuda")  # devices on which one kernel updates all parameters


def sgd(parameters: Iterable[Parameter], rate: Any, plan: TrainingPlan, device: torch.device) -> Optimizer:
    from torch.optim import SGD

    fused = device.type in FUSED
    return SGD(parameters, rate, momentum=plan.momentum, weight_decay=plan.weight_decay, fused=fused)


def adamw(parameters: Iterable[Parameter], rate: Any, plan: TrainingPlan, device: torch.device) -> Optimizer:
    from torch.optim import AdamW

    settings = {"fused": device.type in FUSED, "capturable": device.type == "cuda"}
    return AdamW(parameters, rate, betas=(plan.momentum, 0.999), weight_decay=plan.weight_decay, **settings)


OPTIMIZERS = {"sgd": sgd, "adamw": adamw}
