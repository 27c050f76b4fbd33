"""Removal: which coupled channels carry no signal from input to output, and may go without a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .coupling import Coupling, Place
from .cut import Removed, rows


@dataclass
class Reader:
    """A layer that mixes its input channels: who reads whom by its mask, and what arrives."""

    layer: nn.Module
    place: Place
    out: Place | None
    reads: Tensor  # (outputs, inputs)
    reached: Tensor  # per input channel, by the model's input
    constant: Tensor  # its value where it is one, else NaN

    @property
    def silent(self) -> Tensor:
        """Channels that bring zeros, whatever the input."""
        return ~self.reached & (self.constant == 0)

    def without_shifts(self) -> Reader:
        """As if every constant that arrives were zero."""
        return replace(self, constant=torch.where(self.reached, self.constant, 0.0))

    @property
    def foldable(self) -> Tensor:
        """Channels whose constant adds the same to every place of the output, so that the bias can."""
        same = ~self.reached & self.constant.isfinite()
        return same if _unpadded(self.layer) else torch.zeros_like(same)


def _unpadded(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Linear):
        return True
    if not isinstance(layer, nn.modules.conv._ConvNd) or layer.transposed or layer.groups > 1:
        return False
    padding: Any = layer.padding
    return padding == "valid" or (not isinstance(padding, str) and not any(padding))


def readers(
    coupled: Coupling,
    layers: Mapping[str, nn.Module],
    masks: Mapping[str, Tensor],
    reached: Mapping[str, Tensor],
    constants: Mapping[str, Tensor],
) -> list[Reader]:
    """The layers that read channels; what nobody has seen arrive counts as reached."""
    found = []
    for (name, side), place in coupled.places.items():
        layer = layers.get(name)
        if side != "in" or layer is None:
            continue
        weight = layer.weight
        assert isinstance(weight, Tensor)
        mask = masks.get(f"{name}.weight" if name else "weight", torch.ones(weight.shape, dtype=torch.bool))
        found.append(
            Reader(
                layer,
                place,
                coupled.places.get((name, "out")),
                rows(mask.cpu(), layer),
                reached.get(name, torch.ones(place.size, dtype=torch.bool)),
                constants.get(name, torch.full((place.size,), torch.nan)).cpu(),
            )
        )
    return found


@dataclass
class Choice:
    """Labels: what carries nothing (`idle`), and of it what stays to fill up a width (`fillers`)."""

    idle: Tensor
    fillers: Tensor

    @property
    def gone(self) -> Tensor:
        """What is taken out."""
        return self.idle & ~self.fillers

    def removed(self, coupled: Coupling) -> Removed:
        """By place."""
        return {key: self.gone[coupled.label[place.span]] for key, place in coupled.places.items()}


def choose(coupled: Coupling, reading: list[Reader], pinned: Tensor, multiple_of: int, at_least: int) -> Choice:
    """The largest set of channels that can go: none that is read, or that brings more than a constant.

    `pinned` labels stay. What is left of each layer is a multiple of `multiple_of`, as far as it has so many, and
    at least `at_least`; groups of a convolution stay equally wide.
    """
    pinned, fillers = pinned | coupled.fixed, torch.zeros_like(pinned)
    while True:
        idle, unread = _idle(coupled, reading, pinned)
        choice = Choice(idle, fillers & idle)
        if not (extra := _missing(coupled, choice, multiple_of, at_least, unread)).any():
            return choice
        fillers = fillers | (extra & unread)  # nobody reads it: it may stay whatever becomes of what it reads itself
        pinned = pinned | (extra & ~unread)


def _idle(coupled: Coupling, reading: list[Reader], pinned: Tensor) -> tuple[Tensor, Tensor]:
    """The labels that carry nothing, and those that nobody reads; what only they read follows."""
    idle = torch.zeros_like(pinned)
    while True:
        fine, unread = (torch.ones(len(coupled.label), dtype=torch.bool) for _ in range(2))
        for one in reading:
            awake = ~idle[coupled.label[one.out.span]] if one.out else torch.ones(len(one.reads), dtype=torch.bool)
            read = one.reads[awake].any(0)
            unread[one.place.span] = ~read
            fine[one.place.span] = ~read | one.silent | one.foldable
        now = coupled.every(fine) & ~pinned
        if torch.equal(now, idle):
            return idle, coupled.every(unread)
        idle = now


def _missing(coupled: Coupling, choice: Choice, multiple_of: int, at_least: int, unread: Tensor) -> Tensor:
    """Labels that have to stay for the shapes to be possible, and as wide as asked for."""
    stay = torch.zeros_like(choice.idle)
    for place in coupled.places.values():
        if place.side == "in":
            continue
        labels = coupled.label[place.span]
        gone = choice.gone[labels] & ~stay[labels]
        left = place.size - int(gone.sum())
        wanted = max(-(-left // multiple_of) * multiple_of, at_least)
        _keep(stay, labels[gone], min(wanted, place.size) - left, unread)
    for (name, side), place in coupled.places.items():
        groups = getattr(place.layer, "groups", 1)
        if side != "in" or groups == 1 or (name, "out") not in coupled.places:
            continue
        ins, outs = (coupled.label[coupled.places[name, s].span].view(groups, -1) for s in ("in", "out"))
        whole = choice.gone[ins].all(1) & choice.gone[outs].all(1)
        for labels in (ins, outs):
            gone = choice.gone[labels] & ~stay[labels]
            fewest = int(gone[~whole].sum(1).min()) if (~whole).any() else 0
            for group in (~whole).nonzero().flatten():
                own = labels[group][gone[group]]
                _keep(stay, own, len(own) - fewest, unread)
    return stay


def _keep(stay: Tensor, labels: Tensor, count: int, unread: Tensor) -> None:
    """Mark so many of them, those that nobody reads first."""
    labels = labels.unique()
    if count > 0:
        order = torch.argsort((~unread[labels]).int(), stable=True)
        stay[labels[order][:count]] = True
