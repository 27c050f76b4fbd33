"""Coupling: which channels of which layers can only go together, by Torch-Pruning's dependency graph.

A place is one side of a layer, and each of its channels has a number. Channels that must go together (a convolution's
output, the batch-norm behind it, what is added to it, whatever reads it) have the same label.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ...running.inputs import call, tensors

# Autograd's names for what treats each channel by itself, or only moves it. Behind anything else (a softmax, a norm
# over channels, a product of matrices) the number of channels matters, even if some of them are zeros.
EACH = """
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
CHANNELWISE = frozenset(EACH.split())
POOLS = ("MaxPool", "AvgPool", "MkldnnMaxPool", "ReflectionPad", "ReplicationPad")  # torch refuses them no channels
ROUNDS = 10  # times that a search may come to each node
OVER_PLACES = {"Mean", "Sum", "Amax", "Amin", "Max", "LinalgVectorNorm", "Std", "Var"}  # if not over the channels
ATTENTION = {"Bmm", "Baddbmm", "Softmax", "SafeSoftmax", "ScaledDotProduct"}  # whole heads may go: a trial tells
MIXING_LAYERS = {"LN", "GN", "MHA", "LSTM", "CUSTOMIZED", "OUTPUT"}  # types of Torch-Pruning's nodes


@dataclass
class ChannelSlot:
    """One side of a layer ("in", "out", or "both" where each channel in is a channel out), from `start` on."""

    name: str
    layer: Any  # a module, or a parameter that is no module's
    side: str
    start: int
    size: int

    @property
    def span(self) -> slice:
        return slice(self.start, self.start + self.size)


@dataclass
class Coupling:
    """Every place and the label of each of its channels; which labels must stay, need a trial, or go into a pool."""

    places: dict[tuple[str, str], ChannelSlot] = field(default_factory=dict)
    label: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    fixed: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    doubtful: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    pooled: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    graph: Any = None

    def every(self, good: Tensor) -> Tensor:
        """Per label: is it so for each of its channels?"""
        return torch.ones_like(self.fixed).scatter_reduce(0, self.label, good, "amin")

    def some(self, good: Tensor) -> Tensor:
        """Per label: is it so for one of its channels?"""
        return ~self.every(~good)


def coupling(model: nn.Module, example: Any) -> Coupling:
    """The coupled channels of a model, a copy, which is run once on the example, in eval mode, with gradients."""
    import torch_pruning as tp

    graph = tp.DependencyGraph()
    sources: list[Any] = []
    args, kwargs = tree_map(lambda value: _marked(value, sources), call(example))
    frozen = [p for p in model.parameters() if p.is_floating_point() and not p.requires_grad]
    training = [m for m in model.modules() if m.training]
    for module in model.modules():  # a copy: these would put steps of their own between the layers
        vars(module).update(_backward_hooks={}, _backward_pre_hooks={})
    with torch.enable_grad(), warnings.catch_warnings(action="ignore"):
        try:
            for parameter in frozen:
                parameter.requires_grad_(True)
            graph.build_dependency(model, args, lambda net, given: _outputs(net(*given, **kwargs)), verbose=False)
        finally:
            for parameter in frozen:
                parameter.requires_grad_(False)
            for module in training:
                module.training = True
    return _Tracing(graph, sources, model).run()


