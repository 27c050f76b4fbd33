"""Without a GPU: recording of CUDA graphs with stand-ins for the device, and the kernel that clears pruned weights."""

import gc
import os
import subprocess
import sys
from contextlib import nullcontext
from importlib.util import find_spec

import pytest
import torch

from barebones.gpu.graphs import Captured


class Garbage:
    """An object in a cycle, which only the collector deletes."""

    def __init__(self, deleted: list[bool]) -> None:
        self.deleted, self.own = deleted, self

    def __del__(self) -> None:
        self.deleted.append(gc.isenabled())


@pytest.fixture(autouse=True)
def recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, stream, capture_error_mode: nullcontext())


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_collected_while_a_graph_is_recorded(enabled):
    deleted: list[bool] = []
    seen: list[int] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        Garbage(deleted)
        [[] for _ in range(100_000)]  # this alone would make the collector run, if it were enabled
        seen.append(len(deleted))
        return x

    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        Garbage(deleted)
        Captured(function)._record("key", (torch.zeros(2),))
        assert seen == [0]
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_after_a_failed_recording_garbage_is_collected_again():
    def function(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("operation not permitted")

    with pytest.raises(ValueError, match=r"cannot be captured in a CUDA graph \(operation not permitted\)"):
        Captured(function)._record("key", (torch.zeros(2),))
    assert gc.isenabled()


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
