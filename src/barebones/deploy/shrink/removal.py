"""Removal: which coupled groups of channels can be removed without changing the network's outputs.

A group can be removed if one of these holds for each layer that has one of its channels as an input:

- the layer does not use the channel: all its kept weights for the channel belong to outputs that are also removed;
- the channel is always zero;
- the channel is constant, and the constant's contribution can be added to the layer's bias instead.

A channel carries a constant signal if no path of kept weights leads to it from the model's input: its value is then
made of biases and shifts alone, the same for every input and at every position.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...paths import trace
from ...paths.channels.labels import ChannelSlot
from ...paths.coupling import Coupling
from ...running.outputs import outputs
from ...scope import parameters
from .cut import connections

SLACK = 1e-5  # relative; a channel whose values differ by at most this counts as constant
Watch = Callable[[str, Tensor], None]  # gets the name of a layer and its input, as (channels, values)


@dataclass
class ChannelReader:
    """A layer that combines its input channels: which of them its mask lets it use, and what values they have."""

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
        return ~self.reached & (self.constant == 0)

    @property
    def foldable(self) -> Tensor:
        """The input channels whose constant can be replaced: it adds the same to every position, as a bias does."""
        constant = ~self.reached & self.constant.isfinite()
        can = _pads_no_zeros(self.layer) and not self.bias_pruned and (self.has_bias or not self.constants_can_move)
        return constant if can else torch.zeros_like(constant)

    @property
    def has_bias(self) -> bool:
        """Whether the layer has a bias. Else the small network gets one, and `expand` computes its constants again."""
        return self.layer.bias is not None

    @property
    def writes(self) -> Tensor:
        """The output channels that depend on the model's input through this layer."""
        return (self.reads & self.reached).any(1)


def _pads_no_zeros(layer: nn.Module) -> bool:
    """Whether a constant input adds the same at every position; false for transposed and grouped convolutions."""
    if isinstance(layer, nn.Linear):
        return True
    if not isinstance(layer, nn.modules.conv._ConvNd) or layer.transposed or layer.groups > 1:
        return False
    padding: Any = layer.padding
    without_padding = padding == "valid" or (not isinstance(padding, str) and not any(padding))
    return without_padding or layer.padding_mode != "zeros"


def reached(
    model: nn.Module, masks: Mapping[str, Tensor], example: Any, layers: Mapping[str, nn.Module]
) -> tuple[dict[str, Tensor], bool]:
    """Return which input channels of each layer a path of kept weights connects with the model's input.

    If the forward pass reads values in Python, or a length that depends on them, this is also returned, and all
    channels count as reached.
    """
    channels: dict[str, Tensor] = {}

    def watch(name: str, values: Tensor) -> None:
        channels[name] = channels.get(name, False) | (values != 0).any(1)

    with _watched(layers, watch):
        traced = trace(model, masks, example, backward=False, strict=True)
    if traced.peeked:
        channels = {name: torch.ones_like(bits) for name, bits in channels.items()}
    return channels, traced.peeked


