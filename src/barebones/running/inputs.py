"""Inputs: what a model is called with, and the tensors in a batch or an output."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor


def call(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the (args, kwargs) of an example: one argument, a tuple of them, a dict by name, or a pair (args, kwargs).

    >>> call("x"), call(("x", "y")), call({"x": 1}), call((("x",), {"y": 1}))
    ((('x',), {}), (('x', 'y'), {}), ((), {'x': 1}), (('x',), {'y': 1}))
    """
    if isinstance(example, Mapping):
        return (), dict(example)
    if type(example) is not tuple:
        return (example,), {}
    if len(example) == 2 and isinstance(example[0], tuple | list) and isinstance(example[1], Mapping):
        return tuple(example[0]), dict(example[1])
    return example, {}


def mapped(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Return the batch with `change` applied to every leaf of its dicts, lists and tuples."""
    if isinstance(batch, dict):
        return {key: mapped(value, change) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(mapped(value, change) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(mapped(value, change) for value in batch)
    return change(batch)


def taken_apart(batch: Any) -> tuple[Any, list[Tensor]]:
    """Return a batch of None, and the tensors in it; `mapped` puts other tensors in their places."""
    leaves: list[Any] = []
    form = mapped(batch, leaves.append)
    if not all(isinstance(leaf, Tensor) for leaf in leaves):
        raise ValueError("a batch that holds other values than tensors cannot be captured; leave out capture=True")
    return form, leaves


def on_device(batch: Any, device: torch.device) -> Any:
    """Return the batch with its tensors, and whatever else has a method `to`, on the device."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.to(device, non_blocking=True)
        return leaf.to(device) if hasattr(leaf, "to") else leaf

    return mapped(batch, move)


def tensors(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors in a batch or an output: itself, or in tuples, lists, dicts and dataclasses."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        yield from tensors(list(tree.values()))
    elif is_dataclass(tree):
        yield from tensors([getattr(tree, part.name) for part in fields(tree)])
    elif isinstance(tree, list | tuple):
        for part in tree:
            yield from tensors(part)


def samples(batch: Any) -> int | None:
    """Return how many samples a batch has: the first size of all its tensors; None if they differ in it."""
    sizes = {t.shape[0] if t.dim() else None for t in tensors(batch)}
    return sizes.pop() if len(sizes) == 1 else None


def cut(batch: Any, start: int, stop: int) -> Any:
    """Return the samples of a batch from `start` to before `stop`.

    >>> cut((torch.arange(4), {"label": torch.arange(4)}), 1, 3)
    (tensor([1, 2]), {'label': tensor([1, 2])})
    """
    part = mapped(batch, lambda leaf: leaf[start:stop] if isinstance(leaf, Tensor) else leaf)
    if samples(batch) is None or samples(part) != stop - start:
        need = "its tensors must have the same first size and lie in dicts, lists or tuples"
        raise ValueError(f"this batch cannot be split into samples: {need}")
    return part


def first_sample(batch: Any) -> Any:
    """Return the batch cut to its first sample, or whole if its tensors differ in their first size."""
    if samples(batch) is None:
        return batch
    return mapped(batch, lambda leaf: leaf[:1].clone() if isinstance(leaf, Tensor) else leaf)