def _marked(value: Any, sources: list[Any]) -> Any:
    """An input that autograd sees, through a step of its own: what is added to it cannot lose channels."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    with torch.enable_grad():
        marked = value.detach().clone().requires_grad_() * 1
    sources.append(marked.grad_fn)
    return marked


def _outputs(tree: Any) -> list[Tensor]:
    # a step of its own, or a layer would hide that it is an output
    return [t * 1 for t in tensors(tree) if t.requires_grad]


class _Tracing:
    """From Torch-Pruning's groups to labels."""

    def __init__(self, graph: Any, sources: list[Any], model: nn.Module) -> None:
        self.graph, self.sources = graph, {id(s) for s in sources}
        self.names = {id(module): name for name, module in model.named_modules()}
        self.names |= {id(parameter): name for name, parameter in model.named_parameters()}
        self.tied = _tied(model)
        self.found = Coupling(graph=graph)
        self.size = 0
        self.edges: list[tuple[Tensor, Tensor]] = []
        self.stays: list[Tensor] = []
        self.doubts: list[Tensor] = []
        self.pools: list[Tensor] = []
        self.roots: list[Tensor] = []

    def run(self) -> Coupling:
        whole: set[int] = set()
        for module, node in list(self.graph.module2node.items()):
            if node.type.name in ("CONV", "LINEAR", "EMBED", "DEPTHWISE_CONV") and id(module) not in whole:
                covered, entangled = self.follow(module)
                whole |= covered
                for channel in range(self.graph.get_out_channels(module)) if entangled else ():
                    self.follow(module, [channel])
        return self.labelled()

    def follow(self, module: nn.Module, channels: list[int] | None = None) -> tuple[set[int], bool]:
        """Couple what goes with the output channels of a layer.

        Returned are the layers that it covers whole, and whether channels of one layer may be coupled with each other,
        as the halves of a gate are: asked for all at once, Torch-Pruning does not tell of that.
        """
        pruner = self.graph.get_pruner_of_module(module)
        count = pruner.get_out_channels(module)
        root = self.place(module, "both" if pruner.prune_in_channels == pruner.prune_out_channels else "out", count)
        channels = list(range(count)) if channels is None else channels
        self.roots.append(torch.tensor(channels) + root.start)
        whole, entangled = set(), False
        try:
            with _bounded(len(self.graph.module2node)):
                group = self.graph.get_pruning_group(module, pruner.prune_out_channels, channels)
        except Exception:  # it cannot follow some function behind this layer
            self.stays.append(self.roots[-1])
            return {id(module)}, False
        for item in group:
            node, own = item.dep.target, torch.tensor(item.root_idxs) + root.start
            kind = node.type.name
            entangled |= kind in ("SPLIT", "UNBIND", "SLICE", "EXPAND")
            if kind in MIXING_LAYERS or id(node.grad_fn) in self.sources or self.uncuttable(node.module):
                self.stays.append(own)
            if kind == "ELEMENTWISE":
                self.judge(node, own)
            elif isinstance(node.module, nn.Parameter) or kind in LAYERS:
                side = self.side(item.dep, node)
                size = self.width(node, side)
                if size is None:  # one and the same for all channels, as of a PReLU
                    continue
                place = self.place(node.module, side, size)
                if max(item.idxs) >= size:
                    self.stays.append(own)
                    continue
                self.edges.append((own, torch.tensor(item.idxs) + place.start))
                if side != "in" and len(item.idxs) == size:
                    whole.add(id(node.module))
        return whole, entangled

    def uncuttable(self, layer: Any) -> bool:
        """Its weights are another's too, or computed, or in groups that Torch-Pruning takes for something else."""
        computed = isinstance(layer, nn.modules.conv._ConvNd | nn.Linear) and "weight" not in layer._parameters
        if id(layer) in self.tied or computed:
            return True
        if not isinstance(layer, nn.modules.conv._ConvNd) or layer.groups == 1:
            return False
        return layer.transposed or (layer.groups == layer.out_channels and layer.in_channels != layer.out_channels)

    def judge(self, node: Any, own: Tensor) -> None:
        """A function of autograd: does it treat each channel by itself?"""
        name = _plain(node.grad_fn)
        if name.startswith(POOLS):
            self.pools.append(own)
        if name in CHANNELWISE or (name in OVER_PLACES and _spares_channels(node.grad_fn)):
            return
        if name in ("Mm", "Addmm") and all(reader.type.name == "LINEAR" for reader in node.outputs):
            return  # a linear layer on more than two dimensions: it is part of it
        if name in OVER_PLACES or any(name.startswith(one) for one in ATTENTION):
            self.doubts.append(own)
        else:
            self.stays.append(own)

    def side(self, dep: Any, node: Any) -> str:
        pruner = self.graph.get_pruner_of_module(node.module)
        if pruner.prune_in_channels == pruner.prune_out_channels:
            return "both"
        return "out" if dep.handler == pruner.prune_out_channels else "in"

    def width(self, node: Any, side: str) -> int | None:
        return (self.graph.get_in_channels if side == "in" else self.graph.get_out_channels)(node)

    def place(self, layer: Any, side: str, size: int) -> ChannelSlot:
        name = self.names[id(layer)]
        if (name, side) not in self.found.places:
            self.found.places[name, side] = ChannelSlot(name, layer, side, self.size, size)
            self.size += size
        return self.found.places[name, side]

    def labelled(self) -> Coupling:
        label = torch.arange(self.size)
        none = torch.empty(0, dtype=torch.long)
        a, b = (torch.cat([none, *(edge[end] for edge in self.edges)]) for end in (0, 1))
        while True:  # the smallest number that a channel is coupled with
            least = torch.minimum(label[a], label[b])
            after = label.scatter_reduce(0, a, least, "amin").scatter_reduce(0, b, least, "amin")
            after = after[after]
            if torch.equal(after, label):
                break
            label = after
        found = self.found
        found.label = label
        found.fixed = torch.ones(self.size, dtype=torch.bool)
        found.doubtful, found.pooled = (torch.zeros(self.size, dtype=torch.bool) for _ in range(2))
        found.fixed[label[torch.cat([none, *self.roots])]] = False  # what nobody writes, an input say, stays
        for own in self.stays:
            found.fixed[label[own]] = True
        for own in self.doubts:
            found.doubtful[label[own]] = True
        for own in self.pools:
            found.pooled[label[own]] = True
        return found


