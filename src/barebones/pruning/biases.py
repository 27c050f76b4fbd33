"""Biases in front of norms: while masks are on, the bias of a channel that keeps no weight counts as zero there.

Such a channel is the constant b. A batch-norm subtracts its mean and leaves rounding errors, not a signal. Where these
are positive, the next ReLU is open, and the gradient through the norm is multiplied by 1/sqrt(eps), about 316: weights
that lead nowhere would have the highest scores of all. With b = 0 the rounding errors are exactly zero. Of norms over
groups of channels, this holds for groups in which no channel keeps a weight.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ..masks import Masks
from ..running.backward import nodes
from ..running.inputs import mapped
from ..running.modes import trainable, uncompiled
from ..running.rng import forked
from ..running.shards import local, own_rows
from ..scope import layers, transposed
from .round_stats import by_output
from .shards import Shards


class NormBiases:
    """The biases of a model's prunable layers that reach a norm without another layer between."""

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter], shards: Shards | None) -> None:
        self.model, self.shards, self.transposed = model, shards, transposed(model)
        names = {id(parameter): name for name, parameter in parameters.items()}
        owners = [module for _, module in layers(model) if "weight" in module._parameters]
        self.layers = {names[id(m.weight)]: m for m in owners if id(m.weight) in names}
        biases = {name: layer._parameters.get("bias") for name, layer in self.layers.items()}
        self.biases = {name: bias for name, bias in biases.items() if bias is not None}
        self._found: dict[str, int] | None = None  # how many channels each is normalized with; None if not known yet

    @property
    def possible(self) -> bool:
        """Whether the model has layers with biases, and norms."""
        return bool(self.biases) and any(map(_group, self.model.modules()))

    def find(self, evaluate: Callable[[], object], device: torch.device) -> None:
        """Run the model once with `evaluate`, unless that was done before, and find the biases that reach a norm."""
        if self._found is not None:
            return
        self._found = {}
        if not self.possible:
            return
        biases: dict[int, tuple[str, Tensor]] = {}  # those that the layers are called with: FSDP2 has others outside
        entered: list[tuple[int, Tensor]] = []  # what a norm was called with, and how many channels it takes together

        def cut(module: nn.Module, args: Any, kwargs: Any) -> Any:
            """Detach what a layer is called with, so that only its own bias is seen behind it."""
            if id(module) in called:
                biases[id(module.bias)] = called[id(module)], module.bias  # type: ignore[assignment]
            return mapped((args, kwargs), lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf)

        def note(norm: nn.Module, args: tuple[Any, ...]) -> None:
            entered.extend((_group(norm), arg) for arg in args if isinstance(arg, Tensor))

        called = {id(self.layers[name]): name for name in self.biases}
        with ExitStack() as stack:
            stack.enter_context(forked(device))
            stack.enter_context(uncompiled(self.model))
            stack.enter_context(trainable(self.biases.values()))
            for module in self.layers.values():
                stack.enter_context(module.register_forward_pre_hook(cut, with_kwargs=True))
            for norm in filter(_group, self.model.modules()):
                stack.enter_context(norm.register_forward_pre_hook(note))
            evaluate()
        for group, tensor in entered:
            for node in nodes([tensor]):
                name, bias = biases.get(id(getattr(node, "variable", None)), ("", tensor))
                if name and bias.numel() % group == 0:
                    self._found[name] = max(group, self._found.get(name, 1))

    @contextmanager
    def silenced(self, masks: Masks | None) -> Iterator[Callable[[], None]]:
        """Yield a function that sets the biases of channels without weights to zero; at the end they are put back."""
        saved: list[tuple[Tensor, Tensor]] = []

        def silence() -> None:
            if masks is None or saved:
                return
            for name, group in (self._found or {}).items():
                whole = self.biases[name]
                bias = local(whole.data)
                saved.append((bias, bias.clone()))
                bias.masked_fill_(~self._used(name, masks[name], group, whole), 0.0)

        try:
            yield silence
        finally:
            for bias, value in saved:
                bias.copy_(value)

    def _used(self, name: str, mask: Tensor, group: int, bias: Tensor) -> Tensor:
        """Return which output channels, or channels normalized with them, keep a weight; of a shard, for its rows."""
        used = by_output(mask, self.transposed.get(name)).any(1).any(-1).view(-1)
        if self.shards is not None and (name in self.transposed or group > 1):
            if name not in self.transposed:
                rows, used = used, torch.zeros(bias.shape, dtype=torch.bool, device=used.device)
                own_rows(used, bias).copy_(rows)
            used = self.shards.over_ranks(used.int(), largest=True).bool()
            return own_rows(_any_of(used, group), bias)
        return _any_of(used, group)


def _any_of(used: Tensor, group: int) -> Tensor:
    """Return whether any channel of each channel's group is used."""
    return used if group == 1 else used.view(-1, group).any(1).repeat_interleave(group)


def _group(module: nn.Module) -> int:
    """Return how many channels a norm takes together, if it subtracts the mean of its input; 0 for other modules."""
    if isinstance(module, _NormBase):  # batch- and instance-norms
        return int(module.training or module.running_mean is None)
    if isinstance(module, nn.GroupNorm):
        return module.num_channels // module.num_groups
    return math.prod(module.normalized_shape) if isinstance(module, nn.LayerNorm) else 0
