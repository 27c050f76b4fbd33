"""Learning rates: pure functions of the plan, the number of the step, and the steps of an epoch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .training import TrainingPlan

RISE = 0.3  # the share of a one-cycle training in which the rate rises, if the plan has no warm-up
START, END = 25, 25e4  # a one-cycle training begins at lr / START and ends at lr / END


def rate(plan: TrainingPlan, step: int, steps: int) -> float:
    """Return the learning rate of a step, counted from 0 over all epochs of `steps` steps each.

    During the warm-up it rises linearly to the plan's rate. One-cycle takes the warm-up as the length of its own rise.
    """
    warm = plan.warmup * steps
    if step < warm and plan.lr_schedule != "one-cycle":
        return plan.lr * (step + 1) / warm
    return LR_SCHEDULES[plan.lr_schedule](plan, step, steps)


def milestones(plan: TrainingPlan, step: int, steps: int) -> float:
    """Divide the rate by ten at each milestone, a fraction of the epochs. The first epoch always has the full one."""
    passed = sum(step // steps >= max(1, round(at * plan.epochs)) for at in plan.milestones)
    return plan.lr / 10**passed


def constant(plan: TrainingPlan, step: int, steps: int) -> float:
    """Keep the rate."""
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
