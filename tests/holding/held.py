"""What the tests of holding share: a small network, optimizers, and masking by hand to compare with."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

from barebones.holding import INTEGER, audit
from barebones.scope import matched

X, Y = torch.randn(8, 1, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 5


def network(seed=1):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 5))


def sgd(model, **options):
    return optim.SGD(model.parameters(), **{"lr": 0.1, "momentum": 0.9, **options})


def backward(model, x=X, y=Y):
    loss = F.cross_entropy(model(x.to(next(model.parameters()).dtype)), y)
    loss.backward()
    return loss


def train(model, optimizer, steps, between=lambda: None):
    for _ in range(steps):
        optimizer.zero_grad()
        backward(model)
        between()
        optimizer.step()


def assert_same(model, other):
    for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        assert p.isfinite().all(), name
        assert torch.equal(p, q), name


def assert_held(model, masks):
    audit(model, masks)
    for name, p, mask in matched(model, masks):
        pruned = p.detach()[~mask]
        assert pruned.numel(), name
        assert not pruned.view(INTEGER[p.element_size()]).any(), name  # not even -0.0
        assert p[mask].count_nonzero() == mask.count_nonzero(), name


def assert_not_held(model, masks):
    with pytest.raises(ValueError, match=r"not zero: 0\.weight \("):
        audit(model, masks)


def assert_state_held(optimizer, model, masks):
    for name, p, mask in matched(model, masks):
        values = [t for t in optimizer.state.get(p, {}).values() if torch.is_tensor(t) and t.shape == p.shape]
        assert not any(t[~mask].any() for t in values if t.is_floating_point()), name


class Lamb(optim.Optimizer):
    """Adam with a trust ratio: the norm of a step is that of the weights. Without eps, so that 0/0 would show."""

    def __init__(self, params, lr=0.05, weight_decay=0.01):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                moments = self.state[p].setdefault("moments", [torch.zeros_like(p), torch.zeros_like(p)])
                moments[0].lerp_(p.grad, 0.1)
                moments[1].lerp_(p.grad.square(), 0.1)
                update = moments[0] / (moments[1].sqrt() + 1e-6) + group["weight_decay"] * p
                p.sub_(update * (group["lr"] * p.norm() / update.norm()))
        return loss


class Clipped(optim.SGD):
    """A subclass that uses a norm and calls its parent's step, so that torch runs every hook twice."""

    def step(self, closure=None):
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.1)
        return super().step(closure)


OPTIMIZERS = {
    "sgd": (optim.SGD, dict(lr=0.1, weight_decay=0.01)),
    "momentum": (optim.SGD, dict(lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01)),
    "nesterov": (optim.SGD, dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)),
    "adam": (optim.Adam, dict(lr=0.01, weight_decay=0.01)),
    "amsgrad": (optim.Adam, dict(lr=0.01, amsgrad=True)),
    "adamw": (optim.AdamW, dict(lr=0.01, weight_decay=0.1, amsgrad=True, maximize=True)),
    "rmsprop": (optim.RMSprop, dict(lr=0.01, momentum=0.9, centered=True, weight_decay=0.01)),
    "adagrad": (optim.Adagrad, dict(lr=0.05, weight_decay=0.01, initial_accumulator_value=0.1)),
    "adadelta": (optim.Adadelta, dict(lr=1.0, weight_decay=0.01)),
    "adamax": (optim.Adamax, dict(lr=0.01, weight_decay=0.01)),
    "nadam": (optim.NAdam, dict(lr=0.01, weight_decay=0.01, decoupled_weight_decay=True)),
    "radam": (optim.RAdam, dict(lr=0.01, weight_decay=0.01)),
    "rprop": (optim.Rprop, dict(lr=0.01)),
    "asgd": (optim.ASGD, dict(lr=0.1, t0=2, weight_decay=0.01)),
    "adafactor": (optim.Adafactor, dict(lr=0.05, weight_decay=0.01)),
    "lamb": (Lamb, {}),
    "subclass": (Clipped, dict(lr=0.1, momentum=0.9, weight_decay=0.01)),
}
FUSED = {optim.SGD, optim.Adam, optim.AdamW, optim.Adagrad}
CASES = [
    pytest.param(kind, {**options, **flag}, id="-".join([name, *flag]))
    for name, (kind, options) in OPTIMIZERS.items()
    for flag in ({}, {"foreach": True}, {"fused": True})
    if not flag or ("foreach" in flag and kind not in (Lamb, Clipped)) or ("fused" in flag and kind in FUSED)
]


def by_hand(model, masks, *optimizers, gradients=True):
    """Mask weights, state and perhaps gradients, as a careful user would without the library."""
    for _, p, mask in matched(model, masks):
        state = [value for optimizer in optimizers if p in optimizer.state for value in optimizer.state[p].values()]
        state = [t for value in state for t in (value if isinstance(value, list) else [value])]
        for t in [p.data, *([p.grad] if gradients and p.grad is not None else []), *state]:
            if t.shape == p.shape:
                t[~mask] = 0.0


def spoiled(model, masks):
    """Give pruned weights huge, infinite and NaN gradients."""
    for _, p, mask in matched(model, masks):
        poison = torch.tensor([1e30, -1e30, math.inf, -math.inf, math.nan, -1.0]).repeat(p.numel())
        p.grad[~mask] = poison[: int((~mask).count_nonzero())].to(p)


def twins(kind, options, dense_steps=3):
    """Return two equal networks with their optimizers, trained dense so far."""
    pair = []
    for _ in range(2):
        model = network()
        optimizer = kind(model.parameters(), **options)
        train(model, optimizer, dense_steps)
        pair += [model, optimizer]
    return pair
