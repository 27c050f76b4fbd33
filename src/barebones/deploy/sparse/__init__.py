"""Sparse execution on the CPU: layers that compute with their kept weights only, if that is faster."""

from .engine import engine
from .layer import LayerChoice, SparseLayer
from .model import choices, sparsify_for_cpu

__all__ = ["LayerChoice", "SparseLayer", "choices", "engine", "sparsify_for_cpu"]
