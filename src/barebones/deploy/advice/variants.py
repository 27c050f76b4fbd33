"""Variants: the ways to run a network that the advisor compares, each checked against the masked network."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from ...running.outputs import mismatch, tolerance
from ..export import session, to_onnx
from ..fold import folded
from ..shrink import Shrunk
from ..sparse import sparsify_for_cpu

Forward = Callable[[Tensor], Any]


@dataclass
class Variant:
    """One way to run the network, and what was measured, by batch size."""

    name: str
    forward: Forward | None  # None if it cannot run here
    weights: int = 0  # bytes
    note: str = ""
    lean: Forward | None = None  # the same without memory reserved for later calls, to measure memory with
    seconds: dict[int, float] = field(default_factory=dict)
    memory: dict[int, int | None] = field(default_factory=dict)  # bytes beyond what the process held before

    @property
    def pruned(self) -> bool:
        """Whether it runs the pruned network rather than the dense one."""
        return not self.name.startswith("dense")


def all_variants(model: nn.Module, small: Shrunk, example: Tensor, progress: Callable[[str], None]) -> list[Variant]:
    """Make all variants, dense PyTorch first, and check that each pruned one computes what the masked network does."""
    dense, masked, shrunk = (deepcopy(network).eval() for network in (model, small.expand(), small.module))
    channels_last = runs_channels_last(small, example)
    variants = [
        Variant("dense PyTorch", dense, _bytes(dense)),
        Variant("dense, prepared", _prepared(dense, example, channels_last), _bytes(dense)),
        Variant("masked", masked, _bytes(masked)),
        Variant("shrunk", shrunk, _bytes(shrunk)),
        Variant("shrunk, prepared", _prepared(shrunk, example, channels_last), _bytes(shrunk)),
    ]
    progress("measuring which layers are faster sparse")
    sparse = sparsify_for_cpu(shrunk, small.masks, example)
    variants.append(Variant("shrunk + sparse", sparse, _bytes(sparse)))
    progress("exporting to onnxruntime")
    variants += [_onnx("dense onnxruntime", dense, example), _onnx("shrunk onnxruntime", shrunk, example)]
    expected = _outputs(masked, example)
    for variant in variants:
        if variant.forward is not None and variant.pruned:
            problem = mismatch(expected, _outputs(variant.forward, example), tolerance(masked))
            if problem:
                raise ValueError(f"{variant.name!r} does not compute what the masked network does: {problem}")
    return variants


def runs_channels_last(small: Shrunk, example: Tensor) -> bool:
    """Tell whether the network takes images and runs with channels last in memory."""
    return example.dim() == 4 and not small.plan.layout


def _prepared(network: nn.Module, example: Tensor, channels_last: bool) -> Forward:
    """Prepare the network for inference: fold batch-norm and, if it is possible, store weights channels last."""
    ready = folded(network, example)
    if not channels_last:
        return ready
    last: nn.Module = ready.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return lambda images: last(images.to(memory_format=torch.channels_last))


def _onnx(name: str, network: nn.Module, example: Tensor) -> Variant:
    """Return the network in onnxruntime, with as many threads as torch has."""
    if missing := [p for p in ("onnx", "onnxscript", "onnxruntime") if find_spec(p) is None]:
        note = f"onnxruntime was not measured, because {missing[0]} is missing: pip install 'barebones[export]'"
        return Variant(name, None, note=note)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        to_onnx(network, {}, example, path)
        blob = path.read_bytes()
    threads = torch.get_num_threads()
    return Variant(name, session(blob, threads), len(blob), lean=session(blob, threads, arena=False))


def _outputs(forward: Forward, example: Tensor) -> Any:
    with torch.no_grad():
        return forward(example)


def _bytes(network: nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in (*network.parameters(), *network.buffers()))
