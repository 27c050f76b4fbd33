"""What do the initial scales of batch-norms change: the scores, or the training? A recipe of variants on CIFAR-10.

`half` sets all scales to 0.5, and `layers` draws one scale per batch-norm from U(0, 1). The methods `...-scored-ones`
and `...-scored-uniform` find their masks with other scales than those that are trained. The variants of ResNet-50 are
not trained: what counts is whether SNIP-MB leaves it connected.

    barebones sweep benchmarks/batch_norm_scales.py:variants --device cuda --data-root DATA --on-collapse skip
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product

import torch
from torch.nn.modules.batchnorm import _BatchNorm

import barebones as bb
from barebones.lab.experiment.experiment import Experiment
from barebones.models import NORM_SCALES

NORM_SCALES["half"] = lambda scales, generator: torch.nn.init.constant_(scales, 0.5)
NORM_SCALES["layers"] = lambda scales, generator: torch.nn.init.constant_(
    scales, float(torch.rand((), generator=generator))
)


def scored(criterion: Callable, norm_scale: str, probe: bb.Probe) -> bb.Scores:
    """Return the criterion's scores of the network with other scales, which are set back afterwards."""
    norms = [module.weight for module in probe.user_model.modules() if isinstance(module, _BatchNorm)]
    before, generator = [scales.detach().clone() for scales in norms], torch.Generator().manual_seed(probe.seed)
    for scales in norms:  # `.data`: a captured gradient need not be recorded again, since it reads the same memory
        scales.data.copy_(NORM_SCALES[norm_scale](torch.empty(scales.shape), generator=generator))
    try:
        return criterion(probe)
    finally:
        for scales, old in zip(norms, before, strict=True):
            scales.data.copy_(old)


for name, other in product(("force", "iter-snip"), ("ones", "uniform")):
    row = bb.METHODS[name]
    bb.METHODS[f"{name}-scored-{other}"] = replace(
        row, criterion=partial(scored, row.criterion, other), label=f"{row.label}, scored with {other}"
    )


def variants() -> Iterator[Experiment]:
    """VGG-19 at 99.9 % with three seeds, 40 epochs; the masks of ResNet-50 at 99.5 % with five seeds."""
    for seed in range(5):
        for norm_scale in ("ones", "uniform", "half", "layers"):
            yield Experiment(
                model="resnet50", data="cifar10", method="snip-mb", sparsity=0.995, seed=seed, norm_scale=norm_scale,
                epochs=0, shrink=True,
            )  # fmt: skip
    for seed, method in product(range(3), ("iter-snip", "force")):
        common = dict(model="vgg19", data="cifar10", sparsity=0.999, seed=seed, epochs=40, shrink=True)
        for norm_scale in ("ones", "uniform", "half", "layers"):
            yield Experiment(method=method, norm_scale=norm_scale, **common)
        yield Experiment(method=f"{method}-scored-ones", norm_scale="uniform", **common)
        yield Experiment(method=f"{method}-scored-uniform", norm_scale="ones", **common)
