"""Flags: buffers that Python code reads, as in an `if`. With another value of one, a network may do something else."""

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ...paths.bits import PEEKS
from ...running.inputs import tensors
from .comparison import Comparison, copy_sharing_parameters


class _Reads(TorchFunctionMode):
    """Notes the buffers whose values Python code reads, directly or from what is computed of buffers alone."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        layers = tuple(path for path, module in network.named_modules() if type(module).__module__.startswith("torch."))
        named = [(n, b) for n, b in network.named_buffers() if n.rpartition(".")[0] not in layers]  # not of batch-norms
        self.known = {id(buffer): (buffer, {name}) for name, buffer in named}  # with each tensor, which keeps its id
        self.read: set[str] = set()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        sources = [self.known.get(id(tensor)) for tensor in tensors((args, kwargs))]
        names = set().union(*(names for _, names in filter(None, sources))) if all(sources) else set()
        if names and isinstance(result, Tensor):
            self.known[id(result)] = result, names
        elif names and function.__name__.strip("_") in PEEKS:
            self.read |= names
        return result


def flags(model: nn.Module, comparison: Comparison) -> tuple[dict[str, Comparison], str]:
    """Return a comparison for the other value of each flag that is read, and which buffers have values beyond that.

    A flag is a buffer with a single value, which is true, false, 0 or 1.
    """
    network = copy_sharing_parameters(model)
    with _Reads(network) as reads:
        for train in dict.fromkeys(comparison.modes):
            comparison.run(network.train(train), comparison.inputs[1])
    found, others = {}, []
    for name in sorted(reads.read):
        buffer, other = model.get_buffer(name), None
        if buffer.numel() == 1 and not buffer.is_floating_point() and buffer.item() in (0, 1):
            with suppress(Exception):  # it may not run with the other value
                other = Comparison.for_network(flipped(model, name), comparison.inputs[0])
        if other is not None and other.repeats:
            found[name] = other
        if other is None or other.unchecked or buffer.dtype != torch.bool:
            others.append(name)
    return found, f"with other values of {', '.join(others)}, which Python code reads" if others else ""


def flipped(network: nn.Module, flag: str) -> nn.Module:
    """Return a copy that shares the network's parameters, with the other value of a flag."""
    copy = copy_sharing_parameters(network)
    copy.get_buffer(flag).copy_(copy.get_buffer(flag) == 0)
    return copy
