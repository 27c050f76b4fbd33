"""Fusing: a ReLU or a sum that is the only reader of a layer becomes part of that layer."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Set
from copy import deepcopy
from types import FunctionType
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from ...running.inputs import call
from ...running.memory import Writes, addresses
from ...running.outputs import outputs

SUMS = {operator.add, operator.iadd, torch.add}
RELUS = {F.relu, torch.relu, torch.relu_}


def fused(model: nn.Module, layers: Set[str], example: Any) -> tuple[fx.GraphModule, set[str]] | None:
    """Return a copy as a graph without the fused sums and ReLUs, and the names of the layers that need a ReLU.

    In the graph, a layer whose sum was fused is called with the other summand as its second argument. A sum or ReLU is
    fused only if it is the only reader of a layer that is called once, and a sum only if both terms have one shape and
    type. The layers themselves do not change: the caller must replace them by layers that take a summand and apply a
    ReLU. The result is None if the model cannot be traced, if it has hooks that a graph would lose, or if it writes to
    its own tensors.
    """
    _, kwargs = call(example)
    if kwargs or not layers or "" in layers:  # "": the model itself is the layer
        return None
    model = deepcopy(model)  # tracing may leave its placeholders in attributes
    tracer = _Tracer(layers)
    try:
        graph = fx.GraphModule(model, tracer.trace(model), type(model).__name__)
        run = _Run(graph)
        outputs(run, example)
    except Exception:  # a user's forward may raise anything when it is called with fx proxies instead of tensors
        return None
    if tracer.lost_hooks or run.keeps_state:
        return None
    calls = Counter(node.target for node in graph.graph.nodes if node.op == "call_module")
    called_once = {str(target) for target, count in calls.items() if target in layers and count == 1}
    modules = dict(graph.named_modules())
    for node in list(graph.graph.nodes):
        if _is_module(node, nn.Identity, modules):
            node.replace_all_uses_with(cast(fx.Node, node.args[0]))
            graph.graph.erase_node(node)
    order = {node: index for index, node in enumerate(graph.graph.nodes)}
    for node in list(graph.graph.nodes):
        if _is_sum(node):
            _fuse_sum(graph.graph, node, called_once, run, order)
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

    proxy_buffer_attributes = True  # what is computed from a buffer must not become a constant

    def __init__(self, layers: Set[str]) -> None:
        super().__init__()
        self._layers = layers
        self.lost_hooks = False

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        self.lost_hooks = not _plain(root)
        return super().trace(root, concrete_args)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if type(m) is not nn.Sequential and not any(n.startswith(f"{module_qualified_name}.") for n in self._layers):
            return True
        self.lost_hooks = self.lost_hooks or not _plain(m)
        return False


class _Run(nn.Module):
    """A run of a graph that records what each node returns, and which nodes write to memory older than themselves."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__()
        self.graph = graph
        self.kinds: dict[fx.Node, tuple[torch.Size, torch.dtype]] = {}
        self.writers: set[fx.Node] = set()
        self.keeps_state = False  # whether a write reaches memory that outlives the run, as that of a buffer

    def forward(self, *args: Any) -> Any:
        modules = dict(self.graph.named_modules())
        temporary = addresses(args)

        def run_node(node: fx.Node) -> Any:
            with Writes() as writes:
                result = fx.Interpreter.run_node(interpreter, node)
            if isinstance(result, Tensor):
                self.kinds[node] = (result.shape, result.dtype)
            if writes.addresses or _is_unknown(node, modules):
                self.writers.add(node)
            self.keeps_state = self.keeps_state or not writes.addresses <= temporary
            if node.op != "get_attr":
                temporary.update(addresses(result) - lasting)
            return result

        lasting = addresses([*self.graph.parameters(), *self.graph.buffers()])
        interpreter = fx.Interpreter(self.graph, garbage_collect_values=False)  # so that no address is used twice
        interpreter.run_node = run_node  # type: ignore[assignment,method-assign]
        return interpreter.run(*args)


def _fuse_sum(graph: fx.Graph, node: fx.Node, layers: Set[str], run: _Run, order: dict[fx.Node, int]) -> None:
    """Pass one term of a sum to the layer that computes the other term, unless a tensor changes in between.

    The call of the layer moves to where the sum was, because both terms exist there.
    """
    first, second = cast(tuple[Any, Any], node.args)
    distinct = isinstance(first, fx.Node) and isinstance(second, fx.Node) and first is not second
    if not distinct or run.kinds.get(first) is None or run.kinds.get(first) != run.kinds.get(second):
        return
    pairs = [(first, second)] if node.target is operator.iadd else [(first, second), (second, first)]
    pairs = [(a, b) for a, b in pairs if _is_layer(a, layers) and len(a.users) == 1 and len(a.args) == 1]
    if not pairs:
        return
    layer, other = max(pairs, key=lambda pair: order[pair[0]])  # moving the later layer crosses fewer nodes
    if any(order[layer] < order[writer] < order[node] for writer in run.writers):
        return
    layer.args = (*layer.args, other)
    node.replace_all_uses_with(layer)
    node.prepend(layer)
    order[layer] = order[node]
    run.writers.discard(node)
    graph.erase_node(node)


def _is_layer(node: Any, layers: Set[str]) -> bool:
    called = isinstance(node, fx.Node) and node.op == "call_module" and node.target in layers
    return called and not node.kwargs


def _is_sum(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target in SUMS and len(node.args) == 2 and not node.kwargs


def _is_relu(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    named = node.op == "call_method" and node.target in ("relu", "relu_")
    called = named or (node.op == "call_function" and node.target in RELUS)
    return _is_module(node, nn.ReLU, modules) or (called and bool(node.args))


def _is_module(node: fx.Node, kind: type[nn.Module], modules: dict[str, nn.Module]) -> bool:
    """Tell whether the node calls a module of exactly this type, with one argument and without hooks."""
    module = modules.get(str(node.target)) if node.op == "call_module" else None
    return type(module) is kind and _plain(module) and len(node.args) == 1


def _is_unknown(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Tell whether the node runs a user's code, which may write to its inputs for other values than the example's."""
    if node.op == "call_module":
        return not all(type(m).__module__.startswith("torch.nn.") for m in modules[str(node.target)].modules())
    return isinstance(node.target, FunctionType) and not node.target.__module__.startswith("torch.")


def _plain(module: nn.Module) -> bool:
    """Tell whether nothing but the module's own forward runs when it is called."""
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
