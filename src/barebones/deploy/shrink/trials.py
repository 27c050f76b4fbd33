"""Trials: cut the network, compare it with the masked one, and keep the channels whose removal changes an output."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ...masks import Masks
from ...messages import first_line
from ...paths.channels.labels import ChannelSlot
from ...paths.coupling import Coupling
from .comparison import Comparison, Unusable, copy_sharing_parameters
from .cut import RemovedChannels, without
from .removal import ChannelReader, choose, folded_constants, zeroed_connections


@dataclass
class Trial:
    """A cut network that computes what the masked one computes, in the precision of the comparison."""

    small: nn.Module
    origin: dict[str, Tensor]
    removed: RemovedChannels
    added: dict[str, Tensor]  # to the bias of each layer
    zeroed_connections: dict[str, Tensor]
    folded: dict[str, int]  # how many constant inputs were added to the bias of each layer
    telling: bool  # whether the outputs with random values were finite and not all the same


@dataclass
class Trials:
    """The search for the smallest network that passes the comparison."""

    model: nn.Module
    masks: Masks
    coupling: Coupling
    reading: list[ChannelReader]
    comparison: Comparison
    multiple_of: int
    left: dict[str, str] = field(default_factory=dict)  # by layer: why channels without a signal are kept

    def __post_init__(self) -> None:
        self.versions = [("", self.model, self.comparison)]  # as it is, and with each flag flipped
        for flag in flags(self.model):
            with suppress(Exception):  # it may not run with the other value
                other = flipped(self.model, flag)
                self.versions.append((flag, other, Comparison.for_network(other, self.comparison.inputs[0])))

    def best(self) -> Trial:
        """Return the trial that removes the most channels and still passes the comparison.

        The first trial removes all removable groups, and almost always passes. If it fails, the next one keeps one
        channel in every layer, and the last one keeps all groups. Then the groups that were kept are removed again, of
        half of the layers, of a quarter, and so on, where the comparison still passes.
        """
        no_group = torch.zeros_like(self.coupling.fixed)
        steps = [(no_group, 0), (no_group, 1), (~no_group, 1)]
        if not self.comparison.repeats:
            self.left["every layer"] = "its outputs are random in train mode, so they cannot be compared"
            steps = steps[-1:]
        for pinned, at_least in steps:
            try:
                trial = self.attempt(pinned, at_least)
                break
            except Unusable as error:
                reason = error
        else:
            why = f"the comparison fails even if no channel is removed ({reason})"
            cure = "is its output random, or does it depend on earlier calls?"
            raise ValueError(f"{type(self.model).__name__} cannot be shrunk: {why}; {cure}") from reason
        if self.comparison.repeats:
            trial, _ = self._released(list(self._coupled_layers()), trial, pinned, at_least)
        return trial

    def _released(
        self, layers: list[tuple[ChannelSlot, Tensor]], trial: Trial, pinned: Tensor, at_least: int
    ) -> tuple[Trial, Tensor]:
        """Release the pinned groups of these layers if the comparison passes without them, else of each half."""
        free = pinned.clone()
        for _, groups in layers:
            free[groups] = False
        if torch.equal(self._gone(free, at_least), self._gone(pinned, at_least)):
            return trial, pinned
        try:
            return self.attempt(free, at_least), free
        except Unusable as error:
            if len(layers) == 1:
                self.left[layers[0][0].name] = str(error)
                return trial, pinned
        middle = len(layers) // 2
        for half in (layers[:middle], layers[middle:]):
            trial, pinned = self._released(half, trial, pinned, at_least)
        return trial, pinned

    def _gone(self, pinned: Tensor, at_least: int) -> Tensor:
        return choose(self.coupling, self.reading, pinned, self.multiple_of, at_least)[1]

    def attempt(self, pinned: Tensor, at_least: int) -> Trial:
        """Remove all removable channels except the pinned groups; raise `Unusable` if the result differs."""
        gone = self._gone(pinned, at_least)
        removed = {key: gone[self.coupling.groups(slot)] for key, slot in self.coupling.slots.items()}
        added, counts, rests_on_values = folded_constants(self.coupling, self.reading, gone)
        try:
            small, origin = without(self.model, removed, added)
        except Exception as error:  # for example a layer whose weights are computed
            raise Unusable(f"its channels cannot be removed ({first_line(error)})") from error
        cells = zeroed_connections(self.coupling, self.reading, gone)
        telling = True
        for flag, model, comparison in self.versions:
            cut = flipped(small, flag) if flag else small
            comparison.check(model, cut, f"without them{flag and f', with another {flag}'}")
            if gone.any():
                telling &= comparison.check_randomized(model, cut, self.masks, origin, cells, rests_on_values)
        return Trial(small, origin, removed, added, cells, counts, telling)

    def _coupled_layers(self) -> Iterator[tuple[ChannelSlot, Tensor]]:
        """Yield each layer with the groups that it writes and no earlier layer writes."""
        done = self.coupling.fixed.clone()
        for slot in self.coupling.slots.values():
            groups = self.coupling.groups(slot).unique()
            groups = groups[~done[groups]]
            if slot.side != "in" and len(groups):
                done[groups] = True
                yield slot, groups


def flags(network: nn.Module) -> list[str]:
    """Return the buffers of the user's own modules that hold one value, true, false, 0 or 1: an `if` may read it."""
    of_torch = {name for name, module in network.named_modules() if type(module).__module__.startswith("torch.")}
    return [
        name
        for name, buffer in network.named_buffers()
        if name.rpartition(".")[0] not in of_torch  # the count of a batch-norm
        and buffer.numel() == 1
        and not buffer.is_floating_point()
        and buffer.item() in (0, 1)
    ]


def flipped(network: nn.Module, flag: str) -> nn.Module:
    """Return a copy that shares the network's parameters, with the other value of a flag."""
    copy = copy_sharing_parameters(network)
    copy.get_buffer(flag).copy_(copy.get_buffer(flag) == 0)
    return copy
