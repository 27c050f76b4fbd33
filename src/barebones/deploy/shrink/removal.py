"""Removal: which coupled groups of channels can go without changing what the network computes.

A group can go if, for each layer that reads one of its channels, one of these holds:

- the layer does not read the channel: its kept weights for it are all in output channels that go themselves;
- the channel is always zero;
- the channel is constant, and the layer's bias can take over what the constant adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ...scope import parameters
from .coupling import ChannelSlot, Coupling
from .cut import RemovedChannels, connections


@dataclass
class Reader:
    """A layer that combines its input channels: what it reads by its mask, and what arrives."""

    layer: nn.Module
    inputs: ChannelSlot
    outputs: ChannelSlot | None
    reads: Tensor  # (outputs, inputs): whether the mask keeps a weight between them
    reached: Tensor  # per input channel: whether it depends on the model's input
    constant: Tensor  # per input channel: its value if that is always the same, else NaN
    bias_pruned: bool  # at least one value of its bias is pruned
    constants_can_move: bool  # the model has a trainable scalar (a PReLU's slope) that may change any constant

    @property
    def zero(self) -> Tensor:
        """The input channels that are zero whatever the model's input."""
        return ~self.reached & (self.constant == 0)

    @property
    def foldable(self) -> Tensor:
        """The input channels whose constant adds the same at every position of the output, so that a bias can too."""
        constant = ~self.reached & self.constant.isfinite()
        can = _unpadded(self.layer) and not self.bias_pruned and (self.has_bias or not self.constants_can_move)
        return constant if can else torch.zeros_like(constant)

    @property
    def has_bias(self) -> bool:
        """Whether its own bias can take over constants for good; if not, `expand` needs the channels that make them."""
        return self.layer.bias is not None

    @property
    def writes(self) -> Tensor:
        """The output channels that the model's input reaches through this layer."""
        return (self.reads & self.reached).any(1)

    def without_shifts(self) -> Reader:
        """Return the reader as it would be if every constant that arrives were zero."""
        return replace(self, constant=torch.where(self.reached, self.constant, 0.0))


def _unpadded(layer: nn.Module) -> bool:
    """Whether the layer sees its input without zeros around it; transposed and grouped convolutions do not count."""
    if isinstance(layer, nn.Linear):
        return True
    if not isinstance(layer, nn.modules.conv._ConvNd) or layer.transposed or layer.groups > 1:
        return False
    padding: Any = layer.padding
    return padding == "valid" or (not isinstance(padding, str) and not any(padding))


def readers(
    coupling: Coupling,
    model: nn.Module,
    masks: Mapping[str, Tensor],
    reached: Mapping[str, Tensor],
    constants: Mapping[str, Tensor],
) -> list[Reader]:
    """Return the layers that read channels. A channel that no run has shown counts as reached."""
    modules, names = dict(model.named_modules()), {id(p): name for name, p in parameters(model).items()}
    owners = {id(p): path for path, module in modules.items() for p in module._parameters.values()}
    layers = {name for name, _ in coupling.slots}
    can_move = any(p.numel() == 1 and p.requires_grad and owners[id(p)] not in layers for p in model.parameters())
    result = []
    for (name, side), slot in coupling.slots.items():
        layer = modules.get(name)
        if side != "in" or layer is None:
            continue
        weight = layer.weight
        assert isinstance(weight, Tensor)
        mask = masks.get(names.get(id(weight), ""), torch.ones(weight.shape, dtype=torch.bool))
        bias_mask = masks.get(names.get(id(layer.bias), ""))
        result.append(
            Reader(
                layer,
                inputs=slot,
                outputs=coupling.slots.get((name, "out")),
                reads=connections(mask.cpu(), layer),
                reached=reached.get(name, torch.ones(slot.size, dtype=torch.bool)),
                constant=constants.get(name, torch.full((slot.size,), torch.nan)).cpu(),
                bias_pruned=bias_mask is not None and not bool(bias_mask.all()),
                constants_can_move=can_move,
            )
        )
    return result


@dataclass
class Removal:
    """A choice of groups: those that carry no signal (`idle`), and the idle ones that stay to fill up a width."""

    idle: Tensor
    fillers: Tensor

    @property
    def gone(self) -> Tensor:
        """The groups that are removed."""
        return self.idle & ~self.fillers

    def channels(self, coupling: Coupling) -> RemovedChannels:
        """Return the removed channels by layer and side."""
        return {key: self.gone[coupling.groups(slot)] for key, slot in coupling.slots.items()}


def choose(coupling: Coupling, reading: list[Reader], pinned: Tensor, multiple_of: int, at_least: int) -> Removal:
    """Return the largest set of groups that can go without the `pinned` ones.

    Every layer keeps a multiple of `multiple_of` channels (or all that it has) and at least `at_least`, or one in front
    of a pool. The groups of a grouped convolution stay equally wide.
    """
    pinned, fillers = pinned | coupling.fixed, torch.zeros_like(pinned)
    while True:
        idle, unread = _idle(coupling, reading, pinned, fillers)
        removal = Removal(idle, fillers & idle)
        missing = _missing(coupling, removal, multiple_of, at_least, unread)
        if not missing.any():
            return removal
        fillers = fillers | (missing & unread)  # nothing reads these: they may stay whatever happens to their inputs
        pinned = pinned | (missing & ~unread)


