"""Coupled channels: which channels of which layers can only be removed together.

A channel is one input or output of a layer: of a convolution, a linear layer, a batch-norm. If a convolution loses an
output channel, the batch-norm behind it must lose it too, as must every tensor that is added to its output and the
inputs of every layer that reads it. These channels form one coupled group. Torch-Pruning's dependency graph finds the
groups.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ...running.inputs import call, tensors
from ...running.modes import trainable

# Autograd's names for functions that treat each channel by itself, or only move it. Behind any other function (a
# softmax, a norm over channels, a matrix product) the number of channels matters, even if some of them are zero.
NAMES = """
    Abs Acos AdaptiveAvgPool2D AdaptiveAvgPool3D AdaptiveMaxPool1D AdaptiveMaxPool2D AdaptiveMaxPool3D Add Addcdiv
    Addcmul Alias AsStrided Asinh Atan AvgPool1D AvgPool2D AvgPool3D Celu Clamp ClampMax ClampMin Clone
    ConstantPadNd Contiguous Copy CopySlices Cos Div Dropout Elu Erf Exp Expm1 FeatureDropout FusedDropout Gelu
    Hardshrink Hardsigmoid Hardswish Hardtanh LeakyRelu Lerp Log Log1P LogSigmoid MaskedFill MaxPool1D MaxPool2D
    MaxPool2DWithIndices MaxPool3DWithIndices Maximum Minimum Mish MkldnnMaxPool2D Mul NanToNum NativeDropout Neg
    Permute Pow PreluKernel Reciprocal ReflectionPad1D ReflectionPad2D ReflectionPad3D Relu ReplicationPad1D
    ReplicationPad2D ReplicationPad3D Rrelu RreluWithNoise Rsqrt Rsub Sigmoid Sign Silu Sin Softplus Softshrink Sqrt
    Square Squeeze Sub Swapaxes T Tanh Threshold ToCopy Transpose Unsqueeze UpsampleBicubic2D UpsampleBilinear2D
    UpsampleLinear1D UpsampleNearest1D UpsampleNearest2D UpsampleNearest3D UpsampleTrilinear3D Where
