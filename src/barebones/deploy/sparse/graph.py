"""Fusing: a ReLU or a sum that is the only reader of a layer becomes part of that layer."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Set
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from ...running.inputs import call

SUMS = {operator.add, operator.iadd, torch.add}
RELUS = {F.relu, torch.relu, torch.relu_}
IN_PLACE = {operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.setitem}


def fused(model: nn.Module, layers: Set[str], example: Any) -> tuple[fx.GraphModule, set[str]] | None:
    """Return the model as a graph without the fused sums and ReLUs, and the names of the layers that need a ReLU.

    In the graph, a layer whose sum was fused is called with the other summand as its second argument. A sum or ReLU is
    fused only if it is the only reader of a layer that is called once, and a sum only if both terms have one shape. The
    layers themselves do not change: the caller must replace them by layers that take a summand and apply a ReLU. The
    result is None if the model cannot be traced.
    """
    args, kwargs = call(example)
    if kwargs or not layers or "" in layers:  # "": the model itself is the layer
        return None
    try:
        graph = fx.GraphModule(model, _Tracer(layers).trace(model), type(model).__name__)
        shapes = _Shapes(graph)
        shapes.run(*args)
    except Exception:  # a user's forward may raise anything when it is called with fx proxies instead of tensors
        return None
    calls = Counter(node.target for node in graph.graph.nodes if node.op == "call_module")
    called_once = {str(target) for target, count in calls.items() if target in layers and count == 1}
    modules = dict(graph.named_modules())
    for node in list(graph.graph.nodes):
        if node.op == "call_module" and type(modules[node.target]) is nn.Identity:
            node.replace_all_uses_with(cast(fx.Node, node.args[0]))
            graph.graph.erase_node(node)
    order = {node: index for index, node in enumerate(graph.graph.nodes)}
    for node in list(graph.graph.nodes):
        if _is_sum(node):
            _fuse_sum(graph.graph, node, called_once, shapes.by_node, order, modules)
    rectified = set()
    for node in list(graph.graph.nodes):
        if _is_relu(node, modules):
            source: Any = node.args[0]
            if _is_layer(source, called_once) and len(source.users) == 1:
                node.replace_all_uses_with(source)
                graph.graph.erase_node(node)
                rectified.add(str(source.target))
    graph.graph.lint()
    graph.recompile()
    return graph, rectified


class _Tracer(fx.Tracer):
    """A tracer that enters only modules that contain some of the layers, so that others need not be traceable."""

    def __init__(self, layers: Set[str]) -> None:
        super().__init__()
        self._layers = layers

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if type(m) is nn.Sequential:
            return False
        return not any(name.startswith(f"{module_qualified_name}.") for name in self._layers)


class _Shapes(fx.Interpreter):
    """An interpreter that runs a graph and records the shape of every tensor."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.by_node: dict[fx.Node, torch.Size] = {}

    @torch.no_grad()
    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.by_node[n] = result.shape
        return result


def _fuse_sum(
    graph: fx.Graph,
    node: fx.Node,
    layers: Set[str],
    shapes: dict[fx.Node, torch.Size],
    order: dict[fx.Node, int],
    modules: dict[str, nn.Module],
) -> None:
    """Pass one term of a sum to the layer that computes the other term, unless a tensor changes in between.

    The call of the layer moves to where the sum was, because both terms exist there.
    """
    first, second = cast(tuple[Any, Any], node.args)
    distinct = isinstance(first, fx.Node) and isinstance(second, fx.Node) and first is not second
    if not distinct or shapes.get(first) is None or shapes.get(first) != shapes.get(second):
        return
    pairs = [(first, second)] if node.target is operator.iadd else [(first, second), (second, first)]
    pairs = [(a, b) for a, b in pairs if _is_layer(a, layers) and len(a.users) == 1 and len(a.args) == 1]
    if not pairs:
        return
    layer, other = max(pairs, key=lambda pair: order[pair[0]])  # moving the later layer crosses fewer nodes
    if any(_changes(n, modules) for n in graph.nodes if order[layer] < order.get(n, -1) < order[node]):
        return
    layer.args = (*layer.args, other)
    node.replace_all_uses_with(layer)
    node.prepend(layer)
    order[layer] = order[node]
    graph.erase_node(node)


def _is_layer(node: Any, layers: Set[str]) -> bool:
    called = isinstance(node, fx.Node) and node.op == "call_module" and node.target in layers
    return called and not node.kwargs


def _is_sum(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target in SUMS and len(node.args) == 2 and not node.kwargs


def _is_relu(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return type(modules[str(node.target)]) is nn.ReLU and len(node.args) == 1
    named = node.op == "call_method" and node.target in ("relu", "relu_")
    return bool(node.args) and (named or (node.op == "call_function" and node.target in RELUS))


def _changes(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Tell whether the node may write into an existing tensor."""
    if node.op == "call_module":
        submodules = list(modules[str(node.target)].modules())
        known = all(type(module).__module__.startswith("torch.nn.") for module in submodules)
        return not known or any(getattr(module, "inplace", False) for module in submodules)
    if node.op == "call_method":
        return str(node.target).endswith("_")
    if node.op == "call_function":
        in_place_name = getattr(node.target, "__name__", "").endswith("_")
        return in_place_name or node.target in IN_PLACE or bool(node.kwargs.get("inplace")) or "out" in node.kwargs
    return False
