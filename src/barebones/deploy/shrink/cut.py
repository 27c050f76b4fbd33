"""Cutting: remove channels from layers, and record where each remaining value was in the large network.

A network is cut in three steps. `numbered` makes a copy whose tensors hold the index of each value instead of the
value. `cut` removes channels from it. `fill` then replaces the remaining indices by the values at these indices. With
the indices, `scatter` can also write the values of the small network back into the large one.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...masks import Masks
from ...paths.coupling import dimension
from ...scope import layers, parameters

RemovedChannels = dict[tuple[str, str], Tensor]  # (layer, side) -> one bool per channel


def without(
    model: nn.Module, removed: RemovedChannels, added: Mapping[str, Tensor]
) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return a copy without these channels, with `added` in its biases (by layer), and where its values come from."""
    small = numbered(model, added)
    cut(small, removed)
    names = {id(module): f"{path}.bias".lstrip(".") for path, module in layers(model)}
    targets: dict[str, Any] = {layer: model.get_submodule(layer) for layer in added}
    biases = {names[id(module)]: added[layer].to(module.weight.device) for layer, module in targets.items()}
    return small, fill(small, model, biases)


def numbered(model: nn.Module, new_biases: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy in which every float parameter and buffer holds the indices of its own values, row by row.

    The layers named in `new_biases` get a bias if they have none.
    """
    indices: dict[int, Any] = {}  # by the id of a tensor: deepcopy uses these instead of a copy
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point() and tensor.layout == torch.strided:
            index = torch.arange(tensor.numel(), dtype=torch.double, device="cpu").view(tensor.shape)
            indices[id(tensor)] = nn.Parameter(index) if isinstance(tensor, nn.Parameter) else index
    copy = deepcopy(model, indices)
    for name, values in new_biases.items():
        layer = copy.get_submodule(name)
        if layer.bias is None:
            layer.bias = nn.Parameter(torch.arange(values.numel(), dtype=torch.double, device="cpu"))
    return copy


def cut(model: nn.Module, removed: RemovedChannels) -> None:
    """Remove channels from a numbered model; a layer that is left with no input or output becomes a `Blank`."""
    modules = dict(model.named_modules())
    for name in dict.fromkeys(name for name, _ in removed):
        sides = {side: mask for (layer, side), mask in removed.items() if layer == name and mask.any()}
        if not sides:
            continue
        if name not in modules:
            _cut_parameter(model, name, sides["both"])
        elif any(bool(mask.all()) for mask in sides.values()):
            _replace_by_blank(model, modules[name], sides)
        elif getattr(modules[name], "groups", 1) > 1 and "both" not in sides:
            _cut_grouped(modules[name], sides)
        else:
            for side, mask in sides.items():
                _cut_layer(modules[name], side, (~mask).nonzero().flatten())


# The attributes in which layers store their widths: of inputs, and of outputs.
WIDTHS = {
    "in": ("in_features", "in_channels"),
    "out": ("out_features", "out_channels", "embedding_dim"),
    "both": ("num_features", "num_parameters", "in_channels", "out_channels", "groups"),
}


def _cut_layer(layer: Any, side: str, kept: Tensor) -> None:
    inputs_first = getattr(layer, "transposed", False)
    dim = int((side == "in") != inputs_first) if side != "both" else 0
    if isinstance(layer, nn.Embedding):
        dim = 1
    if layer.weight is not None:
        layer.weight = nn.Parameter(layer.weight.data.index_select(dim, kept))
    if side != "in":
        for name in ("bias", "running_mean", "running_var"):
            values = getattr(layer, name, None)
            if values is not None:
                fewer = values.data.index_select(0, kept)
                setattr(layer, name, nn.Parameter(fewer) if isinstance(values, nn.Parameter) else fewer)
    for name in WIDTHS[side]:
        if hasattr(layer, name):
            setattr(layer, name, len(kept))


def _replace_by_blank(model: nn.Module, layer: Any, sides: Mapping[str, Tensor]) -> None:
    replacement: nn.Module
    if "both" in sides:  # no channel is left, but a convolution still changes the size of its input
        replacement = Blank(layer, 0, None) if isinstance(layer, nn.modules.conv._ConvNd) else nn.Identity()
    else:
        kept = ~sides["out"] if "out" in sides else None
        width = getattr(layer, "out_channels", None) or layer.out_features
        bias = layer.bias
        if bias is not None and kept is not None:
            bias = nn.Parameter(bias.data[kept]) if kept.any() else None
        replacement = Blank(layer, width if kept is None else int(kept.sum()), bias)
    replacement.training = layer.training
    for module in list(model.modules()):  # the layer may be used, and named, more than once
        for last, child in module._modules.items():
            if child is layer:
                module._modules[last] = replacement


def _cut_parameter(model: nn.Module, name: str, mask: Tensor) -> None:
    owner, _, last = name.rpartition(".")
    module = model.get_submodule(owner)
    parameter = module._parameters[last]
    assert parameter is not None
    kept = (~mask).nonzero().flatten()
    module._parameters[last] = nn.Parameter(parameter.data.index_select(dimension(parameter), kept))


def _cut_grouped(conv: Any, sides: Mapping[str, Tensor]) -> None:
    """Remove its empty groups, and equally many channels of each other group."""
    groups, weight = conv.groups, conv.weight.data
    kept_in = ~sides.get("in", torch.zeros(conv.in_channels, dtype=torch.bool, device="cpu")).view(groups, -1)
    kept_out = ~sides.get("out", torch.zeros(conv.out_channels, dtype=torch.bool, device="cpu")).view(groups, -1)
    kept_groups = [g for g in range(groups) if kept_in[g].any() or kept_out[g].any()]
    blocks = weight.view(groups, -1, *weight.shape[1:])
    conv.weight = nn.Parameter(torch.cat([blocks[g][kept_out[g]][:, kept_in[g]] for g in kept_groups]))
    if conv.bias is not None:
        conv.bias = nn.Parameter(conv.bias.data[kept_out.flatten()])
    conv.groups, conv.in_channels, conv.out_channels = len(kept_groups), int(kept_in.sum()), int(kept_out.sum())


def fill(small: nn.Module, source: nn.Module, added: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Replace the indices in a numbered and cut model by the values of its source, plus `added` (by parameter).

    Return the indices by name. A bias that the source does not have holds a constant, and is frozen.
    """
    original = parameters(source)
    buffers = dict(source.named_buffers())
    origin = {}
    for name, parameter in parameters(small).items():
        if not parameter.is_floating_point():  # it was not numbered and has its values
            continue
        values = original[name].detach() if name in original else torch.zeros_like(added[name])
        if name in added:
            values = values + added[name]
        origin[name] = parameter.data.long()
        parameter.data = values.flatten()[origin[name].to(values.device)]
        if values.dim() == 4 and not values.is_contiguous():
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        parameter.grad = None
        parameter.requires_grad_(name in original and original[name].requires_grad)
    for path, module in small.named_modules():
        for last, buffer in module._buffers.items():
            name = f"{path}.{last}" if path else last
            if buffer is None or not buffer.is_floating_point() or buffer.layout != torch.strided:
                continue
            origin[name] = buffer.long()
            values = buffers[name]
            module._buffers[last] = values.flatten()[origin[name].to(values.device)].clone()
    return origin


def scatter(large: nn.Module, small: nn.Module, origin: Mapping[str, Tensor]) -> None:
    """Write the values of a cut model into the large one, at the indices that they come from."""
    targets = dict(large.named_parameters()) | dict(large.named_buffers())
    with torch.no_grad():
        for name, value in (*small.named_parameters(), *small.named_buffers()):
            target = targets.get(name)
            if target is not None and name in origin:
                flat = target.detach().clone(memory_format=torch.contiguous_format).flatten()
                flat[origin[name].flatten().to(target.device)] = value.detach().flatten().to(flat)
                target.copy_(flat.view(target.shape))
            elif target is not None and target.shape == value.shape:
                target.copy_(value)


def zero_connections(large: nn.Module, cells: Mapping[str, Tensor]) -> None:
    """Set the connections between removed and kept channels to zero, by layer as (outputs, inputs)."""
    with torch.no_grad():
        for name, reads in cells.items():
            layer: Any = large.get_submodule(name)
            layer.weight.masked_fill_(kernels(reads, layer).to(layer.weight.device), 0)


def cut_masks(masks: Mapping[str, Tensor], origin: Mapping[str, Tensor], small: nn.Module) -> Masks:
    named = parameters(small)
    return Masks({n: masks[n].flatten()[origin[n]].to(named[n].device) for n in named if n in masks})


def connections(mask: Tensor, layer: Any) -> Tensor:
    """Return which inputs each output of a layer reads through any weight of the kernel, as (outputs, inputs)."""
    reads = mask.flatten(2).any(2) if mask.dim() > 2 else mask
    blocks = reads.chunk(getattr(layer, "groups", 1))
    return torch.block_diag(*([block.T for block in blocks] if getattr(layer, "transposed", False) else blocks))


def kernels(reads: Tensor, layer: Any) -> Tensor:
    """Undo `connections`: return a mask that broadcasts to the layer's weight, one value for each kernel."""
    groups = getattr(layer, "groups", 1)
    blocks = reads.view(groups, reads.shape[0] // groups, groups, -1)
    blocks = torch.stack([blocks[g, :, g] for g in range(groups)])
    bits = (blocks.transpose(1, 2) if getattr(layer, "transposed", False) else blocks).flatten(0, 1)
    return bits.view(*bits.shape, *[1] * (layer.weight.dim() - 2))


class Blank(nn.Module):
    """A layer without weights: it returns its bias at every position, or zeros, in the shape of its original."""

    def __init__(self, layer: nn.Module, channels: int, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.channels, self.bias = channels, bias
        self.geometry = None if isinstance(layer, nn.Linear) else _geometry(layer)

    def forward(self, x: Tensor) -> Tensor:
        if self.geometry is None:
            return self._filled(x, x.shape[:-1])
        dims = len(self.geometry)
        pairs = zip(self.geometry, x.shape[-dims:], strict=True)
        sizes = [(size * before + offset) // after + 1 for (before, offset, after), size in pairs]
        # Contiguous: torch crashes in the gradient of a group-norm for a constant input with channels last.
        return self._filled(x, (*x.shape[: -dims - 1], *sizes)).movedim(-1, -dims - 1).contiguous()

    def _filled(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        # a linear layer without inputs gives its bias
        return F.linear(x.new_zeros((*shape, 0)), x.new_zeros((self.channels, 0)), self.bias)


def _geometry(conv: Any) -> list[tuple[int, int, int]]:
    """Return (a, b, c) for each dimension: the output of a convolution has the size (a * size + b) // c + 1."""
    result = []
    for d, stride in enumerate(conv.stride):
        reach = conv.dilation[d] * (conv.kernel_size[d] - 1)
        padding = {"same": reach, "valid": 0}[conv.padding] if isinstance(conv.padding, str) else 2 * conv.padding[d]
        if conv.transposed:
            result.append((stride, reach + conv.output_padding[d] - padding - stride, 1))
        else:
            result.append((1, padding - reach - 1, stride))
    return result
