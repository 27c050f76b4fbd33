"""Training: two ways to train thin networks better, with any optimizer and under `hold`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .holding import holds, unwrapped
from .running.shards import full, local

MOST = 5.0  # the exponent of a factor of `ham` lies between -5 and 5
PREVIOUS = "previous_gradient"  # what `sam` remembers, in the optimizer's state


class AfterStep:
    """Calls a function once after each step of an optimizer, until `remove()`; `first`, before what `hold` clears."""

    def __init__(self, optimizer: Optimizer, function: Callable[[Optimizer], object], first: bool = True) -> None:
        self._function, self._stepping = function, False
        after = optimizer.register_step_post_hook(self._after)
        self._hooks = [optimizer.register_step_pre_hook(self._before), after]
        if first:
            optimizer._optimizer_step_post_hooks.move_to_end(after.id, last=False)  # type: ignore[attr-defined]

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if getattr(optimizer, "found_inf", None) is not None:
            raise ValueError("a GradScaler makes a fused optimizer skip steps unseen; pass fused=False, or use bf16")
        self._stepping = True

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._stepping:  # torch runs each hook twice if a subclass calls the step of its parent
            self._stepping = False
            with torch.no_grad():
                self._function(optimizer)


def ham(optimizer: Optimizer, alpha: float = 200.0, beta: float = 1e-3) -> AfterStep:
    """Train with HAM (hyperbolic aware minimization), until `remove()` of what this returns.

    After each step, weights θ of two or more dimensions are multiplied by exp(-lr (α sign(θ) g + β)), where the
    exponent is limited to -5 and 5, and g is the gradient. Call it before or after `hold`.
    """
    if not (alpha >= 0 and beta >= 0):
        raise ValueError(f"alpha={alpha} and beta={beta} of ham must be at least 0; change them")

    def multiply(optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            if chosen := [p for p in group["params"] if p.dim() > 1 and p.grad is not None]:
                weights = [local(p) for p in chosen]
                exponents = torch._foreach_mul(torch._foreach_sign(weights), [local(p.grad).to_dense() for p in chosen])
                torch._foreach_mul_(exponents, group["lr"] * (alpha if group.get("maximize") else -alpha))
                shift = group["lr"] * -beta  # without alpha, torch would wait for the value of a tensor
                torch._foreach_add_(exponents, shift, **({"alpha": 1} if isinstance(shift, Tensor) else {}))
                torch._foreach_clamp_min_(exponents, -MOST)
                torch._foreach_clamp_max_(exponents, MOST)
                torch._foreach_exp_(exponents)
                torch._foreach_mul_(weights, exponents)

    return AfterStep(unwrapped(optimizer), multiply)


class Sam(AfterStep):
    """Moves weights while their gradient is computed; made by `sam`."""

    def __init__(self, optimizer: Optimizer, rho: float) -> None:
        super().__init__(optimizer, self._remember)
        self._optimizer, self._rho, self._moved = optimizer, rho, False

    @contextmanager
    def perturbed(self) -> Iterator[None]:
        """Add ρ g / ‖g‖ to the weights within the block, and put them back; g is the gradient of the last step."""
        state, chosen = self._optimizer.state, _remembered(self._optimizer)
        weights = [local(p).detach() for p in chosen]
        copies = [torch.empty_like(weight) for weight in weights]
        if chosen:
            torch._foreach_copy_(copies, weights)
        try:
            if chosen:
                gradients = [state[p][PREVIOUS] for p in chosen]
                scale = self._rho / full(nn.utils.get_total_norm(gradients)).clamp_min(1e-12)
                torch._foreach_add_(weights, torch._foreach_mul([local(g) for g in gradients], scale))
            self._moved = True
            yield
        finally:
            self._moved = False
            if chosen:
                torch._foreach_copy_(weights, copies)

    def _remember(self, optimizer: Optimizer) -> None:
        if self._moved:
            raise ValueError("perturbed() would undo this step of the optimizer; call step() after its block")
        trained = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        previous = [optimizer.state[p].setdefault(PREVIOUS, torch.empty_like(p)) for p in trained]
        if trained:  # the same memory each time, as a CUDA graph needs
            torch._foreach_copy_([local(g) for g in previous], [local(p.grad.to_dense()) for p in trained])
        remembered = _remembered(optimizer)  # more than those trained in this step, if a layer is left out now and then
        for held in holds(optimizer):
            held.clear(remembered, [optimizer.state[p][PREVIOUS] for p in remembered])


def _remembered(optimizer: Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"] if PREVIOUS in optimizer.state.get(p, ())]


def sam(optimizer: Optimizer, rho: float = 0.05) -> Sam:
    """Train with single-step SAM (sharpness-aware minimization): the gradient is taken at θ + ρ g / ‖g‖.

    Here g is the gradient of the previous step, of which pruned weights have none. It is part of the optimizer's
    `state_dict`. Weights are moved within `perturbed()`, and the step comes after this block.

    >>> layer = nn.Linear(2, 1)
    >>> sharpness = sam(torch.optim.SGD(layer.parameters(), lr=0.1))
    >>> with sharpness.perturbed():
    ...     layer(torch.ones(1, 2)).sum().backward()
    """
    if not rho >= 0:
        raise ValueError(f"rho={rho} of sam must be at least 0; change it")
    return Sam(unwrapped(optimizer), rho)
