"""The GPU kernels against plain torch: on the CPU in Triton's interpreter, where Triton is installed."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

CHECK = """
import random, sys
import torch
from barebones.gpu import kernels
from barebones.gpu.kernels import layers, selecting
from barebones.pruning.counts import changes
from barebones.pruning.selection import keep_top

layers.BLOCK = selecting.BLOCK = 64
selecting.PROGRAMS, selecting.MANY, selecting.STRIDE = 5, 500, 7
random.seed(0)
g = torch.Generator().manual_seed(0)
kinds = [
    lambda n: torch.randn(n, generator=g),
    lambda n: torch.randint(-2, 3, (n,), generator=g).float(),
    lambda n: torch.randn(n, generator=g, dtype=torch.float64),
    lambda n: torch.zeros(n) * -1,
    lambda n: torch.arange(n).remainder(7).eq(0) * torch.randn(n, generator=g).exp(),  # the sample misleads
    lambda n: torch.randn(n, generator=g).exp() * (torch.rand(n, generator=g) < 0.3),  # many zeros
    lambda n: torch.where(torch.rand(n, generator=g) < 0.1, torch.inf, torch.randn(n, generator=g)),
]
for trial in range(35):
    n = random.randint(1, 300) if trial < 14 else random.randint(500, 3000)  # the larger ones are bracketed
    scores = kinds[trial % 7](n)
    prefer = torch.rand(n, generator=g) < 0.5 if trial % 3 else None
    among = torch.rand(n, generator=g) < 0.7 if trial % 5 < 2 else None
    most = n if among is None else int(among.sum())
    keep = random.choice([1, most, random.randint(1, most)])
    count = torch.tensor(keep) if trial % 2 else keep
    expected = keep_top({"w": scores}, keep, prefer=prefer is not None and {"w": prefer} or None,
                        among=among is not None and {"w": among} or None)["w"]
    assert torch.equal(kernels.top(scores, count, prefer, among), expected), trial

last = torch.channels_last
weights = [torch.randn(6, 5, 3, 3).contiguous(memory_format=last), torch.randn(7, 20), torch.randn(9, 4, 2, 2)]
shapes = tuple(tuple(w.shape) for w in weights)
dense = [w.clone() for w in weights]
masks = [torch.rand(w.shape, generator=g) < 0.4 for w in weights]
flat = torch.cat([m.reshape(-1) for m in masks])
assert kernels.Covering.fits(dense, weights)
kernels.Covering(dense, weights)(flat)
assert all(torch.equal(w, d * m) for w, d, m in zip(weights, dense, masks))

gradients = [torch.randn(w.shape, generator=g) for w in weights]  # the first two lie otherwise than their weights
gradients[1] = gradients[1].t().contiguous().t()
scoring = kernels.Scoring(dense)
scores, total, bad = scoring(gradients, flat)
expected = torch.cat([(a * b).abs().reshape(-1) for a, b in zip(gradients, dense)])
assert torch.equal(scores, expected) and not bad.any()
assert torch.allclose(total, (expected * flat).sum(dtype=torch.float64), rtol=1e-5)
gradients[1][0, 0] = torch.nan
gradients[2][0, 0, 0, 0] = torch.inf
assert scoring(gradients, flat)[2].tolist() == [False, True, True]

after = torch.rand(flat.numel(), generator=g) < 0.2
names = [str(i) for i in range(3)]
sizes = [w.numel() for w in weights]
views = [{n: p.view(s) for n, p, s in zip(names, f.split(sizes), shapes)} for f in (flat, after)]
expected = changes(views[0], views[1], int(flat.sum()), True, {})
channels = kernels.channels(shapes, flat.device)
assert torch.equal(kernels.tally(flat, after, *channels), expected)
expected = changes(None, views[1], flat.numel(), True, {})
assert torch.equal(kernels.tally(None, after, *channels), expected)

tensors = [torch.randn(5, 7, 3), torch.randn(130), torch.randn(64)]
kept = [torch.rand(t.shape, generator=g) < 0.3 for t in tensors]
expected = [t * k for t, k in zip(tensors, kept)]
kernels.Clearing(tensors, kept)(tensors)
assert all(torch.equal(t, e) for t, e in zip(tensors, expected))
"""


REPLAY = """
import torch
from torch import nn
import barebones as bb
from barebones.gpu.kernels import layers, selecting
from barebones.pruning import graphed

layers.BLOCK = selecting.BLOCK = 64
selecting.PROGRAMS, selecting.MANY, selecting.STRIDE = 3, 200, 7
replaying = True


class Recorded:
    # As a graph does it: what it returns is one and the same memory, from the second call with a shape on.
    def __init__(self, function, eager, on_recorded):
        self.function, self.on_recorded, self.memory = function, on_recorded, {}

    def __call__(self, *tensors):
        key = tuple(t.shape for t in tensors)
        found = self.function(*[t.clone() for t in tensors])
        if key not in self.memory:
            self.memory[key] = None
            return found
        if self.memory[key] is None:
            self.memory[key] = [t.clone() for t in found]
            self.on_recorded()
        for kept, new in zip(self.memory[key], found):
            kept.copy_(new)
        return self.memory[key]


graphed.Captured = Recorded
graphed.GraphedRounds.fits = staticmethod(lambda probe, method, transposed: replaying)
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 5, 3),
                      nn.ReLU(), nn.Flatten(), nn.Linear(80, 4)).to(memory_format=torch.channels_last)
before = {n: t.clone() for n, t in model.state_dict().items()}
sizes = (5, 5, 6)
batches = [(torch.randn(n, 2, 6, 6), torch.randint(4, (n,))) for n in sizes]
for method in ("force", "iter-snip", "hybrid", "iter-grasp"):
    plain, watched = [], []
    for replaying, seen in ((False, plain), (True, watched)):
        def watch(step):
            seen.append((step, {n: m.clone() for n, m in step.masks.items()}))
        result = bb.prune(model, batches, 0.9, method, rounds=6, on_round=watch, on_collapse="ignore")
    for (a, masks), (b, others) in zip(plain, watched, strict=True):
        assert all(torch.equal(masks[n], others[n]) and torch.equal(b.masks[n], others[n]) for n in masks), method
        assert (a.pruned, a.recovered, a.recovered_empty) == (b.pruned, b.recovered, b.recovered_empty)
        assert a.record.layers == b.record.layers and abs(a.saliency - b.saliency) < 1e-4 * a.saliency
        assert (a.weights_digest, a.batches_digest) == (b.weights_digest, b.batches_digest)
    again = bb.prune(model, batches, 0.9, method, rounds=6, after=watched[2][0], on_collapse="ignore")
    assert all(torch.equal(again.masks[n], result.masks[n]) for n in result.masks)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton, which comes with torch for NVIDIA GPUs")
@pytest.mark.parametrize("script", [CHECK, REPLAY], ids=["kernels", "rounds that are replayed"])
def test_the_kernels_compute_what_plain_torch_does(script):
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, "TRITON_INTERPRET": "1"}
    )
    if "only 0-dimensional arrays can be converted" in done.stderr:
        pytest.skip("this Triton's interpreter does not work with this numpy")
    assert done.returncode == 0, done.stderr
