"""Folding: a batch-norm that alone reads one layer becomes part of that layer's weight and bias."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..running.inputs import call, mapped, tensors
from ..running.precision import tf32
from ..running.rng import forked
from ..scope import bare

# By exact type, since a subclass may do more: the dimensions of an output whose channels are where batch-norm expects
# them. A linear layer on a sequence, or a convolution without a batch, gives outputs whose dimension 1 is another.
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
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}  # of the outputs


def folded(model: nn.Module, example: Any) -> nn.Module:
    """A copy in eval mode, each batch-norm that alone reads the output of one layer folded into that layer.

    With `s = weight / sqrt(running_var + eps)`, a row `w` and its bias `b` become `s w` and `s (b - running_mean) +
    bias`, computed in float64, and the batch-norm an `nn.Identity`. Layers are convolutions (transposed too) and linear
    layers. Which of them a batch-norm reads, and who else reads it, is seen in one run of the example: a layer or a
    batch-norm that is used twice, shares its weights or has hooks stays as it is, as does one that another operation
    reads. The copy is then compared with the model on the example, and a `ValueError` tells where they differ; what a
    network reads only for inputs of other shapes or values is not seen.

    The example is what the model is called with: an input, a tuple of arguments, a dict of them by name, or
    (args, kwargs). Wrappers of compiling and of data-parallel training are left behind.

    >>> net = nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.BatchNorm2d(2), nn.ReLU())
    >>> folded(net, torch.zeros(1, 1, 4, 4))
    Sequential(
      (0): Conv2d(1, 2, kernel_size=(3, 3), stride=(1, 1))
      (1): Identity()
      (2): ReLU()
    )
    """
    found = copy.deepcopy(bare(model)).eval()
    expected, pairs = _observed(found, example)
    for layer, norm in pairs:
        _fold(layer, norm)
    gone = {norm for _, norm in pairs}
    for module in list(found.modules()):
        for name, child in module._modules.items():
            if child in gone:
                module._modules[name] = nn.Identity()
    if (gap := difference(expected, outputs(found, example))) > (most := tolerance(found)):
        raise ValueError(
            f"with batch-norm folded, {type(found).__name__} gives other outputs: they differ by {gap:.2g} of the "
            f"largest, and rounding explains {most:g}; it may keep its modules where folding does not find them"
        )
    return found


def outputs(model: nn.Module, example: Any) -> Any:
    """What the model gives for the example, which stays as it is: no gradients, no TF32, the same random numbers."""
    args, kwargs = mapped(call(example), lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with torch.no_grad(), forked(device, seed=0), tf32(device, False):
        return model(*args, **kwargs)


def difference(expected: Any, found: Any) -> float:
    """The largest difference of two outputs, as a share of the largest value expected (but of 0.01 at least).

    Where NaN or infinity stands in both there is none; where it stands in one, or the shapes differ, it is infinite.

    >>> difference(torch.tensor([1.0, -4.0]), torch.tensor([1.0, -3.0]))
    0.25
    """
    a, b = list(tensors(expected)), list(tensors(found))
    if [t.shape for t in a] != [t.shape for t in b]:
        return float("inf")
    worst = 0.0
    for one, other in zip(a, b, strict=True):
        if not one.is_floating_point() or not one.numel():  # an index may flip where two values are as good as equal
            continue
        one, other = one.detach().cpu().double(), other.detach().cpu().double()
        gap = (one - other).abs().nan_to_num(nan=float("inf"), posinf=float("inf"))
        gap[(one == other) | (one.isnan() & other.isnan())] = 0
        scale = one.abs().nan_to_num(nan=0, posinf=0).max().clamp(min=0.01)
        worst = max(worst, float(gap.max() / scale))
    return worst


def tolerance(model: nn.Module) -> float:
    """What difference is rounding, in a model of these parameters."""
    return max((TOLERANCE.get(p.dtype, 1e-4) for p in model.parameters()), default=1e-4)


def _observed(model: nn.Module, example: Any) -> tuple[Any, list[tuple[nn.Module, nn.Module]]]:
    """One run: what the model gives, and each layer with the batch-norm to fold into it."""
    watched = [m for m in model.modules() if (type(m) in LAYERS or type(m) in NORMS) and not _hooked(m)]
    with _Readers() as readers, readers.watching(watched):
        result = outputs(model, example)
    returned = {address(t) for t in tensors(result)}

    def fits(layer: nn.Module, norm: nn.Module) -> bool:
        output = readers.outputs[layer]
        once = readers.calls[layer] == readers.calls[norm] == 1
        alone = readers.read[address(output)] == {norm} and address(output) not in returned
        own = all(readers.read[address(t)] <= {m} for m in (layer, norm) for t in (*m.parameters(), *m.buffers()))
        return once and alone and own and output.dim() == LAYERS[type(layer)] and norm.running_mean is not None

    return result, [(layer, norm) for norm, layer in readers.sources.items() if fits(layer, norm)]


class _Readers(TorchDispatchMode):
    """Sees every tensor operation, and notes which of the watched modules (or None) read which memory."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[nn.Module] = Counter()
        self.read: defaultdict[int, set[nn.Module | None]] = defaultdict(set)  # by address
        self.outputs: dict[nn.Module, Tensor] = {}  # of layers; alive, so that their addresses stay theirs
        self.sources: dict[nn.Module, nn.Module] = {}  # of each batch-norm, the layer whose output it was given
        self._running: list[nn.Module | None] = [None]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor):
                self.read[address(leaf)].add(self._running[-1])
        return func(*args, **(kwargs or {}))

    @contextmanager
    def watching(self, modules: list[nn.Module]) -> Iterator[None]:
        """With hooks on these modules, which are gone afterwards."""
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
        given = {id(value) for value in (*args, *kwargs.values())}
        for layer, output in self.outputs.items() if type(module) in NORMS else ():
            if id(output) in given:
                self.sources[module] = layer

    def _after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._running.pop()
        if type(module) in LAYERS:
            self.outputs[module] = output
            self.read[address(output)] = set()  # what stood at this address before is gone


def address(tensor: Tensor) -> int:
    """Of the memory a tensor lies in, which is that of its views and aliases, too."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else id(tensor)


def _hooked(module: nn.Module) -> bool:
    """Whether somebody looks at what goes in or comes out, or computes the weight from others at each call."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


@torch.no_grad()
def _fold(layer: Any, norm: Any) -> None:
    """Put a batch-norm into the layer's weight and bias; only the layer changes."""
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
    if getattr(layer, "transposed", False):  # its weight is (inputs, outputs of a group, ...), group by group
        parts = new.view(layer.groups, -1, *new.shape[1:])
        new = (parts * scale.view(layer.groups, 1, -1, *[1] * (new.dim() - 2))).view(new.shape)
    else:
        new = new * scale.view(-1, *[1] * (new.dim() - 1))
    new += 0.0  # no -0.0 where a pruned weight meets a negative scale
    layer.weight = nn.Parameter(torch.empty_like(old).copy_(new), trains)  # in the old memory format
    layer.bias = nn.Parameter(shift.to(old.device, old.dtype), trains)
