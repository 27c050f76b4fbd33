"""Kernels: what an NVIDIA GPU does in one pass over the weights where torch's own operations would need many.

They are written in Triton, which torch's CUDA builds bring along. Each is exact, deterministic and free of any word
from the host; where Triton is missing, `available` says so and the callers go torch's way, with the same results.
"""

from .base import available
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
