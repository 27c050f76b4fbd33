"""Sparse execution on the CPU: layers that compute with their kept weights only, if that is faster."""

from .engine import load_kernel
from .layer import LayerChoice, SparseLayer
from .model import choices, sparsify_for_cpu

__all__ = ["LayerChoice", "SparseLayer", "choices", "load_kernel", "sparsify_for_cpu"]
