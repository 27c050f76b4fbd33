"""Precision: the number formats in which matrix products and convolutions are computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
# The integer type for each number of bytes per element: floats that are seen as integers keep every bit.
INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@contextmanager
def tf32(device: torch.device, allowed: bool) -> Iterator[None]:
    """Allow or forbid products on a GPU to round their factors to TF32; put torch's switches back at the end."""
    if device.type != "cuda":
        yield
        return
    matmul, conv = torch.backends.cuda.matmul, getattr(torch.backends.cudnn, "conv", None)
    if conv is not None and hasattr(conv, "fp32_precision"):  # since torch 2.9; the older switches clash with these
        switches, name, value = [matmul, conv], "fp32_precision", "tf32" if allowed else "ieee"
    else:
        switches, name, value = [matmul, torch.backends.cudnn], "allow_tf32", allowed  # type: ignore[assignment]
    before = [getattr(switch, name) for switch in switches]
    try:
        for switch in switches:
            setattr(switch, name, value)
        yield
    finally:
        for switch, old in zip(switches, before, strict=True):
            setattr(switch, name, old)


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Return torch's autocast context for a precision; it does nothing for one that needs no autocast."""
    return torch.autocast(device.type, AUTOCAST.get(precision, torch.bfloat16), enabled=precision in AUTOCAST)
