"""Fusing: a ReLU or a sum that alone reads a layer's output becomes part of that layer."""

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
    """The model as a graph in which `layers` are called with what is to be added to their output, and those that a
    ReLU shall follow; neither the sum nor the ReLU is there any more. None where the model cannot be traced.

    Only what alone reads a layer that is called once is fused, and sums only of one shape. The layers themselves are
    not changed: whoever calls this replaces them by ones that take a summand and apply a ReLU.
    """
    args, kwargs = call(example)
    if kwargs or not layers or "" in layers:  # the model may be one layer itself
        return None
    try:
        graph = fx.GraphModule(model, _Tracer(layers).trace(model), type(model).__name__)
        shapes = _Shapes(graph)
        shapes.run(*args)
    except Exception:  # whatever a stranger's forward does with a stand-in for a tensor
        return None
    calls = Counter(node.target for node in graph.graph.nodes if node.op == "call_module")
    open_to = {str(target) for target, count in calls.items() if target in layers and count == 1}
    modules = dict(graph.named_modules())
    for node in list(graph.graph.nodes):
        if node.op == "call_module" and type(modules[node.target]) is nn.Identity:
            node.replace_all_uses_with(cast(fx.Node, node.args[0]))
            graph.graph.erase_node(node)
    order = {node: place for place, node in enumerate(graph.graph.nodes)}
    for node in list(graph.graph.nodes):
        if _is_sum(node):
            _fuse_sum(graph.graph, node, open_to, shapes.found, order, modules)
    rectified = set()
    for node in list(graph.graph.nodes):
        if _is_relu(node, modules):
            source: Any = node.args[0]
            if _is_layer(source, open_to) and len(source.users) == 1:
                node.replace_all_uses_with(source)
                graph.graph.erase_node(node)
                rectified.add(str(source.target))
    graph.graph.lint()
    graph.recompile()
    return graph, rectified


class _Tracer(fx.Tracer):
    """Looks only into modules that hold some of the layers, so that what others do inside need not be traceable."""

    def __init__(self, layers: Set[str]) -> None:
        super().__init__()
        self._layers = layers

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if type(m) is nn.Sequential:
            return False
        return not any(name.startswith(f"{module_qualified_name}.") for name in self._layers)


class _Shapes(fx.Interpreter):
    """Runs a graph and notes the shape of every tensor."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.found: dict[fx.Node, torch.Size] = {}

    @torch.no_grad()
    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.found[n] = result.shape
        return result


def _fuse_sum(
    graph: fx.Graph,
    node: fx.Node,
    layers: Set[str],
    shapes: dict[fx.Node, torch.Size],
    order: dict[fx.Node, int],
    modules: dict[str, nn.Module],
) -> None:
    """Give one term of a sum to the layer that computes the other, where nothing changes while it waits."""
    first, second = cast(tuple[Any, Any], node.args)
    both = isinstance(first, fx.Node) and isinstance(second, fx.Node) and first is not second
    if not both or shapes.get(first) is None or shapes.get(first) != shapes.get(second):
        return
    pairs = [(first, second)] if node.target is operator.iadd else [(first, second), (second, first)]
    pairs = [(a, b) for a, b in pairs if _is_layer(a, layers) and len(a.users) == 1 and len(a.args) == 1]
    for layer, other in sorted(pairs, key=lambda pair: -order[pair[0]]):  # the later one need not wait
        between = [n for n in graph.nodes if order[layer] < order.get(n, -1) < order[node]]
        if any(_changes(n, modules) for n in between):
            continue
        layer.args = (*layer.args, other)
        node.replace_all_uses_with(layer)
        node.prepend(layer)  # where the sum was, both terms are there
        order[layer] = order[node]
        graph.erase_node(node)
        return


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
    """Whether it may write into a tensor that is there already."""
    if node.op == "call_module":
        inside = list(modules[str(node.target)].modules())
        known = all(type(module).__module__.startswith("torch.nn.") for module in inside)
        return not known or any(getattr(module, "inplace", False) for module in inside)
    if node.op == "call_method":
        return str(node.target).endswith("_")
    return bool(node.kwargs.get("inplace") or "out" in node.kwargs) or node.target in IN_PLACE or _named_in_place(node)


def _named_in_place(node: fx.Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "").endswith("_")
