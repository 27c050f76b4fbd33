"""Channels: the model's forward pass on the numbers of its channels, with a rule for each torch function."""

from .labels import ChannelSlot, Labels
from .layers import CONVOLUTIONS, NORMS
from .rules import OF_LAYERS, RULES

__all__ = ["CONVOLUTIONS", "NORMS", "OF_LAYERS", "RULES", "ChannelSlot", "Labels"]
