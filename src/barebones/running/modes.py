"""Modes: the train flags, buffers and gradients of a model, changed for a while and then put back bit for bit."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import checkpoint

from .rng import own_generators


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Put the train flags, buffers, gradients (None inside) and random generators of a model back at the end.

    >>> model = nn.BatchNorm1d(2)
    >>> with restored(model):
    ...     _ = model.eval().train()(torch.randn(4, 2))
    >>> model.running_mean
    tensor([0., 0.])
    """
    modules = list(model.modules())
    flags = [module.training for module in modules]
    tables = [(module._buffers, dict(module._buffers)) for module in modules if module._buffers]
    put_back = _copied([buffer for _, buffers in tables for buffer in buffers.values() if buffer is not None])
    gradients = [(p, p.grad) for module in modules for p in module._parameters.values() if p is not None]
    try:
        for parameter, _ in gradients:
            parameter.grad = None  # a loss that calls backward() must not add to the caller's gradients
        with own_generators(modules):
            yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for module, flag in zip(modules, flags, strict=True):
            if module.training != flag:  # to set it takes longer
                module.training = flag
        for table, buffers in tables:
            if list(map(id, table.values())) != list(map(id, buffers.values())):
                table.clear()
                table.update(buffers)
        put_back()


def _copied(tensors: Sequence[Tensor]) -> Callable[[], None]:
    """Copy the values of some tensors, and return a function that writes them back; on a GPU with few launches."""
    groups = by_kind(_once(tensor) for tensor in tensors if tensor.layout == torch.strided)
    copies = [(group, [torch.empty_like(tensor) for tensor in group]) for group in groups]
    sparse = [(tensor, tensor.clone()) for tensor in tensors if tensor.layout != torch.strided]
    for group, values in copies:
        torch._foreach_copy_(values, group)

    def put_back() -> None:
        for group, values in copies:
            torch._foreach_copy_(group, values)
        for tensor, value in sparse:
            tensor.copy_(value)

    return put_back


def _once(tensor: Tensor) -> Tensor:
    """Return a view that has each value of an expanded tensor once, because torch refuses to write it repeatedly."""
    return tensor.data[tuple(slice(1 if stride == 0 else None) for stride in tensor.stride())]


@contextmanager
def trainable(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Let frozen parameters have gradients for a while."""
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    try:
        for parameter in frozen:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


@contextmanager
def uncheckpointed() -> Iterator[None]:
    """Run what `torch.utils.checkpoint` wraps with `use_reentrant=True` as plain calls.

    `torch.autograd.grad` refuses such checkpoints or, if none of their inputs needs a gradient, sees constants in them.
    """
    original = checkpoint.CheckpointFunction
    try:
        checkpoint.CheckpointFunction = _PlainCall  # type: ignore[misc,assignment]
        yield
    finally:
        checkpoint.CheckpointFunction = original  # type: ignore[misc]


class _PlainCall:
    @staticmethod
    def apply(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        return function(*args)


def batch_norms(model: nn.Module) -> dict[str, nn.Module]:
    """Return the batch-norms that normalize with the statistics of the batch, in their present modes.

    >>> list(batch_norms(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))))
    ['1']
    """
    norms = {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
    return {name: norm for name, norm in norms.items() if norm.training or norm.running_mean is None}


def uncompiled(model: nn.Module) -> AbstractContextManager[Any]:
    """Run a compiled model without its compiled code, which has no second derivatives."""
    compiled = any(type(m).__name__ == "OptimizedModule" or m._compiled_call_impl for m in model.modules())
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


def by_kind(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    groups: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(groups.values())
