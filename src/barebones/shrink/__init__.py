"""Shrinking: a plain, smaller network that computes what the masked one computes."""

from .network import Layer, Plan, Shrunk, shrink

__all__ = ["Layer", "Plan", "Shrunk", "shrink"]
