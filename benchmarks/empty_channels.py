"""Does FORCE gain if an empty channel gets no gradient through its batch-norm? A recipe of variants on CIFAR-10.

A channel that is constant over a batch leaves a batch-norm as a constant, but the gradient through the norm is
multiplied by 1/sqrt(eps), about 316. `force-signal` and `hybrid-signal` give such channels no gradient. With
`revive_empty=False`, no weight returns into an empty channel. FORCE and Hybrid as they are have records in `results/`.

    barebones sweep benchmarks/empty_channels.py:variants --device cuda --data-root DATA
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import barebones as bb
from barebones.lab.experiment.experiment import Experiment
from barebones.pruning import criteria

row = bb.METHODS["hybrid"]
bb.METHODS["hybrid-signal"] = replace(row, criterion=criteria.signal_saliency, label=f"{row.label}, signals")


def variants() -> Iterator[Experiment]:
    """MobileNet-v2 at 98 % and ResNet-50 at 99.5 and 99.9 %, 30 epochs; the first seed of all comes first."""
    cases = [("mobilenet-v2", 0.98, False), ("resnet50", 0.999, True), ("resnet50", 0.995, True)]
    for seed, (model, sparsity, shrink) in product(range(3), cases):
        common = dict(
            model=model, data="cifar10", sparsity=sparsity, seed=seed, norm_scale="ones", epochs=30, shrink=shrink
        )
        for method in ("force", "hybrid"):
            yield Experiment(method=f"{method}-signal", **common)
            yield Experiment(method=method, revive_empty=False, **common)
