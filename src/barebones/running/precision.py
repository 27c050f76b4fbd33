"""Precision: the number formats in which matrix products and convolutions are computed."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
# The integer type for each number of bytes per element: floats that are seen as integers keep every bit.
INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
WITHOUT_FLOAT64 = {"mps"}


def widest(device: torch.device) -> torch.dtype:
    """Return the type in which to add many numbers on a device."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


@contextmanager
def switched(switches: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    """Set attributes of modules, and put them back at the end."""
    before = [(module, name, getattr(module, name)) for module, name, _ in switches]
    try:
        for switch in switches:
            setattr(*switch)
        yield
    finally:
        for switch in before:
            setattr(*switch)


def computing(device: torch.device, precision: str) -> AbstractContextManager[None]:
    """Set torch's switches for a precision, and put them back at the end.

    On a GPU, products may round their factors to TF32, unless the precision is fp32. On a CPU without instructions for
    bf16 or fp16, oneDNN is off: torch itself would turn it off at the first such product, for the rest of the process.
    """
    return switched(_switches(device, precision))


def _switches(device: torch.device, precision: str) -> list[tuple[Any, str, Any]]:
    if device.type == "cpu":
        onednn = torch.backends.mkldnn
        return [(onednn, "enabled", onednn.enabled and (precision not in AUTOCAST or _in_onednn(precision)))]
    if device.type != "cuda":
        return []
    matmul, cudnn, allowed = torch.backends.cuda.matmul, torch.backends.cudnn, precision != "fp32"
    conv = getattr(cudnn, "conv", None)
    if conv is not None and hasattr(conv, "fp32_precision"):  # since torch 2.9; the older switches clash with these
        return [(module, "fp32_precision", "tf32" if allowed else "ieee") for module in (matmul, conv)]
    return [(module, "allow_tf32", allowed) for module in (matmul, cudnn)]


def _in_onednn(precision: str) -> bool:
    """Return whether oneDNN can compute in bf16 or fp16 on this CPU."""
    available = torch.backends.mkldnn.is_available()
    return available and bool(getattr(torch.ops.mkldnn, f"_is_mkldnn_{precision}_supported")())


def autocast(precision: str, device: torch.device, cache: bool = True) -> torch.autocast:
    """Compute products in bf16 or fp16, or not in these. With `cache`, weights that are cast stay so until the end."""
    return torch.autocast(device.type, AUTOCAST.get(precision), precision in AUTOCAST, cache_enabled=cache)
