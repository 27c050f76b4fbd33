"""Kernels: work that an NVIDIA GPU does in one pass over the weights, where torch's own operations would need many.

They are written in Triton, which torch's CUDA builds include. Each is exact and deterministic, and never waits for the
host. Where Triton is missing, `available` returns False and the callers use torch's operations, with the same results.
"""

from .blocks import available
from .layers import Clearing, Covering, Scoring, alike, channels, dense, in_memory_order, tally
from .selecting import LARGEST, top

__all__ = [
    "LARGEST",
    "Clearing",
    "Covering",
    "Scoring",
    "alike",
    "available",
    "channels",
    "dense",
    "in_memory_order",
    "tally",
    "top",
]
