"""Shrinking: a plain, smaller network that computes what the masked one computes."""

from .network import Shrunk, require_torch_pruning, shrink
from .plan import Layer, Plan

__all__ = ["Layer", "Plan", "Shrunk", "require_torch_pruning", "shrink"]
