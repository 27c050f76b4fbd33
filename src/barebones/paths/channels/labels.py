"""Labels: a forward pass in which every value is the number of the channel that it belongs to.

`Labels` is a `TorchFunctionMode`. Every channel of every layer has a number, and the output of a layer holds the
numbers of its channels instead of values. A function that only moves values (a view, a slice, a concatenation) runs on
the numbers as it is, so each number arrives where the channel would. Where numbers meet, in a sum or at the input of
the next layer, their channels are coupled: they can only be removed together. Functions that treat each channel by
itself pass the numbers on. A function that mixes channels, or that is not in the table of rules, fixes them: they stay.

0 belongs to no channel (a padded border), and 1 is the model's input, which cannot lose anything.
"""

from collections.abc import Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from ..calls import Call

NOTHING, INPUT = 0, 1
Rule = Callable[["Labels", Call], Any]


@dataclass
class ChannelSlot:
    """The channels of one side of a layer; they are numbered from `start` on.

    The side is "in", "out", or "both" for a layer whose input channel i is its output channel i, as of a batch-norm.
    """

    name: str
    layer: Any  # a module, or a parameter that belongs to no layer
    side: str
    start: int
    size: int

    @property
    def span(self) -> slice:
        return slice(self.start, self.start + self.size)

    @property
    def numbers(self) -> Tensor:
        return torch.arange(self.start, self.start + self.size, device="cpu")


class Labels(TorchFunctionMode):
    """The mode. It records slots, and which channels are coupled, fixed or written.

    A tensor of numbers requires a gradient, which tells it from a constant. Its groups are found with `of`.
    """

    even = False  # whether equally many channels of each group of a convolution must stay

    def __init__(self, rules: Mapping[str, Rule], of_layers: Collection[Rule], device: torch.device) -> None:
        super().__init__()
        self.rules, self.of_layers, self.device = rules, of_layers, device  # rules of layers run for constants too
        self.slots: dict[tuple[str, str], ChannelSlot] = {}
        self.size = 2  # channels so far
        none = torch.empty(0, dtype=torch.long, device="cpu")
        self.fixed, self.written, self.pooled = [torch.tensor([INPUT], device="cpu")], [none], [none]
        self.running: list[tuple[str, nn.Module]] = []  # the layers that are running, with their names
        self._examined: set[int] = set()  # the arguments of the running function whose groups were asked for
        self._group = torch.arange(self.size, device="cpu")
        self._pairs: list[tuple[Tensor, Tensor]] = []  # coupled since `_group` was computed
        self._masks: MutableMapping[Tensor, Tensor] = WeakTensorKeyDictionary()  # comparisons and their numbers

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch.enable_grad():  # even inside no_grad
            return self._run(Call(func, args, kwargs or {}))

    def _run(self, call: Call) -> Any:
        if torch.is_inference_mode_enabled():
            raise ValueError("a part of it runs under torch.inference_mode(), where channels cannot be followed")
        rule = self.rules.get(call.name, as_it_is if call.name.endswith("__get__") else mixed)
        if any(t.is_complex() for t in call.tensors) and rule is not as_it_is:
            rule = mixed
        if not (call.live or rule in self.of_layers or any(t in self._masks for t in call.tensors)):
            result = call.func(*call.args, **call.kwargs)
            return result if call.inplace or call.out is None else call.out.copy_(result)
        self._examined = set()
        result = rule(self, call)
        for tensor in call.tensors if rule is not as_it_is else ():
            if id(tensor) not in self._examined:  # the rule does not know that there may be channels
                self.fix(self.of(tensor))
        if call.out is None or result is call.out or not call.out.is_floating_point():
            return result if call.out is None else call.out
        if not call.out.requires_grad:  # a constant; what is written to it are numbers
            (call.out if call.out._base is None else call.out._base).zero_()
        return call.out.copy_(result)

    def numbered(self, groups: Tensor) -> Tensor:
        """Return groups as a float tensor that autograd tracks, and that can be written to in place."""
        return groups.to(self.device, torch.double).requires_grad_() * 1

    # ---- groups ----

    def groups(self) -> Tensor:
        """Return, for each channel, the smallest number of the channels with which it is coupled, even indirectly."""
        group = torch.cat([self._group, torch.arange(len(self._group), self.size, device="cpu")])
        if self._pairs:
            a, b = (torch.cat(side) for side in zip(*self._pairs, strict=True))
            while True:
                smallest = torch.minimum(group[a], group[b])
                smaller = group.scatter_reduce(0, torch.cat([group[a], group[b]]), smallest.repeat(2), "amin")
                smaller = smaller[smaller]
                if torch.equal(smaller, group):
                    break
                group = smaller
            self._pairs = []
        self._group = group
        return group

    def of(self, value: Any) -> Tensor | None:
        """Return the group of each value of a tensor, or None if it holds no numbers of channels."""
        if not isinstance(value, Tensor):
            return None
        self._examined.add(id(value))
        if value in self._masks:
            value = self._masks[value]
        elif not value.requires_grad:
            return None
        with torch.no_grad():
            value = value.real if value.is_complex() else value
            return self.groups()[value.detach().cpu().long()]

    def groups_of(self, x: Tensor) -> Tensor:
        """Return the group of each value; the values of a constant belong to no channel."""
        groups = self.of(x)
        return torch.full(x.shape, NOTHING, device="cpu") if groups is None else groups

    def shape_or_groups(self, value: Tensor) -> Tensor | tuple[int, ...]:
        """Return the groups of a tensor, or the shape of a constant, as `join` takes them."""
        groups = self.of(value)
        return tuple(value.shape) if groups is None else groups

    def remember(self, mask: Tensor, groups: Tensor) -> Tensor:
        """Record the groups of a tensor that cannot hold numbers, such as the result of a comparison."""
        self._masks[mask] = groups
        return mask

    def like_input(self, value: Any) -> Any:
        """Return a float tensor's stand-in, all of whose channels stay; other values stay as they are."""
        if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
            return value
        stand_in = self.numbered(torch.full(value.shape, INPUT, device="cpu"))
        return stand_in.to(torch.cdouble) if value.is_complex() else stand_in

    def fix(self, groups: Tensor | None) -> None:
        if groups is not None:
            self.fixed.append(groups.unique())

    def couple(self, a: Tensor, b: Tensor) -> None:
        """Couple the channels at the same places of two tensors."""
        a, b = torch.broadcast_tensors(*self._essence(a, b))
        different = (a != b) & (a != NOTHING) & (b != NOTHING)
        if different.any():
            pairs = torch.stack([a[different], b[different]]).unique(dim=1)
            self._pairs.append((pairs[0], pairs[1]))

    def _essence(self, *tensors: Tensor) -> list[Tensor]:
        """Return tensors of the same dimensions, cut to one index where none of them varies."""
        dims = max(t.dim() for t in tensors)
        aligned = [t.view(*[1] * (dims - t.dim()), *t.shape) for t in tensors]
        for dim in range(dims):
            if not any(varies(t, dim) for t in aligned):
                aligned = [t.amax(dim, keepdim=True) if t.numel() else t for t in aligned]
        return aligned

    # ---- what happens in functions ----

    def join(self, *operands: Tensor | tuple[int, ...]) -> Tensor:
        """Couple the channels that meet in an elementwise function, and return the groups of its result.

        An operand is given by its groups, or by its shape if it is a constant. A constant that has a size of its own
        where channels vary fixes these. One channel that is broadcast over others is fixed: all of them need it.
        """
        shapes = [operand if isinstance(operand, tuple) else tuple(operand.shape) for operand in operands]
        shape = torch.broadcast_shapes(*shapes)
        sizes = [(1,) * (len(shape) - len(s)) + s for s in shapes]
        groups = {i: operand.view(sizes[i]) for i, operand in enumerate(operands) if isinstance(operand, Tensor)}
        varying = {i: {d for d in range(len(shape)) if varies(g, d)} for i, g in groups.items()}
        meeting = []
        for i, own in groups.items():
            wide = {d for j, size in enumerate(sizes) if j != i for d in range(len(shape)) if size[d] > 1}
            alone = not varying[i] and any(sizes[i][d] == 1 for d in wide)
            clashes = any(
                sizes[j][d] > 1 and d not in varying.get(j, set())
                for d in varying[i] for j in range(len(operands)) if j != i
            )  # fmt: skip
            if alone or clashes:
                self.fix(own)
            if not alone:
                meeting.append(own.expand(shape))
        for other in meeting[1:]:
            self.couple(meeting[0], other)
        return reduce(torch.maximum, meeting or [torch.full(shape, INPUT if groups else NOTHING, device="cpu")])

    def read(self, groups: Tensor | None, slot: ChannelSlot, dim: int) -> None:
        """Couple the input of a layer with its slot; its channels are along `dim`."""
        if groups is None:
            return
        if slot.size > 1 and not varies(groups, dim):
            self.fix(groups)
            return
        numbers = slot.numbers.view(-1, *[1] * (groups.dim() - 1 - dim % groups.dim()))
        self.couple(groups, numbers)

    def slot(self, name: str, layer: Any, side: str, size: int) -> ChannelSlot:
        if (name, side) not in self.slots:
            self.slots[name, side] = ChannelSlot(name, layer, side, self.size, size)
            self.size += size
        return self.slots[name, side]

    def layer(self, kinds: Any, weight: Any) -> tuple[str, Any] | None:
        name, module = self.running[-1] if self.running else ("", None)
        return (name, module) if isinstance(module, kinds) and getattr(module, "weight", None) is weight else None


