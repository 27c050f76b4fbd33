"""Whole rounds as graphs give the rounds of the plain path: on the CPU, with stand-ins for graphs and kernels."""

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import references
import torch
from references import Trace, equal, few
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
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(2, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 5, 3), nn.ReLU()),
        *(nn.Dropout(0.1), nn.Flatten(), nn.Linear(80, 4)),
    ).to(memory_format=torch.channels_last)


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [  # of two shapes: each gets a graph of its own
        (torch.randn(n, 2, 6, 6, generator=generator), torch.randint(4, (n,), generator=generator)) for n in (5, 5, 6)
    ]


@pytest.mark.parametrize("name", [name for name, row in METHODS.items() if row.criterion in graphed.CRITERIA])
def test_graphed_rounds_are_the_plain_ones(name, use_graphs):
    model, method = network(), few(name, rounds=6, batches=1)
    trace = Trace(model)
    runs: list[list[Round]] = []
    for graphs in (False, True):
        use_graphs(graphs)
        runs.append(list(rounds(Probe(model, batches()), method, 100)))
        trace.check()
    plain, with_graphs = runs
    before = references.ones(plain[0].masks)
    for a, b in zip(plain, with_graphs, strict=True):
        assert equal(a.masks, b.masks)
        assert (b.pruned, b.recovered, b.recovered_empty, b.record.layers) == references.changes(before, a.masks)
        assert (b.weights_digest, b.batches_digest) == (a.weights_digest, a.batches_digest)
        assert (b.saliency, b.loss) == pytest.approx((a.saliency, a.loss), rel=1e-5)
        before = a.masks
    if len(plain) > 2:
        rest = list(rounds(Probe(model, batches()), method, 100, after=with_graphs[2]))
        assert all(equal(a.masks, b.masks) for a, b in zip(rest, plain[3:], strict=True))
    result = prune(model, batches(), 1 - 100 / 698, method, on_collapse="ignore")
    assert equal(result.masks, plain[-1].masks)
    assert equal(result.last.masks, plain[-1].masks)


@pytest.mark.parametrize("name", ["force", "iter-grasp"])
def test_scores_that_are_not_finite_are_found(name, use_graphs):
    use_graphs(True)
    data = batches()
    data[1][0][0] = torch.inf
    with pytest.raises(FloatingPointError, match=r"round 1: the loss and the scores of 0\.weight"):
        prune(network(), data, 0.9, few(name, rounds=6))


@pytest.mark.parametrize("name", ["force", "snip-mb", "iter-grasp", "grasp", "grasp-mb"])
def test_captured_gradients_are_the_plain_ones(name, monkeypatch):
    """Where not the whole round is a graph, its gradient may be one; over several batches they are averaged."""
    monkeypatch.setattr(gradients, "Captured", Recorded)
    model, method = network(), few(name)
    plain = list(rounds(Probe(model, batches()), method, 100))
    probe = Probe(model, batches())
    probe.capture = True  # the constructor refuses that on the CPU
    for a, b in zip(plain, rounds(probe, method, 100), strict=True):
        assert equal(a.masks, b.masks)
        assert (b.saliency, b.loss) == pytest.approx((a.saliency, a.loss), rel=1e-5)
