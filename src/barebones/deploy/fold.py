"""Folding: a batch-norm that is the only reader of a layer becomes part of that layer's weight and bias."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..running.inputs import tensors
from ..running.memory import address, addresses
from ..running.modes import restored
from ..running.outputs import device_of, outputs
from ..running.rng import forked
from ..scope import masked_copy
from .equality import unequal

Pairs = list[tuple[str, str]]  # the names of a layer and of the batch-norm that reads it

# The layers that can be folded into, each with the number of dimensions that its output must have so that dimension 1
# holds the channels, as batch-norm expects. A linear layer on a sequence, or a convolution without a batch dimension,
# has other outputs. Only these exact types: a subclass may compute something else.
LAYERS: dict[type[nn.Module], int] = {
    nn.Linear: 2,
    nn.Conv1d: 3,
    nn.Conv2d: 4,
    nn.Conv3d: 5,
    nn.ConvTranspose1d: 3,
    nn.ConvTranspose2d: 4,
    nn.ConvTranspose3d: 5,
}
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def folded(model: nn.Module, example: Any) -> nn.Module:
    """Return a copy in eval mode with each batch-norm folded into a layer, if it is the only reader of that layer.

    With `s = weight / sqrt(running_var + eps)`, a row `w` of the layer's weight becomes `s w`, and its bias `b` becomes
    `s (b - running_mean) + bias`. Both are computed in float64, and an `nn.Identity` replaces the batch-norm. Layers
    are convolutions (transposed ones too) and linear layers.

    One run of the example shows which layer a batch-norm reads, and what else reads that layer. A layer and a
    batch-norm stay as they are if one of them is used twice, shares its weights or has hooks, or if another operation
    reads the layer's output. Finally the outputs of the copy are compared with those of the model, also with other
    weights and inputs, and a difference is a `ValueError`. If the model runs other operations for inputs of other
    shapes or values, the example does not show them.

    The example is what the model is called with: one input, a tuple of arguments, a dict of arguments by name, or
    (args, kwargs). The copy is of the bare model, without wrappers for compiling or data-parallel training.

    >>> net = nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.BatchNorm2d(2), nn.ReLU())
    >>> folded(net, torch.zeros(1, 1, 4, 4))
    Sequential(
      (0): Conv2d(1, 2, kernel_size=(3, 3), stride=(1, 1))
      (1): Identity()
      (2): ReLU()
    )
    """
    network = masked_copy(model, {}).eval()
    with forked(device_of(network, example)):
        pairs = foldable(network, example)
        changed = with_folded(deepcopy(network), pairs)
        if problem := unequal(network, changed, example, lambda other: with_folded(other, pairs)):
            raise ValueError(
                f"batch-norm cannot be folded in {type(network).__name__}: {problem}; "
                "it may also keep its modules outside of the module tree, where folding does not find them"
            )
    return changed


def with_folded(network: nn.Module, pairs: Pairs) -> nn.Module:
    """Fold these batch-norms into their layers, in place, and return the network."""
    modules = dict(network.named_modules())
    for layer, norm in pairs:
        _fold(modules[layer], modules[norm])
    folded_norms = {modules[norm] for _, norm in pairs}
    for module in modules.values():
        for name, child in module._modules.items():
            if child in folded_norms:
                module._modules[name] = nn.Identity()
    return network


def foldable(model: nn.Module, example: Any) -> Pairs:
    """Run the model once, and return each pair of a layer and the batch-norm to fold into it, by name."""
    known = [module for module in model.modules() if type(module) in LAYERS or type(module) in NORMS]
    watched = [module for module in known if not (module._forward_hooks or module._forward_pre_hooks)]
    with restored(model), _MemoryReaders() as readers, readers.watching(watched):
        returned = addresses(list(tensors(outputs(model, example))))

    def can_fold(layer: nn.Module, norm: nn.Module) -> bool:
        output = readers.outputs[layer]
        called_once = readers.calls[layer] == readers.calls[norm] == 1
        only_reader = readers.by_address[address(output)] == {norm} and address(output) not in returned
        unshared = all(
            readers.by_address[address(t)] <= {m} for m in (layer, norm) for t in (*m.parameters(), *m.buffers())
        )
        channels_fit = output.dim() == LAYERS[type(layer)]
        has_statistics = norm.running_mean is not None and not norm.training  # some networks keep it in train mode
        return called_once and only_reader and unshared and channels_fit and has_statistics

    names = {module: name for name, module in model.named_modules()}
    return [(names[layer], names[norm]) for norm, layer in readers.sources.items() if can_fold(layer, norm)]


class _MemoryReaders(TorchDispatchMode):
    """A mode that sees every tensor operation and records which watched module (or None) reads which memory."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[nn.Module] = Counter()
        self.by_address: defaultdict[int, set[nn.Module | None]] = defaultdict(set)  # who reads which memory
        self.outputs: dict[nn.Module, Tensor] = {}  # of layers; kept alive so that no other tensor takes their address
        self.sources: dict[nn.Module, nn.Module] = {}  # for each batch-norm, the layer whose output it reads
        self._running: list[nn.Module | None] = [None]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for memory in addresses((args, kwargs)):
            self.by_address[memory].add(self._running[-1])
        return func(*args, **(kwargs or {}))

    @contextmanager
    def watching(self, modules: list[nn.Module]) -> Iterator[None]:
        """Watch these modules with hooks, and remove the hooks at the end."""
        hooks = [m.register_forward_pre_hook(self._before, with_kwargs=True) for m in modules]
        hooks += [m.register_forward_hook(self._after) for m in modules]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.calls[module] += 1
        self._running.append(module)
        inputs = {id(value) for value in (*args, *kwargs.values())}
        for layer, output in self.outputs.items() if type(module) in NORMS else ():
            if id(output) in inputs:
                self.sources[module] = layer

    def _after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._running.pop()
        if type(module) in LAYERS:
            self.outputs[module] = output
            self.by_address[address(output)] = set()  # forget the readers of an earlier tensor at this address


@torch.no_grad()
def _fold(layer: Any, norm: Any) -> None:
    """Fold a batch-norm into the layer's weight and bias; only the layer changes."""
    scale = (norm.running_var.cpu().double() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale *= norm.weight.cpu().double()
    shift = -norm.running_mean.cpu().double()
    if layer.bias is not None:
        shift += layer.bias.cpu().double()
    shift *= scale
    if norm.bias is not None:
        shift += norm.bias.cpu().double()
    old, trains = layer.weight, layer.weight.requires_grad
    new = old.cpu().double()
    if getattr(layer, "transposed", False):  # the weight has the shape (inputs, outputs of a group, ...)
        groups = new.view(layer.groups, -1, *new.shape[1:])
        new = (groups * scale.view(layer.groups, 1, -1, *[1] * (new.dim() - 2))).view(new.shape)
    else:
        new = new * scale.view(-1, *[1] * (new.dim() - 1))
    new += 0.0  # a pruned weight times a negative scale is -0.0; this makes it +0.0
    layer.weight = nn.Parameter(torch.empty_like(old).copy_(new), trains)  # in the old memory format
    layer.bias = nn.Parameter(shift.to(old.device, old.dtype), trains)
