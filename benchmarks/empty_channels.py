"""Does FORCE gain if an empty channel gets no gradient through its batch-norm? A recipe of variants on CIFAR-10.

A channel that is constant over a batch leaves a batch-norm as a constant, but the gradient through the norm is
multiplied by 1/sqrt(eps), about 316. `force-signal` and `hybrid-signal` give such channels no gradient. With
`revive_empty=False`, no weight returns into an empty channel. FORCE and Hybrid as they are have records in `results/`.

    barebones sweep benchmarks/empty_channels.py:variants --device cuda --data-root DATA
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import barebones as bb
from barebones.lab.experiment.experiment import Experiment
from barebones.masks import Scores
from barebones.pruning import criteria


def without_constants(norm: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor]:
    """Replace the channels that are constant over the batch by zeros, which take no gradient."""
    x: Tensor = args[0]
    over = [0, *range(2, x.dim())]
    constant = x.detach().amax(over, keepdim=True) == x.detach().amin(over, keepdim=True)
    return (torch.where(constant, torch.zeros((), dtype=x.dtype, device=x.device), x),)


def saliency_of_signals(probe: bb.Probe) -> Scores:
    """Return the saliency of FORCE, without gradients of constant channels."""
    norms = [module for module in probe.user_model.modules() if isinstance(module, _BatchNorm)]
    with ExitStack() as stack:
        for norm in norms:
            stack.enter_context(norm.register_forward_pre_hook(without_constants))
        return criteria.saliency(probe)


for name in ("force", "hybrid"):
    row = bb.METHODS[name]
    bb.METHODS[f"{name}-signal"] = replace(row, criterion=saliency_of_signals, label=f"{row.label}, signals alone")


def variants() -> Iterator[Experiment]:
    """MobileNet-v2 at 98 % and ResNet-50 at 99.5 and 99.9 %, 30 epochs; the first seed of all comes first."""
    cases = [("mobilenet-v2", 0.98, False), ("resnet50", 0.999, True), ("resnet50", 0.995, True)]
    for seed, (model, sparsity, shrink) in product(range(3), cases):
        common = dict(model=model, data="cifar10", sparsity=sparsity, seed=seed, epochs=30, shrink=shrink)
        for method in ("force", "hybrid"):
            yield Experiment(method=f"{method}-signal", **common)
            yield Experiment(method=method, revive_empty=False, **common)
