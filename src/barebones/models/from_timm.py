"""Networks of timm: timm:NAME, or timm:NAME@SIZE for another input size, from their configuration, without weights."""

from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

from torch import nn

from ..imports import sized
from ..messages import did_you_mean, first_line

PREFIX = "timm:"


class Wanted(NamedTuple):
    """What a network wants as its input: square images of `size` pixels, and how they are normalized."""

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


def build(name: str, classes: int, channels: int) -> nn.Module:
    """Build the network for the input size of its configuration, or for the one that the name ends with."""
    timm, (architecture, size) = _timm(), sized(name)
    config = _config(architecture)
    options = {"img_size": size} if size and config["fixed_input_size"] and size != config["input_size"][-1] else {}
    try:
        return timm.create_model(architecture, pretrained=False, num_classes=classes, in_chans=channels, **options)
    except Exception as error:  # its constructors raise anything for a size that does not fit
        problem = f"{name} cannot be built for {classes} classes and {channels} channels"
        raise ValueError(f"{problem} ({first_line(error)})") from error


def wanted(name: str) -> Wanted:
    architecture, size = sized(name)
    config = _config(architecture)
    return Wanted(size or config["input_size"][-1], tuple(config["mean"]), tuple(config["std"]))


@cache
def _config(architecture: str) -> dict[str, Any]:
    """Return the configuration of an architecture; only names that timm lists itself are taken, no hub or folder."""
    timm = _timm()
    if not timm.is_model(architecture) or ":" in architecture:
        hint = did_you_mean(architecture, timm.list_models()) or "; timm.list_models() lists all"
        raise ValueError(f"timm has no network {architecture!r}{hint}")
    config = timm.get_pretrained_cfg(architecture)
    defaults = {"input_size": (3, 224, 224), "fixed_input_size": False, "mean": (0.5,), "std": (0.5,)}
    return defaults | ({} if config is None else {name: getattr(config, name) for name in defaults})


def _timm() -> ModuleType:
    try:
        import timm
    except Exception as error:  # a torchvision for another torch raises errors of several classes
        found = "" if isinstance(error, ModuleNotFoundError) and error.name == "timm" else f" ({first_line(error)})"
        command = "pip install 'barebones[timm]', with the torchvision of your torch"
        raise ImportError(f"networks of timm need timm: {command}{found}") from error
    return timm