"""
CHANNELWISE = frozenset(NAMES.split())
# Reductions: they treat each channel by itself if they do not reduce over the channels.
REDUCTIONS = {"Mean", "Sum", "Amax", "Amin", "Max", "LinalgVectorNorm", "Std", "Var"}
# Attention: single channels must be kept, but whole heads may be removable. Only a trial can tell.
ATTENTION = ("Bmm", "Baddbmm", "Softmax", "SafeSoftmax", "ScaledDotProduct")
# Functions for which torch refuses inputs without channels.
POOLS = ("MaxPool", "AvgPool", "MkldnnMaxPool", "ReflectionPad", "ReplicationPad")
# Torch-Pruning's names for the layers that can lose channels, and for those that mix all channels.
LAYERS = ("CONV", "LINEAR", "BN", "IN", "PRELU", "DEPTHWISE_CONV", "EMBED")
MIXING_LAYERS = ("LN", "GN", "MHA", "LSTM", "CUSTOMIZED", "OUTPUT")
WRITERS = ("CONV", "LINEAR", "EMBED", "DEPTHWISE_CONV")
VISITS = 10  # how often the search for one group may visit each node, on average


@dataclass
class ChannelSlot:
    """The channels of one side of a layer; they are numbered from `start` on.

    The side is "in" or "out", or "both" for a layer whose input channel i is its output channel i, as of a batch-norm.
    """

    name: str
    layer: Any  # a module, or a parameter that belongs to no layer
    side: str
    start: int
    size: int

    @property
    def span(self) -> slice:
        """The numbers of its channels."""
        return slice(self.start, self.start + self.size)


@dataclass
class Coupling:
    """All channels of a model and the coupled group of each.

    A group is known by the smallest number of its channels. `fixed`, `uncertain` and `pooled` hold one bool per group.
    """

    slots: dict[tuple[str, str], ChannelSlot]  # by (layer, side)
    group: Tensor  # of each channel
    fixed: Tensor  # cannot be removed
    uncertain: Tensor  # only a trial can tell
    pooled: Tensor  # inputs of one of POOLS
    graph: Any  # Torch-Pruning's

    def groups(self, slot: ChannelSlot) -> Tensor:
        """Return the group of each channel of a slot."""
        return self.group[slot.span]

    def all_of(self, channels: Tensor) -> Tensor:
        """Return, for each group, whether a property (one bool per channel) holds for all of its channels."""
        return torch.ones_like(self.fixed).scatter_reduce(0, self.group, channels, "amin")


def find_coupling(model: nn.Module, example: Any) -> Coupling:
    """Find the coupled groups of a model by one run on the example, in eval mode and with gradients.

    The model must be a copy: it loses its backward hooks and stays in eval mode.
    """
    import torch_pruning as tp

    graph = tp.DependencyGraph()
    sources: list[Any] = []
    args, kwargs = tree_map(lambda value: _tracked(value, sources), call(example))
    floats = [p for p in model.parameters() if p.is_floating_point()]
    for module in model.modules():  # backward hooks would put nodes of their own between the layers
        vars(module).update(_backward_hooks={}, _backward_pre_hooks={})
    with torch.enable_grad(), warnings.catch_warnings(action="ignore"), trainable(floats):
        graph.build_dependency(model, args, lambda net, args: _outputs(net(*args, **kwargs)), verbose=False)
    return _Builder(graph, sources, model).build()


def _tracked(value: Any, sources: list[Any]) -> Any:
    """Return an input with an autograd node, and append the node to `sources`.

    The node shows which tensors are added to the model's input: these cannot lose channels.
    """
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    with torch.enable_grad():
        tracked = value.detach().clone().requires_grad_() * 1
    sources.append(tracked.grad_fn)
    return tracked


def _outputs(tree: Any) -> list[Tensor]:
    """Return the model's outputs, multiplied by 1 so that each has a node of its own in the autograd graph.

    Otherwise Torch-Pruning could not tell that the last layer's output is an output of the model.
    """
    return [t * 1 for t in tensors(tree) if t.requires_grad]


class _Builder:
    """Collects the pairs of coupled channels that Torch-Pruning reports, and joins them to groups."""

    def __init__(self, graph: Any, sources: list[Any], model: nn.Module) -> None:
        self.graph, self.sources = graph, {id(source) for source in sources}
        self.names = {id(module): name for name, module in model.named_modules()}
        self.names |= {id(parameter): name for name, parameter in model.named_parameters()}
        self.tied = _tied(model)
        self.slots: dict[tuple[str, str], ChannelSlot] = {}
        self.size = 0  # channels so far
        none = torch.empty(0, dtype=torch.long)
        self.pairs: list[tuple[Tensor, Tensor]] = [(none, none)]
        self.written, self.fixed, self.uncertain, self.pooled = [none], [none], [none], [none]  # channels

    def build(self) -> Coupling:
        done: set[int] = set()
        for module, node in list(self.graph.module2node.items()):
            if node.type.name in WRITERS and id(module) not in done:
                covered, entangled = self.follow(module)
                done |= covered
                for channel in range(self.graph.get_out_channels(module)) if entangled else ():
                    self.follow(module, [channel])
        group = self.joined()

        def of_groups(channels: list[Tensor]) -> Tensor:
            return torch.zeros(self.size, dtype=torch.bool).index_fill(0, group[torch.cat(channels)], True)

        fixed = of_groups(self.fixed) | ~of_groups(self.written)  # no layer writes them: the model's input, for example
        return Coupling(self.slots, group, fixed, of_groups(self.uncertain), of_groups(self.pooled), self.graph)

    def follow(self, module: nn.Module, channels: list[int] | None = None) -> tuple[set[int], bool]:
        """Record all channels that are coupled with the output channels of a layer, or with the given ones only.

        Return the layers whose output channels were all recorded, and whether channels of one layer may be coupled
        with each other, as the halves of a gated unit are. Torch-Pruning reports that only for single channels.
        """
        pruner = self.graph.get_pruner_of_module(module)
        count = pruner.get_out_channels(module)
        root = self.slot(module, "both" if pruner.prune_in_channels == pruner.prune_out_channels else "out", count)
        channels = list(range(count)) if channels is None else channels
        self.written.append(torch.tensor(channels) + root.start)
        covered, entangled = set(), False
        try:
            with _bounded(len(self.graph.module2node)):
                coupled = self.graph.get_pruning_group(module, pruner.prune_out_channels, channels)
        except Exception:  # Torch-Pruning cannot follow some function behind this layer
            self.fixed.append(self.written[-1])
            return {id(module)}, False
        for item in coupled:
            node, roots = item.dep.target, torch.tensor(item.root_idxs) + root.start
            kind = node.type.name
            entangled |= kind in ("SPLIT", "UNBIND", "SLICE", "EXPAND")
            if kind in MIXING_LAYERS or id(node.grad_fn) in self.sources or self.cannot_be_cut(node.module):
                self.fixed.append(roots)
            if kind == "ELEMENTWISE":
                self.judge(node, roots)
            elif isinstance(node.module, nn.Parameter) or kind in LAYERS:
                side = self.side(item.dep, node)
                size = (self.graph.get_in_channels if side == "in" else self.graph.get_out_channels)(node)
                if size is None:  # one value for all channels, as the slope of a PReLU
                    continue
                slot = self.slot(node.module, side, size)
                if max(item.idxs) >= size:
                    self.fixed.append(roots)
                    continue
                self.pairs.append((roots, torch.tensor(item.idxs) + slot.start))
                if side != "in" and len(item.idxs) == size:
                    covered.add(id(node.module))
        return covered, entangled

    def cannot_be_cut(self, layer: Any) -> bool:
        """Whether a layer's weights are shared or computed, or its groups are mistaken for depthwise ones."""
        computed = isinstance(layer, nn.modules.conv._ConvNd | nn.Linear) and "weight" not in layer._parameters
        if id(layer) in self.tied or computed:
            return True
        if not isinstance(layer, nn.modules.conv._ConvNd) or layer.groups == 1:
            return False
        return layer.transposed or (layer.groups == layer.out_channels and layer.in_channels != layer.out_channels)

    def judge(self, node: Any, channels: Tensor) -> None:
        """Record whether the channels that an autograd function processes can be removed."""
        name = _function(node.grad_fn)
        if name.startswith(POOLS):
            self.pooled.append(channels)
        if name in CHANNELWISE or (name in REDUCTIONS and _spares_channels(node.grad_fn)):
            return
        if name in ("Mm", "Addmm") and all(reader.type.name == "LINEAR" for reader in node.outputs):
            return  # part of a linear layer that is applied to more than two dimensions
        (self.uncertain if name in REDUCTIONS or name.startswith(ATTENTION) else self.fixed).append(channels)

    def side(self, dep: Any, node: Any) -> str:
        pruner = self.graph.get_pruner_of_module(node.module)
        if pruner.prune_in_channels == pruner.prune_out_channels:
            return "both"
        return "out" if dep.handler == pruner.prune_out_channels else "in"

    def slot(self, layer: Any, side: str, size: int) -> ChannelSlot:
        name = self.names[id(layer)]
        if (name, side) not in self.slots:
            self.slots[name, side] = ChannelSlot(name, layer, side, self.size, size)
            self.size += size
        return self.slots[name, side]

    def joined(self) -> Tensor:
        """Return, for each channel, the smallest number of the channels with which it is coupled, even indirectly."""
        a, b = (torch.cat(side) for side in zip(*self.pairs, strict=True))
        group = torch.arange(self.size)
        while True:
            smallest = torch.minimum(group[a], group[b])
            smaller = group.scatter_reduce(0, a, smallest, "amin").scatter_reduce(0, b, smallest, "amin")
            smaller = smaller[smaller]
            if torch.equal(smaller, group):
                return group
            group = smaller


