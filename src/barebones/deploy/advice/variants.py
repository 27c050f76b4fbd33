"""Variants: the ways to run a network that the advisor compares."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from ...files.weights import dense_bytes
from ..export import session, to_onnx
from ..fold import folded
from ..shrink import Shrunk
from ..sparse import sparsify_for_cpu

Forward = Callable[[Tensor], Any]


@dataclass
class Variant:
    """One way to run the network, and what was measured, by batch size."""

    name: str
    forward: Forward
    weights: int = 0  # bytes
    lean: Forward | None = None  # the same without memory reserved for later calls, to measure memory with
    seconds: dict[int, float] = field(default_factory=dict)
    memory: dict[int, int | None] = field(default_factory=dict)  # bytes beyond what the process held before

    @property
    def pruned(self) -> bool:
        """Whether it runs the pruned network rather than the dense one."""
        return not self.name.startswith("dense")


def all_variants(
    model: nn.Module, small: Shrunk, example: Tensor, progress: Callable[[str], None]
) -> tuple[list[Variant], str]:
    """Return all variants, dense PyTorch first, and a sentence on what is missing; each is checked where it is made."""
    dense, masked, shrunk = (deepcopy(network).eval() for network in (model, small.expand(), small.module))
    channels_last = runs_channels_last(small, example)
    variants = [
        Variant("dense PyTorch", dense, dense_bytes(dense)),
        Variant("dense, prepared", _prepared(dense, example, channels_last), dense_bytes(dense)),
        Variant("masked", masked, dense_bytes(masked)),
        Variant("shrunk", shrunk, dense_bytes(shrunk)),
        Variant("shrunk, prepared", _prepared(shrunk, example, channels_last), dense_bytes(shrunk)),
    ]
    progress("measuring which layers are faster sparse")
    sparse = sparsify_for_cpu(shrunk, small.masks, example)
    variants.append(Variant("shrunk + sparse", sparse, dense_bytes(sparse)))
    progress("exporting to onnxruntime")
    try:
        variants += [_onnx("dense onnxruntime", dense, example), _onnx("shrunk onnxruntime", shrunk, example)]
    except ImportError as error:
        return variants, f"onnxruntime was not measured: {error}"
    return variants, ""


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
    with TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        to_onnx(network, {}, example, path)
        blob = path.read_bytes()
    threads = torch.get_num_threads()
    return Variant(name, session(blob, threads), len(blob), lean=session(blob, threads, arena=False))
