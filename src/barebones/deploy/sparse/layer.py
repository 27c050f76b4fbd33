"""The sparse layer: a convolution or linear layer that computes with its kept weights only, if that is faster."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .engine import load_kernel
from .plan import Geometry, KeptWeights, KernelPlan

# Spatial dimensions of the supported layers. Only these exact types: a subclass may compute something else.
SPATIAL: dict[type[nn.Module], int] = {nn.Linear: 0, nn.Conv1d: 1, nn.Conv2d: 2}
SECONDS = 0.05  # time limit for measuring one implementation
REPEATS = 9

Implementation = Callable[[Tensor, Tensor | None], Tensor]  # (input, summand) -> output
Key = tuple[torch.Size, int]  # input shape, number of threads

_measuring = RLock()  # two measurements at the same time would disturb each other


@dataclass(frozen=True)
class LayerChoice:
    """The implementation that one layer uses for one input shape: the one that was measured fastest on this machine."""

    layer: str
    shape: tuple[int, ...]  # of the input
    threads: int
    kept: int
    total: int
    chosen: str  # "dense", "matmul", "sparse" or "sparse, gathered"
    microseconds: dict[str, float] = field(default_factory=dict)  # of each implementation
    reason: str = ""  # why there was nothing to measure, if there was nothing


class SparseLayer(nn.Module):
    """A layer for inference with the `weight` and `bias` of the layer that it replaces; pruned weights are zero.

    When an input of a new shape (or with a new number of threads) arrives, the layer measures every implementation a
    few times and uses the fastest for that shape from then on. `dense` is torch's layer, `matmul` is a matrix product
    for kernels of one pixel, and `sparse` is the kernel that reads kept weights only, either with the pixels of the
    input itself or with gathered planes. The output is `conv(x) + add`, followed by a ReLU if `relu` is set. Inputs
    that are not float32 on the CPU are computed densely, and so are all inputs under autocast or tracing. Pruned
    weights are never multiplied: if the input is not finite, a dense layer may return NaN where this one does not.
    """

    def __init__(self, layer: nn.Module, name: str = "") -> None:
        super().__init__()
        assert isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d)
        self.name = name
        self.relu = False
        self.spatial = SPATIAL[type(layer)]
        self.geometry = _geometry(layer)
        for attribute in type(layer).__constants__:  # sizes and strides: a network may read them
            setattr(self, attribute, getattr(layer, attribute))
        linear = isinstance(layer, nn.Linear)
        self.dense_options = () if linear else (layer.stride, layer.padding, layer.dilation, layer.groups)
        self.weight = nn.Parameter(layer.weight.detach(), requires_grad=False)
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach(), requires_grad=False)
        self.choices: dict[Key, LayerChoice] = {}
        self._fastest: dict[Key, Implementation] = {}
        self._kept: KeptWeights | None = None
        self._measured_versions = self._versions()
        self.eval()

    def forward(self, input: Tensor, add: Tensor | None = None) -> Tensor:
        x = input  # torch's layers may be called with this name
        if not _readable(x) or _watched() or not (add is None or _readable(add)):
            return self._dense(x, add)
        if x.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                "a model from sparsify_for_cpu is for inference only and computes no gradients; "
                "call it under torch.no_grad(), or differentiate the masked model"
            )
        if (versions := self._versions()) != self._measured_versions:
            self._forget()
            self._measured_versions = versions
        compute = self._fastest.get((x.shape, torch.get_num_threads())) or self._choose(x, add)
        return compute(x, add)

    def extra_repr(self) -> str:
        shape = "×".join(map(str, self.weight.shape))
        return f"{shape}, {int(self.weight.count_nonzero()):,} kept{', relu' if self.relu else ''}"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_fastest": {}, "_kept": None, "choices": {}}  # plans hold addresses

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> SparseLayer:
        self._forget()
        super()._apply(fn, recurse)
        return self

    def _versions(self) -> tuple[int, ...]:
        """Return the addresses of weight and bias, and how often each was changed in place if torch counts that."""
        tensors = (self.weight,) if self.bias is None else (self.weight, self.bias)
        return tuple(n for t in tensors for n in (t.data_ptr(), -1 if t.is_inference() else t._version))

    def _forget(self) -> None:
        """Drop all plans and measurements, because the weights change."""
        self._fastest, self.choices, self._kept = {}, {}, None

    def _choose(self, x: Tensor, add: Tensor | None) -> Implementation:
        """Measure which implementation is the fastest for inputs like this one, and remember it."""
        key = (x.shape, torch.get_num_threads())
        with _measuring, torch.no_grad():
            if key not in self._fastest:
                available, reason = self.implementations(x)
                self.choices[key] = choice = self._measured(available, x, add, reason)
                self._fastest[key] = available[choice.chosen]
        return self._fastest[key]

    def implementations(self, x: Tensor) -> tuple[dict[str, Implementation], str]:
        """Return all implementations for inputs of this shape, and the reason why there is no sparse one, if so."""
        available: dict[str, Implementation] = {"dense": self._dense}
        shape = self._image_shape(x)
        if shape is None:
            return available, "the input has no batch or no pixels, or does not fit the layer"  # torch says which
        if self.spatial and self.geometry == Geometry():
            available["matmul"] = self._matmul
        kernel = load_kernel()
        if isinstance(kernel, str):
            return available, kernel
        if self._kept is None:
            weight = self.weight.view(self.weight.shape[:2] + (1,) * (2 - self.spatial) + self.weight.shape[2:])
            self._kept = KeptWeights.from_weight(weight, self.bias, self.geometry)
        plan = KernelPlan(self._kept, shape, torch.get_num_threads(), self.relu)
        available["sparse"] = self._sparse(plan, kernel.barebones_run, x)
        if plan.in_place:
            plan = KernelPlan(self._kept, shape, torch.get_num_threads(), self.relu, gather=True)
            available["sparse, gathered"] = self._sparse(plan, kernel.barebones_run, x)
        return available, ""

    def _measured(
        self, available: dict[str, Implementation], x: Tensor, add: Tensor | None, reason: str
    ) -> LayerChoice:
        """Return the fastest implementation: the one with the shortest time over several rounds, each in turn."""
        kept, total = int(self.weight.count_nonzero()), self.weight.numel()
        about = (self.name, tuple(x.shape), torch.get_num_threads(), kept, total)
        if len(available) == 1:
            return LayerChoice(*about, next(iter(available)), reason=reason)
        shortest = dict.fromkeys(available, float("inf"))
        for compute in available.values():
            compute(x, add)
        started = time.perf_counter()
        for repeat in range(REPEATS):
            for name, compute in available.items():
                before = time.perf_counter()
                compute(x, add)
                shortest[name] = min(shortest[name], time.perf_counter() - before)
            if repeat and time.perf_counter() - started > SECONDS * len(available):
                break
        microseconds = {name: 1e6 * seconds for name, seconds in shortest.items()}
        return LayerChoice(*about, min(shortest, key=lambda name: shortest[name]), microseconds, reason)

    def _image_shape(self, x: Tensor) -> tuple[int, int, int, int] | None:
        """Return the input's shape as (images, channels, height, width), or None if it does not fit the layer."""
        if not self.spatial:
            shape = (x.shape[:-1].numel(), x.shape[-1], 1, 1) if x.dim() else (0, 0, 0, 0)
        elif x.dim() == self.spatial + 2:
            shape = (*x.shape[:2], *((1,) * (2 - self.spatial)), *x.shape[2:])
        else:  # a single image without a batch dimension
            return None
        channels = self.weight.shape[1] * self.geometry.groups
        fits = shape[1] == channels and min(shape) > 0 and min(self.geometry.output(*shape[2:])) > 0
        return shape if fits and len(self.weight) else None

    def _sparse(self, plan: KernelPlan, run: Any, x: Tensor) -> Implementation:
        """Return a function that calls the kernel for inputs of this shape."""
        lead = x.shape[:1] if self.spatial else x.shape[:-1]
        output = (*lead, len(self.weight), *plan.output[4 - self.spatial :])

        def compute(x: Tensor, add: Tensor | None) -> Tensor:
            if add is not None and add.shape != output:
                return self._dense(x, add)
            x, add = x.contiguous(), None if add is None else add.contiguous()
            y = x.new_empty(output)
            summand = None if add is None else add.data_ptr()
            if run(plan.address, x.data_ptr(), y.data_ptr(), summand, plan.threads):
                raise MemoryError("there is not enough memory for the sparse kernel; use smaller batches")
            return y

        return compute

    def _matmul(self, x: Tensor, add: Tensor | None) -> Tensor:
        weight, images = self.weight.flatten(1), x.flatten(2)
        if self.bias is None:
            y = weight @ images
        elif len(images) == 1:
            y = torch.addmm(self.bias[:, None], weight, images[0])
        else:
            y = torch.baddbmm(self.bias[:, None], weight.expand(len(images), *weight.shape), images)
        return self._finish(y.view(len(x), -1, *x.shape[2:]), add)

    def _dense(self, x: Tensor, add: Tensor | None) -> Tensor:
        compute = (F.linear, F.conv1d, F.conv2d)[self.spatial]
        return self._finish(compute(x, self.weight, self.bias, *self.dense_options), add)

    def _finish(self, y: Tensor, add: Tensor | None) -> Tensor:
        y = y if add is None else y + add
        return y.relu() if self.relu else y


