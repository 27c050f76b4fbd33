"""Gradients: the loss of a model on one batch, and its derivatives with respect to the prunable weights."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from ..gpu.graphs import Captured
from ..messages import first_line
from ..running.backward import guarded, nodes
from ..running.inputs import cut, first_sample, mapped, samples, taken_apart, tensors
from ..running.modes import restored
from ..running.precision import autocast, widest
from ..running.shards import is_sharded, local

Loss = Callable[[Any, Any], Tensor]
Objective = Callable[[nn.Module, Any], Tensor]

LOSSES: dict[str, Loss] = {
    "cross-entropy": F.cross_entropy,
    "nll-on-logits": F.nll_loss,  # what the paper's own code applies to raw outputs; kept to reproduce it
}


@dataclass(eq=False, repr=False)
class Gradients:
    """Differentiates the loss of one batch at the model's present weights; a temperature divides its output first.

    There are three ways: `plain`, `captured` (a CUDA graph), and `with_graph` followed by `product` for second
    derivatives.
    """

    model: nn.Module
    parameters: list[nn.Parameter]
    loss: Loss
    objective: Objective | None
    precision: str
    example: Any  # what the model is called with, an input or (args, kwargs); noted at the first call if it is None

    def __post_init__(self) -> None:
        self._is_sharded = is_sharded(self.parameters[0])
        self._graphs: dict[Any, Captured] = {}  # by the form of a batch and the temperature
        self._foreign: set[int] = set()  # addresses of memory that belongs to somebody else

    def plain(self, batch: Any, temperature: float) -> tuple[Tensor, list[Tensor]]:
        """Return the loss and its gradients, in memory of their own."""
        value = self.value(batch, temperature)
        with guarded([value]):
            if self._is_sharded:
                gradients = self._after_backward(value)
            else:
                gradients = torch.autograd.grad(value, self.parameters, allow_unused=True)
        found = self._checked(gradients)
        return value.detach().to(widest(value.device)), found if self._is_sharded else _unshared(found, self._foreign)

    def captured(self, batch: Any, temperature: float) -> tuple[Tensor, list[Tensor]]:
        """Return the same from a CUDA graph. The next replay overwrites it."""
        form, leaves = taken_apart(batch)
        this = weakref.proxy(self)  # without a cycle, the graphs are freed with the last reference to this object

        def compute(*leaves: Tensor) -> tuple[Tensor, list[Tensor]]:
            remaining = iter(leaves)
            return this.plain(mapped(form, lambda _: next(remaining)), temperature)

        return self._graphs.setdefault((repr(form), temperature), Captured(compute, eager=1))(*leaves)

    def with_graph(self, value: Tensor) -> list[Tensor]:
        """Return gradients of a loss that can be differentiated again."""
        with self._twice(value):
            gradients = torch.autograd.grad(value, self.parameters, create_graph=True, allow_unused=True)
        return self._checked(gradients)

    def product(self, gradients: list[Tensor], vector: list[Tensor]) -> list[Tensor]:
        """Return the product of the Hessian with a vector, from gradients of `with_graph`."""
        pairs = [(g, v) for g, v in zip(gradients, vector, strict=True) if g.requires_grad]  # others are constant
        if not pairs:
            return self.zeros()
        outputs, vectors = [g for g, _ in pairs], [v for _, v in pairs]
        with self._twice(), guarded(outputs):
            if any(node.name() == "torch::autograd::Error" for node in nodes(outputs)):  # `grad` would walk around it
                raise RuntimeError("it is marked with once_differentiable")
            products = torch.autograd.grad(outputs, self.parameters, vectors, allow_unused=True)
        return _unshared(self._filled(products), self._foreign)

    def check_mean(self, batch: Any, parts: list[Any]) -> None:
        """Raise a `ValueError` if the loss of a batch has other gradients at the outputs than the mean of its parts.

        The outputs are those of the first part, repeated. An objective of the user's own is not checked.
        """
        if self.objective is not None or not _is_pair(batch):
            return
        sizes = [samples(part) or 0 for part in parts]
        first, count, ends = sizes[0], sum(sizes), accumulate(sizes, initial=0)
        with torch.no_grad(), restored(self.model):
            outputs = self.model(parts[0][0])
        found = [t for t in tree_leaves(outputs) if isinstance(t, Tensor)]
        leave_out = "or leave out micro_batch= and shared=True"
        if not found or any(t.dim() == 0 or len(t) % first for t in found):
            raise ValueError(f"the model's outputs cannot be split into samples; pass an objective=, {leave_out}")

        def repeated(t: Tensor) -> Tensor:
            rows = torch.arange(len(t) // first * count, device=t.device) % len(t)
            return t[rows].requires_grad_(t.is_floating_point())

        def loss(start: int, stop: int) -> Tensor:
            here = tree_map_only(Tensor, lambda t: t[len(t) * start // count : len(t) * stop // count].clone(), outputs)
            return self.loss(here, cut(batch, start, stop)[1])

        outputs = tree_map_only(Tensor, repeated, outputs)
        leaves = [t for t in tree_leaves(outputs) if isinstance(t, Tensor) and t.requires_grad]
        whole = loss(0, count)
        if not _is_scalar(whole) or not whole.requires_grad:
            return
        mean = torch.stack([loss(a, b).reshape(()) * ((b - a) / count) for a, b in pairwise(ends)]).sum()
        flows = (torch.autograd.grad(v, leaves, allow_unused=True, materialize_grads=True) for v in (whole, mean))
        for expected, flow in zip(*flows, strict=True):
            limit = max(1e-5, 4 * torch.finfo(flow.dtype).eps) * expected.abs().max()
            if limit.isfinite() and not (expected - flow).abs().max() <= limit:
                raise ValueError(
                    "the loss is no mean over the samples (has it class weights, ignored targets or a sum?); use "
                    f"another one, an objective= that divides by a fixed number, {leave_out}"
                )

    def zeros(self) -> list[Tensor]:
        return self._filled((None,) * len(self.parameters))

    def value(self, batch: Any, temperature: float) -> Tensor:
        """Return the loss of a batch: a scalar that can be differentiated."""
        batch = mapped(batch, lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf)  # a model may change it
        others = (*tensors(batch), *(() if self._is_sharded else self.model.parameters()), *self.model.buffers())
        self._foreign = {t.untyped_storage().data_ptr() for t in others if t.layout == torch.strided and t.data_ptr()}
        # Without a cache, which within another autocast would hold weights of earlier masks.
        with autocast(self.precision, self.parameters[0].device, cache=False), self._hooked(temperature):
            if self.objective is not None:
                value = self.objective(self.model, batch)
            else:
                if not _is_pair(batch):
                    cure = "pass a list of pairs such as [(x, y)], or objective=lambda model, batch: ..."
                    raise ValueError(f"a batch is a pair (input, target), not a {type(batch).__name__}; {cure}")
                value = self.loss(self.model(batch[0]), batch[1])
        if not _is_scalar(value):
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            hint = "return it without .item()" if isinstance(value, float) else "reduce it with mean() or sum()"
            raise ValueError(f"the loss must be a scalar tensor, not {shape}; {hint}")
        if not value.requires_grad:
            raise ValueError("the loss does not depend on the weights: it carries no gradient (detached, or no_grad?)")
        return value.reshape(())

    @contextmanager
    def _twice(self, value: Tensor | None = None) -> Iterator[None]:
        """Say that a function has no second derivative; torch's error names it. The first one of `value` must exist."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if value is not None:
                torch.autograd.grad(value, self.parameters, allow_unused=True)
            where = f"a function of {type(self.model).__name__} ({first_line(error)})"
            reason = f"this method needs second derivatives, and torch has none for {where}"
            raise ValueError(f"{reason}; use a method that needs only first ones, such as snip or force") from error

    def _after_backward(self, value: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the local rows; FSDP2 leaves them in `.grad` only, already averaged."""
        value.backward()
        gradients = tuple(None if p.grad is None else local(p.grad) for p in self.parameters)
        for parameter in self.model.parameters():
            parameter.grad = None  # the probe puts the caller's back
        return gradients

    def _checked(self, gradients: tuple[Tensor | None, ...]) -> list[Tensor]:
        if all(gradient is None for gradient in gradients):
            raise ValueError("the loss does not depend on any prunable weight; check scope= and the objective")
        return self._filled(gradients)

    def _filled(self, gradients: tuple[Tensor | None, ...]) -> list[Tensor]:
        """Return the gradients as at least float32, with zeros for weights that were not used."""
        return [
            torch.zeros_like(local(p), dtype=_at_least_float(p)) if g is None else g.to(_at_least_float(p))
            for g, p in zip(gradients, self.parameters, strict=True)
        ]

    @contextmanager
    def _hooked(self, temperature: float) -> Iterator[None]:
        """Note what the model is called with, the first time; divide its output, if a tensor, by the temperature."""

        def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self.example is None:
                self.example = first_sample((args, kwargs))

        def divide(_: nn.Module, __: Any, output: Any) -> Any:
            return output / temperature if isinstance(output, Tensor) else output

        with ExitStack() as hooks:
            if self.example is None:
                hooks.enter_context(self.model.register_forward_pre_hook(note, with_kwargs=True))
            if temperature != 1.0:
                hooks.enter_context(self.model.register_forward_hook(divide))
            yield


def added(total: list[Tensor], more: list[Tensor]) -> list[Tensor]:
    """Add tensors to others in place; an empty list counts as zeros."""
    return [a.add_(b) for a, b in zip(total, more, strict=True)] if total else more


def _is_pair(batch: Any) -> bool:
    return isinstance(batch, list | tuple) and len(batch) == 2


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Tensor) and value.numel() == 1


def _at_least_float(parameter: Tensor) -> torch.dtype:
    return torch.promote_types(parameter.dtype, torch.float32)


def _unshared(gradients: list[Tensor], foreign: set[int]) -> list[Tensor]:
    """Return tensors that may be changed in place, copied only where needed.

    Autograd may return one tensor for two weights that are added, a part of it, an expanded one, or one that a function
    saved.
    """
    in_use = set(foreign)
    unshared = []
    for gradient in gradients:
        if gradient.untyped_storage().data_ptr() in in_use or 0 in gradient.stride():
            gradient = gradient.clone(memory_format=torch.contiguous_format)
        in_use.add(gradient.untyped_storage().data_ptr())
        unshared.append(gradient)
    return unshared
