"""Shrinking: a plain, smaller network that computes what the masked one computes."""

from .network import Shrunk, shrink
from .plan import LayerPlan, ShrinkPlan

__all__ = ["LayerPlan", "ShrinkPlan", "Shrunk", "shrink"]
