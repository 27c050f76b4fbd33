"""Shrinking: a plain, smaller network that computes what the masked one computes."""

from .network import Shrunk, apply_cuts, find_cuts, shrink
from .plan import Cuts, LayerPlan, ShrinkPlan

__all__ = ["Cuts", "LayerPlan", "ShrinkPlan", "Shrunk", "apply_cuts", "find_cuts", "shrink"]