def varies(groups: Tensor, dim: int) -> bool:
    """Whether two channels of different groups lie along a dimension."""
    if groups.numel() == 0 or groups.shape[dim] == 1 or torch.equal(groups, groups.narrow(dim, 0, 1).expand_as(groups)):
        return False
    high = groups.amax(dim)
    low = torch.where(groups == NOTHING, high.unsqueeze(dim), groups).amin(dim)
    return bool((low != high).any())


def as_it_is(labels: Labels, call: Call) -> Any:
    """Run the function itself on the numbers; this is right for functions that only move them."""
    return call.func(*call.args, **call.kwargs)


def mixed(labels: Labels, call: Call) -> Any:
    """Keep all channels of the inputs and of the outputs. Functions that are not in the table get this rule."""
    for tensor in call.tensors:
        labels.fix(labels.of(tensor))
    return tree_map(labels.like_input, plain(call))


def plain(call: Call) -> Any:
    """Return the function's result on the numbers as bare values, which is used for its shape and type."""

    def result(dtype: torch.dtype) -> Any:
        def bare(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return value.detach().to(dtype) if value.is_floating_point() else value.detach()

        return call.func(*tree_map(bare, call.args), **tree_map(bare, call.kwargs))

    try:
        return result(torch.double)
    except RuntimeError:  # some functions do not exist in float64
        return result(torch.float)


def couple_parts(labels: Labels, groups: Tensor, dim: int, size: int) -> None:
    first, *others = groups.split(size, dim)
    for other in others:
        labels.couple(first, other)
