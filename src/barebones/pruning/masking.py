"""Masking: what is on the model while masks are on, and is taken off again.

The prunable weights are theta * c, and the bias of a channel that keeps no weight counts as zero in front of a norm.
Such a channel is the constant b. A batch-norm subtracts its mean and leaves rounding errors. Where these are positive,
the next ReLU is open, and the norm multiplies the gradient by 1/sqrt(eps), about 316: weights that lead nowhere would
have the highest scores of all. With b = 0 the rounding errors are exactly zero.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ..gpu.graphs import Captured
from ..masks import Masks
from ..running.backward import nodes
from ..running.chunks import chunks
from ..running.inputs import mapped
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
        owners = ((names.get(id(module._parameters.get("weight"))), module) for _, module in layers(model))
        self._layers = {name: module for name, module in owners if name is not None}
        biases = ((name, layer._parameters.get("bias")) for name, layer in self._layers.items())
        self._biases = {name: bias for name, bias in biases if bias is not None}
        self._normed: dict[str, int] | None = None  # how many channels each is normalized with; None: not known yet
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
            weights = [local(parameter.data) for parameter in self.parameters.values()]
            torch._foreach_copy_(weights, [self._dense[name] for name in self.parameters])
            for bias, value in self._saved:
                bias.copy_(value)
            self._saved.clear()

    def silence(self, evaluate: Callable[[], object]) -> None:
        """Zero the biases of channels without weights while the masks are on; `evaluate` runs the model once."""
        if self._masks is None or self._saved:
            return
        if self._normed is None:
            self._normed = self._found(evaluate) if self._biases and any(map(_group, self.model.modules())) else {}
        for name, group in self._normed.items():
            bias = local(self._biases[name].data)
            self._saved.append((bias, bias.clone()))
            bias.masked_fill_(~self._used(name, self._masks[name], group), 0.0)

    def _found(self, evaluate: Callable[[], object]) -> dict[str, int]:
        """Return the names of the biases that reach a norm, and how many channels it takes together."""
        called = {id(self._layers[name]): name for name in self._biases}
        biases: dict[int, tuple[str, Tensor]] = {}  # those that the layers are called with: FSDP2 has others outside
        entered: list[tuple[int, Tensor]] = []  # what a norm was called with, and how many channels it takes together

        def cut(module: nn.Module, args: Any, kwargs: Any) -> Any:  # so that only its own bias is seen behind a layer
            if id(module) in called:
                biases[id(module.bias)] = called[id(module)], module.bias  # type: ignore[assignment]
            return mapped((args, kwargs), lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf)

        def note(norm: nn.Module, args: tuple[Any, ...]) -> None:
            entered.extend((_group(norm), arg) for arg in args if isinstance(arg, Tensor))

        with ExitStack() as stack:
            stack.enter_context(forked(next(iter(self._biases.values())).device))
            stack.enter_context(uncompiled(self.model))
            stack.enter_context(trainable(self._biases.values()))
            for module in self._layers.values():
                stack.enter_context(module.register_forward_pre_hook(cut, with_kwargs=True))
            for norm in filter(_group, self.model.modules()):
                stack.enter_context(norm.register_forward_pre_hook(note))
            evaluate()
        found: dict[str, int] = {}
        for group, tensor in entered:
            for node in nodes([tensor]):
                name, bias = biases.get(id(getattr(node, "variable", None)), ("", tensor))
                if name and bias.numel() % group == 0:
                    found[name] = max(group, found.get(name, 1))
        return found

    def _current_versions(self) -> list[tuple[int, int]]:
        return [(parameter._version, local(parameter).data_ptr()) for parameter in self.parameters.values()]

    def _used(self, name: str, mask: Tensor, group: int) -> Tensor:
        """Return which output channels, or channels normalized with them, keep a weight."""
        used, whole = used_channels(mask, self.transposed.get(name), self.shards), self._biases[name]
        if self.shards is not None and group > 1 and name not in self.transposed:
            rows, used = used, torch.zeros(whole.shape, dtype=torch.bool, device=used.device)
            own_rows(used, whole).copy_(rows)
            used = self.shards.any_rank(used)
        if group > 1:
            used = used.view(-1, group).any(1).repeat_interleave(group)
        return own_rows(used, whole) if group > 1 or name in self.transposed else used


def _multiply(parameters: Mapping[str, nn.Parameter], dense: Mapping[str, Tensor], *masks: Tensor) -> None:
    for (name, parameter), whole in zip(parameters.items(), masks, strict=True):
        for weight, mask, masked in chunks(dense[name], whole, local(parameter.data)):
            on_cpu = mask.device.type == "cpu"  # there, a product of two types takes longer than a copy
            torch.mul(weight, mask.to(weight.dtype) if on_cpu else mask, out=masked)


def _group(module: nn.Module) -> int:
    """Return how many channels a norm takes together, if it subtracts the mean of its input; 0 for other modules."""
    if isinstance(module, _NormBase):  # batch- and instance-norms
        return int(module.training or module.running_mean is None)
    if isinstance(module, nn.GroupNorm):
        return module.num_channels // module.num_groups
    return math.prod(module.normalized_shape) if isinstance(module, nn.LayerNorm) else 0
