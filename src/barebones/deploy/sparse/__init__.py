"""Sparse execution on the CPU: layers that compute with their kept weights only, where that is faster."""

from .engine import engine
from .layer import Choice, SparseLayer
from .model import choices, sparsify_for_cpu

__all__ = ["Choice", "SparseLayer", "choices", "engine", "sparsify_for_cpu"]
