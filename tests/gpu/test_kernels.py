"""The GPU kernels compute what plain torch does: on the CPU, in Triton's interpreter, if Triton is installed."""

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

gradients = [torch.randn(w.shape, generator=g) for w in weights]  # the first two have another layout than their weights
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


@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton, which comes with torch for NVIDIA GPUs")
def test_the_kernels_compute_what_plain_torch_does():
    done = subprocess.run(
        [sys.executable, "-c", CHECK], capture_output=True, text=True, env={**os.environ, "TRITON_INTERPRET": "1"}
    )
    if "only 0-dimensional arrays can be converted" in done.stderr:
        pytest.skip("this Triton's interpreter does not work with this numpy")
    assert done.returncode == 0, done.stderr
