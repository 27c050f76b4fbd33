"""Removal: which coupled channels carry no signal from input to output, and may go without a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ...scope import parameters
from .coupling import ChannelSlot, Coupling
from .cut import Removed, rows


@dataclass
class Reader:
    """A layer that mixes its input channels: who reads whom by its mask, and what arrives."""

    layer: nn.Module
    place: ChannelSlot
    out: ChannelSlot | None
    reads: Tensor  # (outputs, inputs)
    reached: Tensor  # per input channel, by the model's input
    constant: Tensor  # its value where it is one, else NaN
    lone: bool = False  # some parameter is all channels', and may move any constant in training
    held: bool = False  # its bias is pruned itself, at least in part

    @property
    def silent(self) -> Tensor:
        """Channels that bring zeros, whatever the input."""
        return ~self.reached & (self.constant == 0)

    def without_shifts(self) -> Reader:
        """As if every constant that arrives were zero."""
        return replace(self, constant=torch.where(self.reached, self.constant, 0.0))

    @property
    def writes(self) -> Tensor:
        """Output channels that the model's input reaches through it."""
        return (self.reads & self.reached).any(1)

    @property
    def foldable(self) -> Tensor:
        """Channels whose constant adds the same to every place of the output, so that the bias can."""
        same = ~self.reached & self.constant.isfinite()
        can = _unpadded(self.layer) and not self.held and (self.biased or not self.lone)
        return same if can else torch.zeros_like(same)

    @property
    def biased(self) -> bool:
        """Its bias can take over constants for good; else `expand` needs the channels that make them."""
        return self.layer.bias is not None


def _unpadded(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Linear):
        return True
    if not isinstance(layer, nn.modules.conv._ConvNd) or layer.transposed or layer.groups > 1:
        return False
    padding: Any = layer.padding
    return padding == "valid" or (not isinstance(padding, str) and not any(padding))


def readers(
    coupled: Coupling,
    model: nn.Module,
    masks: Mapping[str, Tensor],
    reached: Mapping[str, Tensor],
    constants: Mapping[str, Tensor],
) -> list[Reader]:
    """The layers that read channels; what nobody has seen arrive counts as reached."""
    found = []
    layers, names = dict(model.named_modules()), {id(p): name for name, p in parameters(model).items()}
    owners = {id(p): path for path, module in layers.items() for p in module._parameters.values()}
    placed = {name for name, _ in coupled.places}
    lone = any(p.numel() == 1 and p.requires_grad and owners[id(p)] not in placed for p in model.parameters())
    for (name, side), place in coupled.places.items():
        layer = layers.get(name)
        if side != "in" or layer is None:
            continue
        weight = layer.weight
        assert isinstance(weight, Tensor)
        mask = masks.get(names.get(id(weight), ""), torch.ones(weight.shape, dtype=torch.bool))
        of_bias = masks.get(names.get(id(layer.bias), ""))
        found.append(
            Reader(
                layer,
                place,
                coupled.places.get((name, "out")),
                rows(mask.cpu(), layer),
                reached.get(name, torch.ones(place.size, dtype=torch.bool)),
                constants.get(name, torch.full((place.size,), torch.nan)).cpu(),
                lone,
                of_bias is not None and not bool(of_bias.all()),
            )
        )
    return found


@dataclass
class Removal:
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


def choose(coupled: Coupling, reading: list[Reader], pinned: Tensor, multiple_of: int, at_least: int) -> Removal:
    """The largest set of channels that can go: none that is read, or that brings more than a constant.

    `pinned` labels stay. What is left of each layer is a multiple of `multiple_of`, as far as it has so many, and
    at least `at_least`, or one in front of a pool; groups of a convolution stay equally wide.
    """
    pinned, fillers = pinned | coupled.fixed, torch.zeros_like(pinned)
    while True:
        idle, unread = _idle(coupled, reading, pinned, fillers)
        choice = Removal(idle, fillers & idle)
        if not (extra := _missing(coupled, choice, multiple_of, at_least, unread)).any():
            return choice
        fillers = fillers | (extra & unread)  # nobody reads it: it may stay whatever becomes of what it reads itself
        pinned = pinned | (extra & ~unread)


def _idle(coupled: Coupling, reading: list[Reader], pinned: Tensor, fillers: Tensor) -> tuple[Tensor, Tensor]:
    """The labels that carry nothing, and those that nobody reads.

    From everything that may go, what is read stays, then what that reads, and so on: a ring of channels that only
    read each other goes.
    """
    idle = ~pinned
    while True:
        fine, unread, made = (torch.ones(len(coupled.label), dtype=torch.bool) for _ in range(3))
        for one in reading:
            awake = ~idle[coupled.label[one.out.span]] if one.out else torch.ones(len(one.reads), dtype=torch.bool)
            read = one.reads[awake].any(0)
            unread[one.place.span] = ~read
            fine[one.place.span] = ~read | one.silent | one.foldable
            made[one.place.span] = ~read | one.silent | one.biased
        ignored = coupled.every(unread)
        now = idle & coupled.every(fine)
        now &= ~_moving(coupled, reading, now & ~coupled.every(made), now & ~fillers)
        if torch.equal(now, idle):
            return idle, ignored
        idle = now


def _moving(coupled: Coupling, reading: list[Reader], read: Tensor, gone: Tensor) -> Tensor:
    """Of the labels whose constant `expand` needs, those made of a constant that stays: training would move it."""
    moving = torch.zeros_like(read)
    fresh = read
    while fresh.any():
        made = torch.zeros_like(read)
        for one in reading:
            if one.out is None:
                continue
            outs, ins = coupled.label[one.out.span], coupled.label[one.place.span]
            used = one.reads & (fresh[outs] & ~one.writes)[:, None]
            moving[outs[(used & ~gone[ins] & ~one.silent).any(1)]] = True
            made[ins[used.any(0) & gone[ins]]] = True
        fresh, read = made & ~read, read | made
    return moving


def severed(coupled: Coupling, reading: list[Reader], choice: Removal) -> dict[str, Tensor]:
    """By layer, (outputs, inputs): the weights between what stays and what goes that `expand` leaves out.

    They bring a zero that training may move, or a constant that a bias has taken over.
    """
    found = {}
    for one in reading:
        gone = choice.gone[coupled.label[one.place.span]]
        over = choice.gone[coupled.label[one.out.span]] if one.out else torch.zeros(len(one.reads), dtype=torch.bool)
        taken = gone & (one.silent | (one.foldable & one.biased))
        found[one.place.name] = one.reads & ((~over[:, None] & taken) | (over[:, None] & (~gone & one.silent)))
    return {name: cells for name, cells in found.items() if cells.any()}


def _missing(coupled: Coupling, choice: Removal, multiple_of: int, at_least: int, unread: Tensor) -> Tensor:
    """Labels that have to stay for the shapes to be possible, and as wide as asked for."""
    stay = torch.zeros_like(choice.idle)
    for place in coupled.places.values():
        if place.side == "in":
            continue
        labels = coupled.label[place.span]
        gone = choice.gone[labels] & ~stay[labels]
        left = place.size - int(gone.sum())
        least = max(at_least, int(coupled.pooled[labels].any()))
        wanted = max(-(-left // multiple_of) * multiple_of, least)
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
