"""Triton, if it is installed, and what all kernels share."""

from __future__ import annotations

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # pragma: no cover (a machine without a GPU has no Triton, one with it does)
    triton = tl = None

BLOCK = 2048  # weights that one program processes together


def available(device: torch.device) -> bool:
    """Return whether the kernels run on a device: Triton is installed and the device is an NVIDIA GPU."""
    return triton is not None and device.type == "cuda"
