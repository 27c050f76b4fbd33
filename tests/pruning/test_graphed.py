"""Whole rounds as graphs give the rounds of the plain path: on the CPU, with stand-ins for graphs and kernels."""

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import references
import torch
from pruning_runs import KEEP, run
from references import Trace, equal, few, pairs, tiny
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from barebones import METHODS, Probe, Round, prune, rounds
from barebones.gpu import kernels
from barebones.pruning import gradients, graphed, selection


class Recorded:
    """A stand-in for a CUDA graph: from the second call with a shape on, it returns one and the same memory."""

    def __init__(
        self, function: Callable[..., Any], eager: int = 1, on_recorded: Callable[[], None] = lambda: None
    ) -> None:
        self.function, self.on_recorded, self.results = function, on_recorded, {}

    def __call__(self, *tensors: Tensor) -> Any:
        key = tuple(t.shape for t in tensors)
        result = self.function(*[t.clone() for t in tensors])
        if key not in self.results:
            self.results[key] = None
            return result
        if self.results[key] is None:
            self.results[key] = tree_map(torch.clone, result)
            self.on_recorded()
        for old, new in zip(tree_leaves(self.results[key]), tree_leaves(result), strict=True):
            old.copy_(new)
        return self.results[key]


class Scoring:
    """A stand-in for the kernel of that name."""

    def __init__(self, weights: list[Tensor]) -> None:
        self.weights = weights

    def __call__(self, gradients: list[Tensor], masks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        layers = [(w * g).abs().reshape(-1) for w, g in zip(self.weights, gradients, strict=True)]
        flat = torch.cat(layers)
        return flat, (flat * masks).double().sum(), torch.stack([~layer.isfinite().all() for layer in layers])

    def finish(self) -> None:
        pass


def tally(before: Tensor, after: Tensor, starts: Tensor, layers: Tensor) -> Tensor:
    """A stand-in for the kernel of that name."""
    empty = torch.cat([~before[a:b].any().expand(b - a) for a, b in pairwise(starts)])
    kept = [after[starts[a] : starts[b]].sum() for a, b in pairwise(layers)]
    return torch.stack([(before & ~after).sum(), (after & ~before).sum(), (after & ~before & empty).sum(), *kept])


def top(scores: Tensor, keep: Tensor, prefer: Tensor | None, among: Tensor | None) -> Tensor:
    """A stand-in for the kernel of that name."""
    return selection._by_sort(scores, int(keep), prefer, among)


@pytest.fixture
def use_graphs(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    stand_ins = SimpleNamespace(channels=kernels.channels, Scoring=Scoring, tally=tally, top=top)
    monkeypatch.setattr(graphed, "kernels", stand_ins)
    monkeypatch.setattr(graphed, "Captured", Recorded)
    return lambda used: monkeypatch.setattr(graphed.GraphedRounds, "fits", staticmethod(lambda *_: used))


def network() -> nn.Module:
    return nn.Sequential(tiny(dtype=torch.float32).to(memory_format=torch.channels_last), nn.Dropout(0.1))


def batches() -> list[tuple[Tensor, Tensor]]:
    data = pairs(3, dtype=torch.float32)
    return [*data[:2], (data[2][0][:6], data[2][1][:6])]  # of two shapes: each gets a graph of its own


def assert_close(plain: list[Round], steps: list[Round]) -> None:
    """Check that the masks and digests are equal, and the sums nearly so."""
    for a, b in zip(plain, steps, strict=True):
        assert equal(a.masks, b.masks)
        assert (b.weights_digest, b.batches_digest) == (a.weights_digest, a.batches_digest)
        assert (b.saliency, b.loss) == pytest.approx((a.saliency, a.loss), rel=1e-5)


@pytest.mark.parametrize("name", [name for name, row in METHODS.items() if row.criterion in graphed.CRITERIA])
def test_graphed_rounds_are_the_plain_ones(name, use_graphs):
    model, method = network(), few(name, rounds=6, batches=1)
    use_graphs(False)
    plain = run(method, model=model, batches=batches())
    use_graphs(True)
    with Trace(model):
        steps = run(method, model=model, batches=batches())
    assert_close(plain, steps)
    before = references.ones(plain[0].masks)
    for step in steps:
        counted = step.pruned, step.recovered, step.recovered_empty, step.record.layers
        assert counted == references.changes(before, step.masks)
        before = step.masks
    for step in steps[2:3]:
        assert_close(plain[3:], run(method, model=model, batches=batches(), after=step))
    result = prune(model, batches(), 1 - KEEP / 114, method, on_collapse="ignore")
    assert equal(result.masks, plain[-1].masks)
    assert equal(result.last.masks, plain[-1].masks)


@pytest.mark.parametrize("name", ["force", "iter-grasp"])
def test_scores_that_are_not_finite_are_found(name, use_graphs):
    use_graphs(True)
    data = batches()
    data[1][0][0] = torch.inf
    with pytest.raises(FloatingPointError, match=r"round 2: the loss and the scores of 0\.0\.weight"):
        prune(network(), data, 0.9, few(name, rounds=6))


@pytest.mark.parametrize("name", ["force", "snip-mb", "iter-grasp", "grasp", "grasp-mb"])
def test_captured_gradients_are_the_plain_ones(name, monkeypatch):
    """Where not the whole round is a graph, its gradient may be one; over several batches they are averaged."""
    monkeypatch.setattr(gradients, "Captured", Recorded)
    model = network()
    probe = Probe(model, batches())
    probe.capture = True  # the constructor refuses that on the CPU
    assert_close(run(name, model=model, batches=batches()), list(rounds(probe, few(name), KEEP)))