def _function(grad_fn: Any) -> str:
    """Return the name of a function, without the prefix and suffix of autograd.

    >>> _function((torch.ones(1, requires_grad=True) + 1).grad_fn)
    'Add'
    """
    name = grad_fn.name() if hasattr(grad_fn, "name") else "Unknown"
    return name.rstrip("0123456789").removesuffix("Backward").lstrip("_")


def _spares_channels(grad_fn: Any) -> bool:
    """Whether a reduction is over neither batch nor channels, as a mean over height and width is.

    Tensors of three dimensions are not judged: their channels may be dimension 1 (signals) or 2 (sequences).
    """
    saved_dims = getattr(grad_fn, "_saved_dim", None)
    saved_input: Any = getattr(grad_fn, "_saved_self", None)
    shape = getattr(grad_fn, "_saved_self_sym_sizes", None) or getattr(saved_input, "shape", None) or ()
    if saved_dims is None or len(shape) < 4:
        return False
    dims = {int(d) % 2**64 for d in ([saved_dims] if isinstance(saved_dims, int) else saved_dims)}
    dims = {d - 2**64 + len(shape) if d >= 2**63 else d for d in dims}  # autograd shows -1 as 2**64 - 1
    return bool(dims) and 0 not in dims and 1 not in dims


def _tied(model: nn.Module) -> set[int]:
    """Return the ids of the modules that share a parameter with another: none of them can be cut alone."""
    owners: dict[int, set[int]] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners.setdefault(id(parameter), set()).add(id(module))
    return {module for modules in owners.values() if len(modules) > 1 for module in modules}


@contextmanager
def _bounded(nodes: int) -> Iterator[None]:
    """Make Torch-Pruning raise an error where its search would never end, as behind circular padding."""
    from torch_pruning.dependency import graph

    class Bounded(graph.Group):
        def add_dep(self, dep: Any, idxs: Any) -> None:
            if len(self) > VISITS * nodes:
                raise RecursionError("the search for coupled channels has no end")
            super().add_dep(dep, idxs)

    before, graph.Group = graph.Group, Bounded
    try:
        yield
    finally:
        graph.Group = before
