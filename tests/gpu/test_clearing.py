"""The kernel that clears pruned weights does what plain torch does: in Triton's interpreter, if Triton is installed."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

CHECK = """
import torch
from barebones.gpu import clearing

clearing.BLOCK = 64
g = torch.Generator().manual_seed(0)
tensors = [torch.randn(5, 7, 3), torch.randn(130), torch.randn(64)]
kept = [torch.rand(t.shape, generator=g) < 0.3 for t in tensors]
expected = [t * k for t, k in zip(tensors, kept)]
clearing.Clearing(tensors, kept)(tensors)
assert all(torch.equal(t, e) for t, e in zip(tensors, expected))
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton, which comes with torch for NVIDIA GPUs")
def test_the_kernel_clears_what_plain_torch_clears():
    done = subprocess.run(
        [sys.executable, "-c", CHECK], capture_output=True, text=True, env={**os.environ, "TRITON_INTERPRET": "1"}
    )
    if "only 0-dimensional arrays can be converted" in done.stderr:
        pytest.skip("this Triton's interpreter does not work with this numpy")
    assert done.returncode == 0, done.stderr