def replaceable(layer: nn.Module) -> bool:
    """Tell whether a sparse layer can replace it: a known type, float32 on the CPU, zero padding, no hooks."""
    if type(layer) not in SPATIAL or getattr(layer, "padding_mode", "zeros") != "zeros":
        return False
    weight = layer._parameters.get("weight")
    hooked = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or "forward" in vars(layer)
    return weight is not None and _readable(weight.data) and not hooked


def _readable(x: Tensor) -> bool:
    """Tell whether the kernel can read it: a plain float32 tensor in CPU memory."""
    return type(x) is Tensor and x.dtype is torch.float32 and x.is_cpu and x.layout is torch.strided


def _watched() -> bool:
    """Tell whether autocast, a compiler, a tracer or a dispatch mode needs to see torch's own (dense) operations."""
    return (
        torch.is_autocast_enabled("cpu")
        or torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
    )


def _geometry(layer: nn.Linear | nn.Conv1d | nn.Conv2d) -> Geometry:
    if isinstance(layer, nn.Linear):
        return Geometry()
    kernel, stride, dilation = (_pair(n, 1) for n in (layer.kernel_size, layer.stride, layer.dilation))
    if isinstance(layer.padding, str):
        padding = [d * (k - 1) if layer.padding == "same" else 0 for k, d in zip(kernel, dilation, strict=True)]
        before, after = (padding[0] // 2, padding[1] // 2), (-(-padding[0] // 2), -(-padding[1] // 2))
    else:
        before = after = _pair(layer.padding, 0)
    return Geometry(kernel, stride, dilation, before, after, layer.groups)


def _pair(numbers: tuple[int, ...], missing: int) -> tuple[int, int]:
    first, second = numbers if len(numbers) == 2 else (missing, *numbers)
    return first, second
