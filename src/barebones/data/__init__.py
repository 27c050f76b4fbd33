"""Data: images and labels as tensors."""

from .digits import Split, digits

__all__ = ["Split", "digits"]
