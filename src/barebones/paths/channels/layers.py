"""Rules for layers and for matrix products.

A layer reads the channels of its input and writes channels of its own. A product of activations keeps the channels of
rows and columns, and fixes those that it sums over.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ..calls import Call
from .labels import Labels, couple_parts, mixed, plain, varies

CONVOLUTIONS, NORMS = nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase


def linear(labels: Labels, call: Call) -> Tensor:
    """Where other dimensions than the last hold channels, these pass through."""
    arguments = call.named("input", "weight")
    layer = labels.layer(nn.Linear, arguments["weight"])
    if layer is None:
        return mixed(labels, call)
    x = arguments["input"]
    groups, (name, module) = labels.of(x), layer
    outputs = labels.slot(name, module, "out", module.out_features)
    if groups is not None and not varies(groups, -1) and any(varies(groups, d) for d in range(groups.dim() - 1)):
        labels.fix(outputs.numbers)
        return labels.numbered(groups.amax(-1, keepdim=True).expand(*x.shape[:-1], outputs.size))
    labels.read(groups, labels.slot(name, module, "in", module.in_features), -1)
    labels.written.append(outputs.numbers)
    return labels.numbered(outputs.numbers.expand(*x.shape[:-1], -1))


def convolution(labels: Labels, call: Call) -> Tensor:
    arguments = call.named("input", "weight")
    layer = labels.layer(CONVOLUTIONS, arguments["weight"])
    if layer is None or (layer[1].transposed and layer[1].groups > 1):
        return mixed(labels, call)
    x, (name, module) = arguments["input"], layer
    dim, shape = x.dim() - len(module.kernel_size) - 1, plain(call).shape
    depthwise = module.groups == module.in_channels == module.out_channels > 1
    inputs = labels.slot(name, module, "both" if depthwise else "in", module.in_channels)
    outputs = inputs if depthwise else labels.slot(name, module, "out", module.out_channels)
    labels.read(labels.of(x), inputs, dim)
    for slot in (inputs, outputs) if labels.even and not depthwise else ():
        couple_parts(labels, slot.numbers, 0, slot.size // module.groups)
    labels.written.append(outputs.numbers)
    return labels.numbered(outputs.numbers.view(-1, *[1] * (len(shape) - dim - 1)).expand(shape))


def embedding(labels: Labels, call: Call) -> Tensor:
    arguments = call.named("input", "weight")
    layer = labels.layer(nn.Embedding, arguments["weight"])
    if layer is None:
        return mixed(labels, call)
    outputs = labels.slot(*layer, "out", layer[1].embedding_dim)
    labels.written.append(outputs.numbers)
    return labels.numbered(outputs.numbers.expand(*arguments["input"].shape, -1))


def channel_norm(labels: Labels, call: Call) -> Tensor:
    """Batch-norm and instance-norm treat each channel by itself, and have values for each."""
    arguments = call.named("input", "running_mean", "running_var", "weight", "bias")
    layer = labels.layer(NORMS, arguments.get("weight"))
    if layer is None:
        return mixed(labels, call)
    return _per_channel(labels, call.args[0] if call.args else arguments["input"], layer)


def prelu(labels: Labels, call: Call) -> Tensor:
    arguments = call.named("input", "weight")
    layer = labels.layer(nn.PReLU, arguments["weight"])
    if arguments["weight"].numel() == 1:
        return labels.numbered(labels.groups_of(arguments["input"]))
    return mixed(labels, call) if layer is None else _per_channel(labels, arguments["input"], layer)


def _per_channel(labels: Labels, x: Tensor, layer: tuple[str, Any]) -> Tensor:
    dim = min(1, x.dim() - 1)
    slot = labels.slot(*layer, "both", x.shape[dim])
    labels.read(labels.of(x), slot, dim)
    return labels.numbered(slot.numbers.view(-1, *[1] * (x.dim() - dim - 1)).expand(x.shape))


def product(labels: Labels, call: Call) -> Tensor:
    """Matrix products of activations, perhaps plus a first argument: rows and columns stay apart, and sums fix."""
    *start, a, b = call.tensors
    if call.name == "rmatmul":
        a, b = b, a
    if a.dim() < 2 or b.dim() < 2:
        return mixed(labels, call)
    joined = labels.join(_summed(labels, a, -1), _summed(labels, b, -2))
    return labels.numbered(labels.join(joined, *map(labels.shape_or_groups, start)))


def einsum(labels: Labels, call: Call) -> Tensor:
    equation, *operands = call.args
    operands = list(operands[0]) if isinstance(operands[0], list | tuple) else operands
    if not isinstance(equation, str) or "..." in equation or "->" not in equation:
        return mixed(labels, call)
    inputs, output = equation.replace(" ", "").split("->")
    known: list[Any] = []
    for letters, operand in zip(inputs.split(","), operands, strict=True):
        if len(set(letters)) < len(letters):
            return mixed(labels, call)
        summed = [d for d, letter in enumerate(letters) if letter not in output]
        one = _summed(labels, operand, *summed)
        order = [letters.index(letter) for letter in output if letter in letters]
        if isinstance(one, tuple):
            sizes = iter([one[d] for d in order])
            known.append(tuple(next(sizes) if letter in letters else 1 for letter in output))
        else:
            moved = one.permute(*order, *summed).flatten(len(order)) if summed else one.permute(order)
            moved = moved[..., 0] if summed else moved
            known.append(moved[tuple(slice(None) if letter in letters else None for letter in output)])
    return labels.numbered(labels.join(*known))


def attention(labels: Labels, call: Call) -> Tensor:
    """Scaled dot-product attention: heads are channels, if their channels can only be removed together."""
    arguments = call.named("query", "key", "value", "attn_mask")
    if arguments.get("enable_gqa"):
        return mixed(labels, call)
    q, k = (_summed(labels, arguments[name], -1) for name in ("query", "key"))
    k, v = (_summed(labels, t, -2) for t in (k, arguments["value"]))
    mask = arguments.get("attn_mask")
    known = [q, k, v] if mask is None else [q, k, v, _summed(labels, mask, -1)]
    return labels.numbered(labels.join(*known))


def _summed(labels: Labels, value: Any, *dims: int) -> Any:
    """Return the groups of an operand that a product sums over some dimensions, or its shape if it has none left."""
    groups = value if isinstance(value, tuple) or value.dtype == torch.long else labels.shape_or_groups(value)
    if isinstance(groups, tuple):
        sizes = list(groups)
        for d in dims:
            sizes[d] = 1
        return tuple(sizes)
    if not dims:
        return groups
    one = groups.amax(dims, keepdim=True)
    if not any(varies(groups, d) for d in dims):
        return one
    labels.fix(groups)
    return tuple(one.shape)
