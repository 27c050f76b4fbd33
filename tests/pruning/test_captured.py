"""Captured gradients give the rounds of plain ones: on the CPU, with a stand-in for CUDA graphs."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pruning_runs import KEEP, run
from references import equal, few, pairs, tiny
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from barebones import Probe, rounds
from barebones.pruning import gradients


class Recorded:
    """A stand-in for a CUDA graph: from the second call with a shape on, it returns one and the same memory."""

    def __init__(self, function: Callable[..., Any], eager: int = 1) -> None:
        self.function, self.results = function, {}

    def __call__(self, *tensors: Tensor) -> Any:
        key = tuple(t.shape for t in tensors)
        result = self.function(*[t.clone() for t in tensors])
        if key not in self.results:
            self.results[key] = None
            return result
        if self.results[key] is None:
            self.results[key] = tree_map(torch.clone, result)
        for old, new in zip(tree_leaves(self.results[key]), tree_leaves(result), strict=True):
            old.copy_(new)
        return self.results[key]


@pytest.mark.parametrize("name", ["force", "snip-mb", "iter-grasp", "grasp", "grasp-mb"])
def test_captured_gradients_are_the_plain_ones(name, monkeypatch):
    """Over several batches they are averaged."""
    monkeypatch.setattr(gradients, "Captured", Recorded)
    model = nn.Sequential(tiny(dtype=torch.float32).to(memory_format=torch.channels_last), nn.Dropout(0.1))
    data = pairs(3, dtype=torch.float32)
    data[2] = data[2][0][:6], data[2][1][:6]  # of two shapes: each gets a graph of its own
    probe = Probe(model, data)
    probe.capture = True  # the constructor refuses that on the CPU
    for a, b in zip(run(name, model=model, batches=data), rounds(probe, few(name), KEEP), strict=True):
        assert equal(a.masks, b.masks)
        assert (b.weights_digest, b.batches_digest) == (a.weights_digest, a.batches_digest)
        assert (b.saliency, b.loss) == pytest.approx((a.saliency, a.loss), rel=1e-5)


def test_graphs_and_copies_of_weights_are_freed_with_their_probe(monkeypatch):
    """They hold memory of the GPU, which must not wait for garbage collection."""
    monkeypatch.setattr(gradients, "Captured", Recorded)
    probe = Probe(tiny(dtype=torch.float32), pairs(3, dtype=torch.float32))
    probe.capture = True
    list(rounds(probe, few("force"), KEEP))
    graphs = [*probe._gradients._graphs.values(), probe._masking._put, probe._masking, probe]
    references = [*map(weakref.ref, graphs)]
    gc.disable()
    try:
        del probe, graphs
        assert [reference() for reference in references] == [None] * 4
    finally:
        gc.enable()
