"""Whole channels: coupled groups of channels stay or go, with all weights that write or read them.

A residual sum, a norm, a depthwise convolution or a concatenation ties channels together; `paths.coupling` finds these
groups. A weight stays if the group of its output channel and that of its input channel stay.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..masks import Masks, Scores, everything
from ..paths import Use, trace
from ..paths.coupling import dimension, find_coupling
from ..running.precision import widest
from ..scope import bare
from .probe import Probe


@dataclass(frozen=True)
class Channels:
    """The groups of a model's channels, numbered from 1 in the order of its forward pass; what must stay is group 0."""

    probe: Probe
    sides: dict[str, tuple[Tensor, Tensor]]  # of each weight: the group of each index of its first two dimensions
    costs: dict[str, int]  # of each weight: its values, or the multiply-adds that use them
    size: int  # how many groups there are

    def masks(self, stays: Tensor, reads_only: bool = False) -> Masks:
        """Return the masks of the weights between groups that stay; with `reads_only`, of all that read such a group.

        The network computes the same with both, as what nothing reads has no effect. But only with the latter does a
        pruned group have values, and the weights that would read it gradients, so that it can return.
        """
        masks = Masks()
        for name, shape in self.probe.shapes.items():
            ends = [stays[side] for side in self.sides[name]]
            if reads_only:
                ends[name in self.probe.transposed].fill_(True)
            table = (ends[0][:, None] & ends[1]).to(self.probe.device)
            masks[name] = table[..., None].expand(*table.shape, shape.numel() // table.numel()).reshape(shape)
        return masks

    def staying(self, masks: Masks | None) -> Tensor:
        """Return which groups keep a weight."""
        whole = torch.ones(self.size, dtype=torch.bool, device="cpu")
        return whole if masks is None else self.per_cost(masks, whole) > 0

    def per_cost(self, values: Mapping[str, Tensor], stays: Tensor) -> Tensor:
        """Return the sum over each group's weights, of those whose other group stays, divided by their cost."""
        totals = torch.zeros(2, self.size, dtype=torch.float64, device="cpu")  # of the values, and of the costs
        for name, (first, second) in self.sides.items():
            kernels = values[name].reshape(len(first), len(second), -1)
            sums = kernels.sum(2, dtype=widest(kernels.device)).cpu().double()
            table = torch.stack([sums, torch.full_like(sums, self.costs[name] / sums.numel())])
            totals.index_add_(1, first, (table * stays[second]).sum(2))
            others = stays[first][:, None] & (first[:, None] != second)  # a weight within a group counts once
            totals.index_add_(1, second, (table * others).sum(1))
        return totals[0] / totals[1].clamp(min=1)

    def amounts(self, rank: Tensor) -> Tensor:
        """Return the weights, or multiply-adds, that the first group alone keeps, the first two, and so on."""
        amounts = torch.zeros(self.size, dtype=torch.float64, device="cpu")
        for name, cost in self.costs.items():
            first, second = (rank[side].bincount(minlength=self.size).cumsum(0).double() for side in self.sides[name])
            amounts += first * second * (cost / float(first[-1] * second[-1]))
        return amounts

    def selected(self, scores: Scores, share: float, before: Masks | None, revives: bool) -> Masks:
        """Return the masks of the groups with the highest scores, which keep as nearly this share as whole groups can.

        A group's score is the sum of its weights' scores divided by their cost: with the target "weights", their mean.
        The sum alone prefers groups of many weights, and layers of smaller groups may be left with one channel: on a
        small network at 90 %, Iterative SNIP then validates at 40 % instead of 99 % (docs/choosing.md). Ties go to
        groups that stay now, then to the lower number. One channel of each layer stays always.
        """
        now = self.staying(before)
        allowed, first = now | revives, torch.zeros_like(now)
        order = torch.arange(self.size, device="cpu")
        for key in (now, self.per_cost(scores, now), allowed):
            order = order[key[order].argsort(descending=True, stable=True)]
        rank = order.argsort()
        for groups in (side for sides in self.sides.values() for side in sides):
            first[groups[rank[groups].argmin()] if groups.all() else 0] = True
        rank = order[first[order].argsort(descending=True, stable=True)].argsort()
        amounts, least = self.amounts(rank), int(first.sum())
        off = (amounts - share * amounts[-1]).abs()[least - 1 : int(allowed.sum())]
        return self.masks(rank < least + int(off.argmin()))


def find_channels(probe: Probe, target: str, share: float) -> Channels:
    """Find the groups of the probe's model; a `ValueError` if they cannot keep as little as this share."""
    example, model = probe.call(), bare(probe.user_model)
    if example is None:
        raise ValueError("unit='channel' follows an input through the model; pass example=, an input of the model")
    try:
        coupling = find_coupling(model, example, (False, True), even=True)
    except Exception as error:
        raise ValueError(f"could not find the coupled channels of {type(model).__name__}: {error}") from error
    modules, names = dict(model.named_modules()), {id(p): name for name, p in probe.parameters.items()}
    found = {name: [torch.zeros(1, dtype=torch.long, device="cpu")] * 2 for name in names.values()}  # of no channel
    for (path, kind), slot in coupling.slots.items():
        layer, numbers = modules.get(path, probe.parameters.get(path, slot.layer)), slot.numbers
        weight = getattr(layer, "weight", layer)
        if isinstance(weight, Tensor) and weight.numel() > slot.size and id(weight) not in names:
            coupling.fixed[coupling.groups(slot)] = True  # what is not pruned needs all of its channels
        if id(layer) in names and layer.numel() > 1 and (dim := dimension(layer)) < 2:  # a parameter without a layer
            found[names[id(layer)]][dim] = numbers
        for parameter in getattr(layer, "_parameters", {}).values():
            name = names.get(id(parameter), "")
            if name and parameter.numel() and (parameter.dim() > 1 or kind != "in"):
                end = (kind == "in") != (name in probe.transposed or isinstance(layer, nn.Embedding))
                found[name][end] = numbers[: parameter.shape[end]]
    free = (coupling.group == torch.arange(len(coupling.group), device="cpu")) & ~coupling.fixed  # its first channel
    number = (free.cumsum(0) * free)[coupling.group]
    sides = {name: (number[first], number[second]) for name, (first, second) in found.items()}
    costs = {name: shape.numel() for name, shape in probe.shapes.items()}
    if target == "flops":
        uses = trace(model, everything(probe.parameters), example, backward=False).uses
        costs = {name: uses.get(name, Use()).dense for name in costs}
    fewest, total = 0.0, sum(costs.values())
    for name, ends in sides.items():
        counts = [side.bincount() for side in ends]
        fewest += costs[name] * math.prod(int(c[0] or c[c > 0].min()) / int(c.sum()) for c in counts)
    if fewest > share * total:
        least = f"at least {fewest / total:.2%} of the {target} of {type(model).__name__}"
        why = "one channel of each layer stays, and those next to weights that are shared or not pruned"
        raise ValueError(f"unit='channel' keeps {least}: {why}; lower the sparsity, or leave it out")
    return Channels(probe, sides, costs, int(free.sum()) + 1)