def _idle(coupling: Coupling, reading: list[Reader], pinned: Tensor, fillers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the groups that carry no signal, and the groups that nothing reads.

    Begin with all groups that are not pinned, and keep what is read, then what that reads, and so on. Channels that
    only read each other, in a ring, are never kept in this way: they go.
    """
    idle = ~pinned
    while True:
        removable, unread, reproducible = (torch.ones(len(coupling.group), dtype=torch.bool) for _ in range(3))
        for reader in reading:
            awake = torch.ones(len(reader.reads), dtype=torch.bool)
            if reader.outputs:
                awake = ~idle[coupling.groups(reader.outputs)]
            span, ignored = reader.inputs.span, ~reader.reads[awake].any(0)
            unread[span] = ignored
            removable[span] = ignored | reader.zero | reader.foldable
            reproducible[span] = ignored | reader.zero | reader.has_bias
        still_idle = idle & coupling.all_of(removable)
        needed = still_idle & ~coupling.all_of(reproducible)  # `expand` must make these constants again
        still_idle &= ~_made_of_kept(coupling, reading, needed, still_idle & ~fillers)
        if torch.equal(still_idle, idle):
            return idle, coupling.all_of(unread)
        idle = still_idle


def _made_of_kept(coupling: Coupling, reading: list[Reader], needed: Tensor, gone: Tensor) -> Tensor:
    """Return the groups with a constant that `expand` needs and that is made of a constant that stays.

    Training could change the constant that stays, and `expand` would then compute another one from it.
    """
    result = torch.zeros_like(needed)
    to_follow = needed
    while to_follow.any():
        sources = torch.zeros_like(needed)
        for reader in reading:
            if reader.outputs is None:
                continue
            written, read = coupling.groups(reader.outputs), coupling.groups(reader.inputs)
            used = reader.reads & (to_follow[written] & ~reader.writes)[:, None]
            result[written[(used & ~gone[read] & ~reader.zero).any(1)]] = True
            sources[read[used.any(0) & gone[read]]] = True
        to_follow, needed = sources & ~needed, needed | sources
    return result


def severed(coupling: Coupling, reading: list[Reader], removal: Removal) -> dict[str, Tensor]:
    """Return the connections between kept and removed channels that `expand` sets to zero, as (outputs, inputs).

    They carry a zero that training may change in the large network, or a constant that a bias has taken over.
    """
    result = {}
    for reader in reading:
        gone = removal.gone[coupling.groups(reader.inputs)]
        gone_outputs = torch.zeros(len(reader.reads), 1, dtype=torch.bool)
        if reader.outputs:
            gone_outputs = removal.gone[coupling.groups(reader.outputs)][:, None]
        replaced = gone & (reader.zero | (reader.foldable & reader.has_bias))
        cells = reader.reads & ((~gone_outputs & replaced) | (gone_outputs & ~gone & reader.zero))
        if cells.any():
            result[reader.inputs.name] = cells
    return result


def folded_constants(
    coupling: Coupling, reading: list[Reader], removal: Removal
) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Return what the constants among the removed inputs add to the output of each layer, and how many they are."""
    added, counts = {}, {}
    for reader in reading:
        channels = removal.gone[coupling.groups(reader.inputs)] & reader.foldable & ~reader.zero
        if not channels.any():
            continue
        weight: Any = reader.layer.weight
        weight = weight.detach().flatten(2).sum(2) if weight.dim() > 2 else weight.detach()
        shift = weight[:, channels.to(weight.device)] @ reader.constant[channels].to(weight)
        if bool((shift != 0).any()):
            added[reader.inputs.name], counts[reader.inputs.name] = shift, int(channels.sum())
    return added, counts


def _missing(coupling: Coupling, removal: Removal, multiple_of: int, at_least: int, unread: Tensor) -> Tensor:
    """Return groups that must stay after all, for possible shapes and for widths as asked."""
    stay = torch.zeros_like(removal.idle)
    for slot in coupling.slots.values():
        if slot.side == "in":
            continue
        groups = coupling.groups(slot)
        gone = removal.gone[groups] & ~stay[groups]
        left = slot.size - int(gone.sum())
        least = max(at_least, int(coupling.pooled[groups].any()))
        wanted = max(-(-left // multiple_of) * multiple_of, least)
        _keep(stay, groups[gone], min(wanted, slot.size) - left, unread)
    for (name, side), slot in coupling.slots.items():
        blocks = getattr(slot.layer, "groups", 1)  # of a grouped convolution
        if side != "in" or blocks == 1 or (name, "out") not in coupling.slots:
            continue
        ins, outs = (coupling.groups(coupling.slots[name, side]).view(blocks, -1) for side in ("in", "out"))
        whole = removal.gone[ins].all(1) & removal.gone[outs].all(1)
        for groups in (ins, outs):
            gone = removal.gone[groups] & ~stay[groups]
            fewest = int(gone[~whole].sum(1).min()) if (~whole).any() else 0
            for block in (~whole).nonzero().flatten():
                removed = groups[block][gone[block]]
                _keep(stay, removed, len(removed) - fewest, unread)
    return stay


def _keep(stay: Tensor, groups: Tensor, count: int, unread: Tensor) -> None:
    """Mark `count` of these groups as staying, first those that nothing reads."""
    groups = groups.unique()
    if count > 0:
        order = torch.argsort((~unread[groups]).int(), stable=True)
        stay[groups[order][:count]] = True
