"""Weight files: the weights and buffers of a network, sparse or dense; of pruned weights only what is kept."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..masks import Masks, size
from ..messages import shape_of, shortened
from ..running.precision import INTEGER
from ..scope import joined, layers, matched, refuse_sharded
from . import container
from .masks import fingerprint, pack, unpack

KIND, VERSION = "barebones-sparse", 1
MASK, VALUES, WHOLE = "mask ", "values ", "whole "  # the prefixes of tensor names; the parameter's name follows


class Weights(NamedTuple):
    """The content of a weight file: a state for `load_state_dict`, the masks, and what was stored about them."""

    state: dict[str, Tensor]
    masks: Masks
    about: dict[str, Any]

    def __repr__(self) -> str:
        return f"Weights({len(self.state)} tensors, {self.masks!r})"


def save_weights(model: nn.Module, masks: Mapping[str, Tensor], path: container.Path, **about: Any) -> None:
    """Save a network: the kept values of masked weights and their positions, and everything else unchanged.

    Everything else is the parameters without a mask and the buffers that `state_dict` holds. With `masks={}` this is
    the whole dense network. Tied tensors are stored once. A pruned weight counts as 0.0, whatever value it has in the
    model. `about` takes values that JSON can represent. The file is written atomically.

    >>> import os, tempfile
    >>> model = nn.Linear(1000, 100)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_weights(model, {"weight": torch.rand(100, 1000) > 0.99}, f"{folder}/weights", method="random")
    ...     dense_bytes(model) // os.path.getsize(f"{folder}/weights") > 50
    ...     load_weights(f"{folder}/weights", model).about["method"]
    True
    'random'
    >>> with tempfile.TemporaryDirectory() as folder:  # a dense network has no masks
    ...     save_weights(model, {}, f"{folder}/dense")
    ...     load_weights(f"{folder}/dense", nn.Linear(1000, 100)).masks
    Masks(0 layers, 0 of 0 weights kept)
    """
    refuse_sharded(model, "write all its weights", "use torch.distributed.checkpoint, and save_masks")
    masked = {name: (parameter.detach(), mask) for name, parameter, mask in matched(model, masks)}
    encoded, layout = pack({name: mask for name, (_, mask) in masked.items()})
    tensors = {MASK + name: data for name, data in encoded.items()}
    state, tied = _state_of(model)
    for name, tensor in state.items():
        if reason := _why_not(tensor):
            raise ValueError(f"{name} cannot be stored: {reason}")
        if name in masked:
            weight, mask = masked[name]
            tensors[VALUES + name] = _integers(weight)[mask].view(weight.dtype)
        else:  # a copy, since safetensors refuses tensors that share memory
            tensors[WHOLE + name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    total, kept = size(masks), sum(entry["kept"] for entry in layout.values())
    counts = {"sparsity": (total - kept) / max(total, 1), "prunable": total, "kept": kept}
    counts["fingerprint"] = fingerprint(state | {name: state[first] for name, first in tied.items()})
    container.write(path, tensors, KIND, VERSION, about | counts | {"layout": layout, "tied": tied})


def load_weights(path: container.Path, model: nn.Module | None = None) -> Weights:
    """Return what `save_weights` stored, bit for bit; with a model, also copy it into the model.

    The model's parameters and buffers must have the names, shapes and types of those in the file. Otherwise a
    `ValueError` says where they differ, and the model is not changed. The masks are on the model's devices.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_weights(nn.Linear(2, 2), {"weight": torch.eye(2) > 0}, f"{folder}/weights")
    ...     state, masks, about = load_weights(f"{folder}/weights")
    >>> int(state["weight"].count_nonzero()), sorted(state), masks["weight"].tolist(), about["sparsity"]
    (2, ['bias', 'weight'], [[True, False], [False, True]], 0.5)
    """
    if model is not None:
        refuse_sharded(model, "load a weight file into it", "load it before you shard the model")
    tensors, about = container.read(path, KIND, VERSION)
    layout, tied = about.pop("layout"), about.pop("tied")
    masks, state = unpack(_with_prefix(tensors, MASK), layout, path), _with_prefix(tensors, WHOLE)
    for name, mask in masks.items():
        values = tensors[VALUES + name]
        state[name] = torch.zeros(mask.shape, dtype=values.dtype, device="cpu")
        _integers(state[name])[mask] = _integers(values)
    state |= {name: state[first] for name, first in tied.items()}
    if model is None:
        return Weights(state, masks, about)
    named, ties = _state_of(model)
    expected = named | {name: named[first] for name, first in ties.items()}
    if differing := container.differences(state, expected, expected, _shape_and_type):
        raise ValueError(f"{path} does not match the model: {shortened(differing)}")
    if meta := [name for name, tensor in named.items() if tensor.is_meta]:
        raise ValueError(f"{shortened(meta)}: on the meta device; move the model with to_empty() before loading {path}")
    if shared := [name for name, tensor in named.items() if _is_expanded(tensor)]:
        raise ValueError(f"{shortened(shared)}: expanded; clone() it before loading {path}")
    with torch.no_grad():
        for name, tensor in named.items():
            tensor.copy_(state[name])
    return Weights(state, Masks({name: mask.to(named[name].device) for name, mask in masks.items()}), about)


def dense_bytes(model: nn.Module) -> int:
    """Return the bytes of all parameters and buffers of a `state_dict`, tied ones counted once.

    >>> dense_bytes(nn.BatchNorm1d(10))  # weight, bias, mean and variance, and a count of 8 bytes
    168
    """
    return sum(tensor.numel() * tensor.element_size() for tensor in _state_of(model)[0].values())


def _state_of(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of `state_dict` by canonical name, each once, and the first name of each tied tensor."""
    named: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    names: dict[int, str] = {}
    for path, module in layers(model, repeated=True):
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise ValueError(f"{path or 'the model'} has extra state, which a weight file cannot hold")
        buffers = {name: t for name, t in module._buffers.items() if name not in module._non_persistent_buffers_set}
        for last, tensor in (module._parameters | buffers).items():
            name = joined(path, last)
            if tensor is not None and (first := names.setdefault(id(tensor), name)) != name:
                tied[name] = first
            elif tensor is not None:
                named[name] = tensor
    return named, tied


def _with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _integers(tensor: Tensor) -> Tensor:
    return tensor.view(INTEGER[tensor.element_size()])


def _why_not(tensor: Tensor) -> str:
    """Say why a tensor cannot be stored; return an empty string if it can."""
    if tensor.is_meta:
        return "it is on the meta device and has no values"
    if tensor.layout != torch.strided or tensor.is_quantized:
        return f"its layout is {tensor.layout}, or it is quantized"
    return "it is complex" if tensor.is_complex() else ""


def _is_expanded(tensor: Tensor) -> bool:
    return tensor.numel() > 0 and any(
        stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def _shape_and_type(tensor: Tensor) -> str:
    return f"{shape_of(tensor)} of {str(tensor.dtype).removeprefix('torch.')}"
