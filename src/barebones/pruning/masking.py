"""Masking: what is on the model while masks are on, and is taken off again.

The prunable weights are theta * c, and the bias of a channel that keeps no weight counts as zero in front of a norm of
single channels, such as a batch-norm. Such a channel is the constant b, and the norm that subtracts its mean leaves
rounding errors. Where these are positive, the next ReLU is open, and the norm multiplies the gradient by 1/sqrt(eps),
about 316: weights that lead nowhere would have the highest scores of all. With b = 0 the errors are exactly zero.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from ..gpu.graphs import Captured
from ..masks import Masks
from ..running.backward import nodes
from ..running.chunks import chunks
from ..running.modes import trainable, uncompiled
from ..running.rng import forked
from ..running.shards import local, own_rows
from ..scope import layers
from .processes import Shards
from .round import used_channels


class Masking:
    """The dense weights of a model, some of whose parameters are masked for a while.

    With `capture`, a CUDA graph puts the masks on, in one launch.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        transposed: Mapping[str, int],
        shards: Shards | None,
        capture: bool,
    ) -> None:
        self.model, self.parameters, self.transposed, self.shards = model, parameters, transposed, shards
        self._dense: dict[str, Tensor] = {}  # copies, made when masks are first put on
        put = partial(_multiply, parameters, self._dense)
        self._put: Callable[..., None] = Captured(put) if capture else put
        self._versions = self._current_versions()
        names = {id(parameter): name for name, parameter in parameters.items()}
        own = ((m, m._parameters.get("weight"), m._parameters.get("bias")) for _, m in layers(model))
        found = [(m, names[id(w)], bias) for m, w, bias in own if w is not None and id(w) in names and w.dim() > 1]
        self._biases = {m: (name, bias) for m, name, bias in found if bias is not None}
        mixing = (m for _, m in layers(model) if any(map(_is_matrix, m._parameters.values())))
        self._layers = {*mixing, *(m for m, *_ in found)}  # those that mix channels
        self._normed: list[nn.Module] | None = None  # layers whose biases reach a norm; None: not known yet
        self._masks: Masks | None = None
        self._saved: list[tuple[Tensor, Tensor]] = []  # biases that are silenced, and their values

    @property
    def dense(self) -> dict[str, Tensor]:
        """The dense weights by name; of a sharded model, the rows that this process holds."""
        return {name: self._dense.get(name, local(parameter.data)) for name, parameter in self.parameters.items()}

    @contextmanager
    def under(self, masks: Masks | None) -> Iterator[None]:
        if self._current_versions() != self._versions:
            raise ValueError("the model's weights were changed between two rounds; start again with a new probe")
        if masks is None:
            yield
            return
        if not self._dense:
            self._dense |= {name: local(parameter.data).clone() for name, parameter in self.parameters.items()}
        try:
            self._put(*(masks[name] for name in self.parameters))
            self._masks = masks
            yield
        finally:
            self._masks = None
            for bias, value in self._saved:
                bias.copy_(value)
            self._saved.clear()
            weights = [local(parameter.data) for parameter in self.parameters.values()]  # after the biases among them
            torch._foreach_copy_(weights, [self._dense[name] for name in self.parameters])

    def silence(self, evaluate: Callable[[], object]) -> None:
        """Zero the biases of channels without weights while the masks are on; `evaluate` runs the model once."""
        if self._masks is None or self._saved:
            return
        if self._normed is None:
            self._normed = self._found(evaluate) if self._biases and any(map(_is_norm, self.model.modules())) else []
        for layer in self._normed:
            name, whole = self._biases[layer]
            bias, used = local(whole.data), used_channels(self._masks[name], self.transposed.get(name), self.shards)
            used = own_rows(used, whole) if name in self.transposed else used
            if used.shape == bias.shape:  # not in a layer of the user's own whose inputs come first
                self._saved.append((bias, bias.clone()))
                bias.masked_fill_(~used, 0.0)

    def _found(self, evaluate: Callable[[], object]) -> list[nn.Module]:
        """Return the layers whose biases reach a norm."""
        biases: dict[int, nn.Module] = {}  # of those that the layers are called with: FSDP2 has others outside
        entered: list[Tensor] = []  # what norms were called with

        def cut(module: nn.Module, args: Any, kwargs: Any) -> Any:  # so that only its own bias is seen behind a layer
            if module in self._biases:
                biases[id(module.bias)] = module
            return tuple(map(_cut, args)), {key: _cut(value) for key, value in kwargs.items()}

        def note(norm: nn.Module, args: tuple[Any, ...]) -> None:
            entered.extend(arg for arg in args if isinstance(arg, Tensor))

        with ExitStack() as stack:
            everything = [bias for _, bias in self._biases.values()]
            stack.enter_context(forked(everything[0].device))
            stack.enter_context(uncompiled(self.model))
            stack.enter_context(trainable(everything))
            for module in self._layers:
                stack.enter_context(module.register_forward_pre_hook(cut, with_kwargs=True))
            for norm in filter(_is_norm, self.model.modules()):
                stack.enter_context(norm.register_forward_pre_hook(note))
            evaluate()
        reached = {id(getattr(node, "variable", None)) for node in nodes(entered, _keeps_sums)}
        return [layer for key, layer in biases.items() if key in reached]

    def _current_versions(self) -> list[tuple[int, int]]:
        return [(parameter._version, local(parameter).data_ptr()) for parameter in self.parameters.values()]


def _cut(value: Any) -> Any:  # a list stays the list that the caller may go on with
    return value.detach() if isinstance(value, Tensor) else value


def _is_matrix(parameter: Tensor | None) -> bool:
    return parameter is not None and (is_lazy(parameter) or sum(n > 1 for n in parameter.shape) > 1)


def _keeps_sums(node: Node) -> bool:
    """Return whether a constant in a function's input is one in its output: not in the product of two signals."""
    signals = [following for following, _ in node.next_functions if following and not _is_parameter(following)]
    return not (node.name().startswith("Glu") or (len(signals) > 1 and node.name().startswith(("Mul", "Div", "Bmm"))))


def _is_parameter(node: Node) -> bool:
    """Return whether a node is a parameter, perhaps in another shape."""
    while len(node.next_functions) == 1 and node.next_functions[0][0]:
        node = node.next_functions[0][0]
    return hasattr(node, "variable")


def _multiply(parameters: Mapping[str, nn.Parameter], dense: Mapping[str, Tensor], *masks: Tensor) -> None:
    for (name, parameter), whole in zip(parameters.items(), masks, strict=True):
        for weight, mask, masked in chunks(dense[name], whole, local(parameter.data)):
            on_cpu = mask.device.type == "cpu"  # there, a product of two types takes longer than a copy
            torch.mul(weight, mask.to(weight.dtype) if on_cpu else mask, out=masked)


def _is_norm(module: nn.Module) -> bool:
    """Return whether a module subtracts the mean of each channel of its input."""
    if isinstance(module, _NormBase):  # batch- and instance-norms
        return module.training or module.running_mean is None
    return isinstance(module, nn.GroupNorm) and module.num_channels == module.num_groups