LAYERS = ("CONV", "LINEAR", "BN", "IN", "PRELU", "DEPTHWISE_CONV", "EMBED")


def _plain(grad_fn: Any) -> str:
    """Its name without what autograd adds to it.

    >>> _plain((torch.ones(1, requires_grad=True) + 1).grad_fn)
    'Add'
    """
    name = grad_fn.name() if hasattr(grad_fn, "name") else "Unknown"
    return name.rstrip("0123456789").removesuffix("Backward").lstrip("_")


def _spares_channels(grad_fn: Any) -> bool:
    """A mean over height and width, say, of images. (Of three dimensions, either of two may be the channels.)"""
    dims = getattr(grad_fn, "_saved_dim", None)
    given: Any = getattr(grad_fn, "_saved_self", None)
    sizes = getattr(grad_fn, "_saved_self_sym_sizes", None) or getattr(given, "shape", None) or ()
    if dims is None or len(sizes) < 4:
        return False
    taken = {int(d) % 2**64 for d in ([dims] if isinstance(dims, int) else dims)}
    taken = {d - 2**64 + len(sizes) if d >= 2**63 else d for d in taken}
    return bool(taken) and 0 not in taken and 1 not in taken


def _tied(model: nn.Module) -> set[int]:
    """The modules that share a parameter with another: nothing of theirs can be cut alone."""
    owners: dict[int, set[int]] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners.setdefault(id(parameter), set()).add(id(module))
    return {module for shared in owners.values() if len(shared) > 1 for module in shared}


def copied(tree: Any) -> Any:
    """Inputs that a model may write to."""
    return tree_map(lambda value: value.clone() if isinstance(value, Tensor) else value, tree)


@contextmanager
def _bounded(nodes: int) -> Iterator[None]:
    """Torch-Pruning stops with an error where it would go round and round, as behind circular padding."""
    from torch_pruning.dependency import graph

    class Bounded(graph.Group):
        def add_dep(self, dep: Any, idxs: Any) -> None:
            if len(self) > ROUNDS * nodes:
                raise RecursionError("the coupling of these channels has no end")
            super().add_dep(dep, idxs)

    before, graph.Group = graph.Group, Bounded
    try:
        yield
    finally:
        graph.Group = before


@contextmanager
def hooked(handles: list[Any]) -> Iterator[None]:
    """Hooks for the time of a block."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
