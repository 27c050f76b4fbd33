"""Cuts: all that a network must lose to be shrunk."""

from dataclasses import dataclass

from torch import Tensor

from .cut import RemovedChannels


@dataclass(frozen=True)
class Notes:
    """What a plan says besides the sizes (see `ShrinkPlan`), and whether the weights are stored with channels last."""

    folded: dict[str, int]
    shifts: dict[str, int]
    left: dict[str, str]
    unchecked: str
    layout: str
    channels_last: bool


@dataclass(frozen=True)
class Cuts:
    """What shrinking changes in a network, by layer."""

    removed: RemovedChannels
    added: dict[str, Tensor]  # to the bias: what constant inputs that are removed contribute
    zeroed: dict[str, Tensor]  # bool: the channels whose shift counts as pruned
    severed: dict[str, Tensor]  # bool, as (outputs, inputs): the connections that `expand` sets to zero
    notes: Notes
