"""The sparse layer: a convolution or linear layer that computes with its kept weights, where that is faster."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .engine import engine
from .plan import Geometry, Kept, Planned

SPATIAL: dict[type[nn.Module], int] = {
    nn.Linear: 0,
    nn.Conv1d: 1,
    nn.Conv2d: 2,
}  # exact types: others may do more
SECONDS = 0.05  # that measuring takes at most, of each way
REPEATS = 9

Way = Callable[[Tensor, Tensor | None], Tensor]
Key = tuple[torch.Size, int]  # shape of the input, threads

_measuring = RLock()  # two measurements at the same time would spoil each other


@dataclass(frozen=True)
class Choice:
    """How one layer computes inputs of one shape, and the microseconds that each way took here."""

    layer: str
    shape: tuple[int, ...]
    threads: int
    kept: int
    total: int
    chosen: str  # "dense", "matmul", "sparse" or "sparse, gathered"
    microseconds: dict[str, float] = field(default_factory=dict)
    reason: str = ""  # why it was not measured, where it was not


class SparseLayer(nn.Module):
    """`weight` and `bias` as in the layer it stands for, pruned weights zero; for inference only.

    The first input of each shape (and number of threads) is computed in every way there is, some times over, and the
    fastest is kept for that shape: dense (`dense`, or `matmul` for kernels of one pixel) or by the kernel that reads
    kept weights only, in place or from gathered planes (`sparse`). `relu` applies one to the output, and `forward`'s
    `add` is added before it. Inputs that are not float32 on the CPU, under autocast or tracing are computed densely.
    What is pruned is not looked at: where the input is not finite, a dense layer may give NaN and this one does not.
    """

    def __init__(self, layer: nn.Module, name: str = "") -> None:
        super().__init__()
        assert isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d)
        self.name = name
        self.relu = False
        self.spatial = SPATIAL[type(layer)]
        self.geometry = _geometry(layer)
        self.dense_options = _options(layer)
        self.weight = nn.Parameter(layer.weight.detach(), requires_grad=False)
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach(), requires_grad=False)
        self.choices: dict[Key, Choice] = {}
        self._ways: dict[Key, Way] = {}
        self._kept: Kept | None = None
        self._planned: tuple[int, ...] | None = (
            self._versions()
        )  # of the weights that plans and measurements were made for
        self.eval()

    def forward(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        if not _readable(x) or _watched() or not (add is None or _readable(add)):
            return self._dense(x, add)
        if x.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                "a model made sparse for the CPU is for inference only and gives no gradients; "
                "call it under torch.no_grad(), or differentiate the masked model"
            )
        if (now := self._versions()) != self._planned:
            if self._planned is not None:  # not the first call of a copy, which has the weights it was measured with
                self._forget()
            self._planned = now
        way = self._ways.get((x.shape, torch.get_num_threads()))
        return self._first(x, add) if way is None else way(x, add)

    def extra_repr(self) -> str:
        shape = "×".join(map(str, self.weight.shape))
        return f"{shape}, {int(self.weight.count_nonzero()):,} kept{', relu' if self.relu else ''}"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {
            "_ways": {},
            "_kept": None,
            "_planned": None,
        }  # plans hold addresses; a copy makes its own

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> SparseLayer:
        self._forget()
        super()._apply(fn, recurse)
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._forget()
        super()._load_from_state_dict(*args, **kwargs)

    def _versions(self) -> tuple[int, ...]:
        """Where weight and bias lie, and how often they were changed in place, as far as torch counts that."""
        parts = (self.weight,) if self.bias is None else (self.weight, self.bias)
        return tuple(n for p in parts for n in (p.data_ptr(), -1 if p.is_inference() else p._version))

    def _forget(self) -> None:
        """The weights change: what was planned and measured holds no more."""
        self._ways, self.choices, self._kept = {}, {}, None

    def _first(self, x: Tensor, add: Tensor | None) -> Tensor:
        """Choose a way for this shape and go it."""
        key = (x.shape, torch.get_num_threads())
        with _measuring, torch.no_grad():
            if key not in self._ways:
                ways, reason = self._all_ways(x)
                known = self.choices.get(key)  # a copy knows what was measured
                if known is None or known.chosen not in ways:
                    known = self._measured(ways, x, add, reason)
                self.choices[key], self._ways[key] = known, ways[known.chosen]
        return self._ways[key](x, add)

    def _all_ways(self, x: Tensor) -> tuple[dict[str, Way], str]:
        """Every way to compute inputs of this shape; and why there is no sparse one, where there is none."""
        ways: dict[str, Way] = {"dense": self._dense}
        shape = self._canonical(x)
        if shape is None:
            return ways, "the input has no pixels, or does not fit the layer"  # torch says which
        if self.spatial and self.geometry == Geometry():
            ways["matmul"] = self._matmul
        kernel = engine()
        if isinstance(kernel, str):
            return ways, kernel
        if self._kept is None:
            weight = self.weight.view(self.weight.shape[:2] + (1,) * (2 - self.spatial) + self.weight.shape[2:])
            self._kept = Kept.of(weight, self.bias, self.geometry)
        planned = Planned(self._kept, shape, torch.get_num_threads(), self.relu)
        ways["sparse"] = self._sparse(planned, kernel.barebones_run, x)
        if planned.in_place:
            planned = Planned(self._kept, shape, torch.get_num_threads(), self.relu, gather=True)
            ways["sparse, gathered"] = self._sparse(planned, kernel.barebones_run, x)
        return ways, ""

    def _measured(self, ways: dict[str, Way], x: Tensor, add: Tensor | None, reason: str) -> Choice:
        """The fastest way, by the least time of several rounds in which each has its turn."""
        kept, total = int(self.weight.count_nonzero()), self.weight.numel()
        about = (self.name, tuple(x.shape), torch.get_num_threads(), kept, total)
        if len(ways) == 1:
            return Choice(*about, next(iter(ways)), reason=reason)
        least = dict.fromkeys(ways, float("inf"))
        for way in ways.values():
            way(x, add)
        started = time.perf_counter()
        for repeat in range(REPEATS):
            for name, way in ways.items():
                before = time.perf_counter()
                way(x, add)
                least[name] = min(least[name], time.perf_counter() - before)
            if repeat and time.perf_counter() - started > SECONDS * len(ways):
                break
        microseconds = {name: 1e6 * seconds for name, seconds in least.items()}
        return Choice(*about, min(least, key=lambda name: least[name]), microseconds, reason)

    def _canonical(self, x: Tensor) -> tuple[int, int, int, int] | None:
        """The input as images of two dimensions; None where it does not fit."""
        if not self.spatial:
            shape = (x.shape[:-1].numel(), x.shape[-1], 1, 1) if x.dim() else (0, 0, 0, 0)
        else:
            if x.dim() not in (self.spatial + 1, self.spatial + 2):
                return None
            images = x.shape[0] if x.dim() == self.spatial + 2 else 1
            sides = x.shape[x.dim() - self.spatial :]
            shape = (images, x.shape[-self.spatial - 1], *((1,) * (2 - self.spatial)), *sides)
        channels = self.weight.shape[1] * self.geometry.groups
        fits = shape[1] == channels and min(shape) > 0 and min(self.geometry.output(*shape[2:])) > 0
        return shape if fits and len(self.weight) else None

    def _sparse(self, planned: Planned, run: Any, x: Tensor) -> Way:
        lead = x.shape[:-1] if not self.spatial else x.shape[: x.dim() - self.spatial - 1]
        output = (*lead, len(self.weight), *planned.output[4 - self.spatial :])
        threads = planned.threads

        def way(x: Tensor, add: Tensor | None) -> Tensor:
            if add is not None and add.shape != output:
                return self._dense(x, add)
            x, add = x.contiguous(), None if add is None else add.contiguous()
            y = x.new_empty(output)
            if run(planned.address, x.data_ptr(), y.data_ptr(), None if add is None else add.data_ptr(), threads):
                raise MemoryError("no memory is left for the sparse kernel")
            return y

        return way

    def _matmul(self, x: Tensor, add: Tensor | None) -> Tensor:
        weight, images = self.weight.flatten(1), x.flatten(-self.spatial)
        y = weight @ images if self.bias is None else _affine(self.bias[:, None], weight, images)
        return self._finish(y.view(*y.shape[:-1], *x.shape[x.dim() - self.spatial :]), add)

    def _dense(self, x: Tensor, add: Tensor | None) -> Tensor:
        if not self.spatial:
            return self._finish(F.linear(x, self.weight, self.bias), add)
        compute = F.conv1d if self.spatial == 1 else F.conv2d
        return self._finish(compute(x, self.weight, self.bias, *self.dense_options), add)

    def _finish(self, y: Tensor, add: Tensor | None) -> Tensor:
        y = y if add is None else y + add
        return y.relu() if self.relu else y


def replaceable(layer: nn.Module) -> bool:
    """Whether a sparse layer can stand for it: a known type, float32 on the CPU, padded with zeros, without hooks."""
    if type(layer) not in SPATIAL or getattr(layer, "padding_mode", "zeros") != "zeros":
        return False
    weight = layer._parameters.get("weight")
    hooked = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or "forward" in vars(layer)
    return weight is not None and _readable(weight.data) and not hooked


def _readable(x: Tensor) -> bool:
    """Whether the kernel can read it: a plain tensor of float32 in the memory of the CPU."""
    return type(x) is Tensor and x.dtype is torch.float32 and x.is_cpu and x.layout is torch.strided


def _watched() -> bool:
    """Whether somebody wants to see or to change the operations, and so shall see dense ones."""
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
        whole = [d * (k - 1) if layer.padding == "same" else 0 for k, d in zip(kernel, dilation, strict=True)]
        before, after = (whole[0] // 2, whole[1] // 2), (-(-whole[0] // 2), -(-whole[1] // 2))
    else:
        before = after = _pair(layer.padding, 0)
    return Geometry(kernel, stride, dilation, before, after, layer.groups)


def _pair(numbers: tuple[int, ...], missing: int) -> tuple[int, int]:
    first, second = numbers if len(numbers) == 2 else (missing, *numbers)
    return first, second


def _options(layer: nn.Linear | nn.Conv1d | nn.Conv2d) -> tuple[Any, ...]:
    return () if isinstance(layer, nn.Linear) else (layer.stride, layer.padding, layer.dilation, layer.groups)


def _affine(bias: Tensor, weight: Tensor, images: Tensor) -> Tensor:
    if images.dim() == 2:
        return torch.addmm(bias, weight, images)
    if images.shape[0] == 1:
        return torch.addmm(bias, weight, images[0])[None]
    return torch.baddbmm(bias, weight.expand(len(images), *weight.shape), images)
