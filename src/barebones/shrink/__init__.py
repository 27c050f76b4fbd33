"""Shrinking: a plain, smaller network that computes what the masked one computes."""

from .network import Shrunk, shrink
from .plan import Layer, Plan

__all__ = ["Layer", "Plan", "Shrunk", "shrink"]
