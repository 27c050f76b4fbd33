"""Networks: plain modules, and their initialization."""

from .init import initialize
from .small import SmallResNet, SmallVGG, small_resnet, small_vgg

__all__ = ["SmallResNet", "SmallVGG", "initialize", "small_resnet", "small_vgg"]
