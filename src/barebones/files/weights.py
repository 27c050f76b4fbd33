"""Weight files: a sparse network in few bytes. Of a masked weight only what is kept, and all else as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..masks import Masks, size
from ..scope import bare, matched
from . import container as files
from .masks import SHOWN, pack, unpack

KIND, VERSION = "barebones-sparse", 1
MASK, VALUES, WHOLE = "mask ", "values ", "whole "  # what a tensor's name begins with; its parameter's name follows
INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes; moves floats bit for bit


class Weights(NamedTuple):
    """What a weight file holds: a state for `load_state_dict`, the masks, and what was said about them."""

    state: dict[str, Tensor]
    masks: Masks
    about: dict[str, Any]


def save_weights(model: nn.Module, masks: Mapping[str, Tensor], path: files.Path, **about: Any) -> None:
    """Save a masked network: the kept values of masked weights and where they lie, and all else as it is.

    All else are the parameters without a mask and the buffers that `state_dict` holds; tied tensors are stored once.
    A pruned weight is 0.0 by definition, whatever value it has in the model, which is left untouched. Positions are
    encoded as in a mask file. `about` is whatever JSON can hold. The file appears whole or not at all.

    >>> import os, tempfile
    >>> model = nn.Linear(1000, 100)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_weights(model, {"weight": torch.rand(100, 1000) > 0.99}, f"{folder}/weights", method="random")
    ...     dense_bytes(model) // os.path.getsize(f"{folder}/weights") > 50
    ...     load_weights(f"{folder}/weights", model).about["method"]
    True
    'random'
    """
    fitted = {name: (parameter.detach(), mask) for name, parameter, mask in matched(model, masks)}
    bits, layout = pack({name: mask for name, (_, mask) in fitted.items()})
    tensors = {MASK + name: data for name, data in bits.items()}
    named, tied = _named(model)
    for name, tensor in named.items():
        if trouble := _unfit(tensor):
            raise ValueError(f"{name} cannot be stored: {trouble}")
        if name in fitted:
            weight, mask = fitted[name]
            tensors[VALUES + name] = _bits(weight)[mask].view(weight.dtype)
        else:  # a copy, since safetensors refuses tensors that share memory
            tensors[WHOLE + name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    total, kept = size(masks), sum(entry["kept"] for entry in layout.values())
    own = {"sparsity": (total - kept) / max(total, 1), "prunable": total, "kept": kept, "layout": layout, "tied": tied}
    files.write(path, tensors, KIND, VERSION, about | own)


def load_weights(path: files.Path, model: nn.Module | None = None) -> Weights:
    """What `save_weights` stored, bit for bit; with a model, put into it as well, and the masks on its devices.

    The model's parameters and buffers must be those of the file by name, shape and dtype: else a `ValueError` says
    where they differ, and nothing is changed. Memory formats are the model's own.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_weights(nn.Linear(2, 2), {"weight": torch.eye(2) > 0}, f"{folder}/weights")
    ...     state, masks, about = load_weights(f"{folder}/weights")
    >>> int(state["weight"].count_nonzero()), sorted(state), masks["weight"].tolist(), about["sparsity"]
    (2, ['bias', 'weight'], [[True, False], [False, True]], 0.5)
    """
    tensors, about = files.read(path, KIND, VERSION)
    try:
        bits = {name.removeprefix(MASK): data for name, data in tensors.items() if name.startswith(MASK)}
        masks = unpack(bits, about.pop("layout", None))
        state = _state(tensors, masks, about.pop("tied", None))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if model is None:
        return Weights(state, masks, about)
    named, tied = _named(model)
    if differing := list(_mismatches(state, named | {name: named[first] for name, first in tied.items()})):
        more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
        raise ValueError(f"{path} does not match the model: {', '.join(differing[:SHOWN])}{more}")
    with torch.no_grad():
        for name, tensor in named.items():
            tensor.copy_(state[name])
    return Weights(state, Masks({name: mask.to(named[name].device) for name, mask in masks.items()}), about)


def dense_bytes(model: nn.Module) -> int:
    """Of the parameters and buffers that a checkpoint holds, tied ones once.

    >>> dense_bytes(nn.BatchNorm1d(10))  # weight, bias, mean and variance, and a count of 8 bytes
    168
    """
    return sum(tensor.numel() * tensor.element_size() for tensor in _named(model)[0].values())


def _named(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """What `state_dict` holds, by canonical name and each tensor once; and of every other name of one, its first."""

    def walk(module: nn.Module, path: str) -> Iterator[tuple[str, Tensor]]:
        module = bare(module)
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise ValueError(f"{path.rstrip('.') or 'the model'} has extra state, which a weight file cannot hold")
        kept = {name: t for name, t in module._buffers.items() if name not in module._non_persistent_buffers_set}
        for name, tensor in {**module._parameters, **kept}.items():
            if tensor is not None:
                yield path + name, tensor
        for name, child in module._modules.items():
            if child is not None:
                yield from walk(child, f"{path}{name}.")

    named: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    first: dict[int, str] = {}
    for name, tensor in walk(model, ""):
        if (known := first.setdefault(id(tensor), name)) == name:
            named[name] = tensor
        else:
            tied[name] = known
    return named, tied


def _state(tensors: Mapping[str, Tensor], masks: Masks, tied: Any) -> dict[str, Tensor]:
    state = {name.removeprefix(WHOLE): tensor for name, tensor in tensors.items() if name.startswith(WHOLE)}
    for name, mask in masks.items():
        values = tensors.get(VALUES + name)
        if values is None or values.dim() != 1 or values.numel() != mask.count_nonzero() or name in state:
            raise ValueError(f"the values of {name} are damaged: they are not those that its mask keeps")
        weight = torch.zeros(mask.shape, dtype=values.dtype, device="cpu")
        _bits(weight)[mask] = _bits(values)
        state[name] = weight
    if not isinstance(tied, dict) or not all(first in state for first in tied.values()):
        raise ValueError("it does not say which of its weights are tied")
    return state | {name: state[first] for name, first in tied.items()}


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(INTEGER[tensor.element_size()])


def _unfit(tensor: Tensor) -> str:
    """Why a tensor cannot be stored; empty where it can."""
    if tensor.is_meta:
        return "it is on the meta device and has no values"
    if tensor.layout != torch.strided or tensor.is_quantized:
        return f"its layout is {tensor.layout}, or it is quantized"
    return "it is of complex numbers" if tensor.is_complex() else ""


def _mismatches(state: Mapping[str, Tensor], named: Mapping[str, Tensor]) -> Iterator[str]:
    for name in [*named, *(name for name in state if name not in named)]:
        if name not in state or name not in named:
            yield f"{name} (not in the {'file' if name in named else 'model'})"
        elif (there := _form(state[name])) != (here := _form(named[name])):
            yield f"{name} ({there} in the file, {here} in the model)"


def _form(tensor: Tensor) -> str:
    return f"{'×'.join(map(str, tensor.shape)) or 'a scalar'} of {str(tensor.dtype).removeprefix('torch.')}"