def constants(model: nn.Module, runs: list[tuple[bool, Any]], layers: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Return the value of each input channel that is the same in all runs (train mode, input), else NaN."""
    values: dict[str, Tensor] = {}

    def watch(name: str, observed: Tensor) -> None:
        if not observed.numel():  # an expert that gets no token
            return
        low, high = observed.amin(1), observed.amax(1)
        value = values.setdefault(name, low.clone())
        slack = SLACK * (1 + value.abs())
        constant = ((low - value).abs() <= slack) & ((high - value).abs() <= slack)
        constant &= (value != 0) | ((low == 0) & (high == 0))  # zero is exactly zero
        values[name] = torch.where(constant, value, torch.nan)

    with _watched(layers, watch):
        for train, example in runs:
            outputs(model.train(train), example)
    return values


@contextmanager
def _watched(layers: Mapping[str, nn.Module], watch: Watch) -> Iterator[None]:

    def look(name: str, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with torch._C.DisableTorchFunction(), torch.no_grad():
            x = (args[0] if args else kwargs["input"]).detach()
            dim = -1 if isinstance(module, nn.Linear) else x.dim() - len(module.kernel_size) - 1
            watch(name, x.movedim(dim, 0).unsqueeze(-1).flatten(1).cpu())  # a single vector has one value each

    with ExitStack() as hooks:
        for name, layer in layers.items():
            hooks.enter_context(layer.register_forward_pre_hook(partial(look, name), with_kwargs=True))
        yield


def readers(
    coupling: Coupling,
    model: nn.Module,
    masks: Mapping[str, Tensor],
    arrives: Mapping[str, Tensor],
    values: Mapping[str, Tensor],
) -> list[ChannelReader]:
    """Return the layers that read channels; what was not observed counts as dependent on the input."""
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
        mask = masks.get(names.get(id(weight), ""), torch.ones(weight.shape, dtype=torch.bool, device="cpu"))
        bias_mask = masks.get(names.get(id(layer.bias), ""))
        result.append(
            ChannelReader(
                layer,
                inputs=slot,
                outputs=coupling.slots.get((name, "out")),
                reads=connections(mask.cpu(), layer),
                reached=arrives.get(name, torch.ones(slot.size, dtype=torch.bool, device="cpu")),
                constant=values.get(name, torch.full((slot.size,), torch.nan, device="cpu")).cpu(),
                bias_pruned=bias_mask is not None and not bool(bias_mask.all()),
                constants_can_move=can_move,
            )
        )
    return result


def choose(
    coupling: Coupling, reading: list[ChannelReader], pinned: Tensor, multiple_of: int, at_least: int
) -> tuple[Tensor, Tensor]:
    """Return the groups that carry no signal while the `pinned` groups are kept, and those of them to remove.

    Every layer keeps a multiple of `multiple_of` channels (or all that it has), and `at_least` channels.
    """
    pinned, fillers = pinned | coupling.fixed, torch.zeros_like(pinned)
    while True:
        unused, unread = _unused(coupling, reading, pinned)
        gone = unused & ~fillers
        missing = _missing(coupling, gone, multiple_of, at_least, unread)
        if not missing.any():
            return unused, gone
        fillers = fillers | (missing & unread)  # no layer reads these: they may be kept without their inputs
        pinned = pinned | (missing & ~unread)


def _unused(coupling: Coupling, reading: list[ChannelReader], pinned: Tensor) -> tuple[Tensor, Tensor]:
    """Return the groups that carry no signal, and the groups that no kept channel reads.

    At first all groups that are not pinned count as unused. Then the groups that a kept channel needs are kept, then
    the groups that these need, and so on; a ring of channels that only read each other is removed.
    """
    unused = ~pinned
    while True:
        removable, unread, reproducible = torch.ones(3, len(coupling.group), dtype=torch.bool, device="cpu")
        for reader in reading:
            kept_outputs = torch.ones(len(reader.reads), dtype=torch.bool, device="cpu")
            if reader.outputs:
                kept_outputs = ~unused[coupling.groups(reader.outputs)]
            span, ignored = reader.inputs.span, ~reader.reads[kept_outputs].any(0)
            unread[span] = ignored
            removable[span] = ignored | reader.zero | reader.foldable
            reproducible[span] = ignored | reader.zero | reader.has_bias
        still_unused = unused & coupling.all_of(removable)
        needed = still_unused & ~coupling.all_of(reproducible)  # `expand` must compute these constants
        still_unused &= ~_made_of_constants(coupling, reading, needed)
        if torch.equal(still_unused, unused):
            return unused, coupling.all_of(unread)
        unused = still_unused


def _made_of_constants(coupling: Coupling, reading: list[ChannelReader], needed: Tensor) -> Tensor:
    """Return which of these groups have constants that layers make of other constants, which training may change."""
    result = torch.zeros_like(needed)
    for reader in reading:
        if reader.outputs:
            written = coupling.groups(reader.outputs)
            made = needed[written] & ~reader.writes & (reader.reads & ~reader.zero).any(1)
            result[written[made]] = True
    return result


def zeroed_connections(coupling: Coupling, reading: list[ChannelReader], gone: Tensor) -> dict[str, Tensor]:
    """Return the connections between kept and removed channels that `expand` sets to zero, as (outputs, inputs).

    They carry a zero, which training may change in the large network, or a constant that was added to a bias.
    """
    result = {}
    for reader in reading:
        gone_inputs = gone[coupling.groups(reader.inputs)]
        gone_outputs = torch.zeros(len(reader.reads), 1, dtype=torch.bool, device="cpu")
        if reader.outputs:
            gone_outputs = gone[coupling.groups(reader.outputs)][:, None]
        replaced = gone_inputs & (reader.zero | (reader.foldable & reader.has_bias))
        cells = reader.reads & ((~gone_outputs & replaced) | (gone_outputs & ~gone_inputs & reader.zero))
        if cells.any():
            result[reader.inputs.name] = cells
    return result


def folded_constants(
    coupling: Coupling, reading: list[ChannelReader], gone: Tensor
) -> tuple[dict[str, Tensor], dict[str, int], bool]:
    """Return, by layer, the sum that its removed constant inputs add to its output, and the number of these inputs.

    Also whether a layer without a bias reads such inputs: `expand` then computes them again from removed channels.
    """
    added, counts, computed_again = {}, {}, False
    for reader in reading:
        channels = gone[coupling.groups(reader.inputs)] & reader.foldable & ~reader.zero
        if not channels.any():
            continue
        computed_again |= not reader.has_bias
        weight: Any = reader.layer.weight
        weight = weight.detach().flatten(2).sum(2) if weight.dim() > 2 else weight.detach()
        shift = weight[:, channels.to(weight.device)] @ reader.constant[channels].to(weight)
        if bool((shift != 0).any()):
            added[reader.inputs.name], counts[reader.inputs.name] = shift, int(channels.sum())
    return added, counts, computed_again


def _missing(coupling: Coupling, gone: Tensor, multiple_of: int, at_least: int, unread: Tensor) -> Tensor:
    """Return the groups that must be kept to reach the required widths and valid shapes."""
    kept = torch.zeros_like(gone)
    for slot in coupling.slots.values():
        if slot.side == "in":
            continue
        groups = coupling.groups(slot)
        removed = gone[groups] & ~kept[groups]
        width = slot.size - int(removed.sum())
        fewest = max(at_least, int(coupling.pooled[groups].any()))
        required_width = max(-(-width // multiple_of) * multiple_of, fewest)
        _keep(kept, groups[removed], min(required_width, slot.size) - width, unread)
    for (name, side), slot in coupling.slots.items():
        blocks = getattr(slot.layer, "groups", 1)  # of a grouped convolution
        if side != "in" or blocks == 1 or (name, "out") not in coupling.slots:
            continue
        ins, outs = (coupling.groups(coupling.slots[name, side]).view(blocks, -1) for side in ("in", "out"))
        empty_blocks = gone[ins].all(1) & gone[outs].all(1)
        for groups in (ins, outs):
            removed = gone[groups] & ~kept[groups]
            fewest = int(removed[~empty_blocks].sum(1).min()) if (~empty_blocks).any() else 0
            for block in (~empty_blocks).nonzero().flatten():
                _keep(kept, groups[block][removed[block]], int(removed[block].sum()) - fewest, unread)
    return kept


def _keep(kept: Tensor, groups: Tensor, count: int, unread: Tensor) -> None:
    """Mark `count` of these groups as kept, first those that no layer reads."""
    groups = groups.unique()
    if count > 0:
        order = torch.argsort((~unread[groups]).int(), stable=True)
        kept[groups[order][:count]] = True


def prune_shifts(
    coupling: Coupling, observe: Callable[[], list[ChannelReader]], network: nn.Module
) -> tuple[list[ChannelReader], dict[str, Tensor], dict[str, int]]:
    """Set to zero each shift whose channel could be removed if the shift were zero, until no such shift is left.

    Return what `observe` returned last, the channels of each layer whose shift is now zero, and how many were not.
    """
    no_group, layers = torch.zeros_like(coupling.fixed), dict(network.named_modules())
    zeroed: dict[str, Tensor] = {}
    pruned: dict[str, int] = {}
    while True:
        reading, before = observe(), sum(pruned.values())
        shiftless = [replace(r, constant=torch.where(r.reached, r.constant, 0.0)) for r in reading]
        removable, _ = choose(coupling, reading, no_group, 1, 0)
        without_shifts, _ = choose(coupling, shiftless, no_group, 1, 0)
        for (name, side), slot in coupling.slots.items():
            bias = getattr(layers.get(name), "bias", None)
            if side == "in" or not isinstance(bias, Tensor):
                continue
            channels = (without_shifts & ~removable)[coupling.groups(slot)].to(bias.device)
            count = int((channels & (bias != 0)).sum())
            if count:
                zero_shifts(layers[name], channels)
                zeroed[name] = zeroed.get(name, torch.zeros_like(channels)) | channels
                pruned[name] = pruned.get(name, 0) + count
        if sum(pruned.values()) == before:
            return reading, zeroed, pruned


def zero_shifts(layer: Any, channels: Tensor) -> None:
    """Set the shifts of these channels to zero, and so the statistics that they would correct."""
    channels = channels.to(layer.bias.device)
    with torch.no_grad():
        layer.bias[channels] = 0
        if getattr(layer, "running_mean", None) is not None:
            layer.running_mean[channels] = 0
