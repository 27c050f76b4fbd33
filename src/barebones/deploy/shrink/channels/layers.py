"""Rules for layers: each reads the channels of its input and writes channels of its own."""

from typing import Any

from torch import Tensor, nn

from ....paths.calls import Call
from .labels import Labels, mixed, plain, varies

CONVOLUTIONS, NORMS = nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase


def linear(labels: Labels, call: Call) -> Tensor:
    """Linear layers; where other dimensions than the last hold channels, these pass through."""
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
    labels.write(outputs)
    return labels.numbered(outputs.numbers.expand(*x.shape[:-1], -1))


def convolution(labels: Labels, call: Call) -> Tensor:
    """Convolutions, also depthwise, grouped and transposed ones."""
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
    labels.write(outputs)
    return labels.numbered(outputs.numbers.view(-1, *[1] * (len(shape) - dim - 1)).expand(shape))


def embedding(labels: Labels, call: Call) -> Tensor:
    """Embeddings write the columns of their table."""
    arguments = call.named("input", "weight")
    layer = labels.layer(nn.Embedding, arguments["weight"])
    if layer is None:
        return mixed(labels, call)
    outputs = labels.slot(*layer, "out", layer[1].embedding_dim)
    labels.write(outputs)
    return labels.numbered(outputs.numbers.expand(*arguments["input"].shape, -1))


def channel_norm(labels: Labels, call: Call) -> Tensor:
    """Batch-norm and instance-norm treat each channel by itself, and have values for each."""
    arguments = call.named("input", "running_mean", "running_var", "weight", "bias")
    layer = labels.layer(NORMS, arguments.get("weight"))
    if layer is None:
        return mixed(labels, call)
    return _per_channel(labels, call.args[0] if call.args else arguments["input"], layer)


def prelu(labels: Labels, call: Call) -> Tensor:
    """PReLU has one slope, or one for each channel."""
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
