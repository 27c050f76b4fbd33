"""Precision: in which numbers matrix products and convolutions are computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@contextmanager
def tf32(device: torch.device, allowed: bool) -> Iterator[None]:
    """Whether products on a GPU may round their factors to TF32, whatever the caller's switches say."""
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
    """Where products are made in half precision, if that is the precision."""
    return torch.autocast(device.type, AUTOCAST.get(precision, torch.bfloat16), enabled=precision in AUTOCAST)
