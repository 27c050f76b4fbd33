"""The advisor behind `barebones bench speed`: what pruning gains on this machine, measured against the dense one."""

from .advisor import advise

__all__ = ["advise"]
