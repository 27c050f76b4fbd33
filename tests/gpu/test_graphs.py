"""Recording of CUDA graphs, with stand-ins for the device: what happens around it."""

import gc
from contextlib import nullcontext

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
