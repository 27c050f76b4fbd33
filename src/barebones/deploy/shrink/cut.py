"""The cut: layers without some of their channels, and for each value that is left the place that it comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...scope import parameters

Removed = dict[tuple[str, str], Tensor]  # (layer, side) -> bool per channel


class Blank(nn.Module):
    """A layer that is left with no input, or with no output: its bias everywhere, or zeros."""

    def __init__(self, layer: nn.Module, channels: int, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.channels, self.bias = channels, bias
        self.geometry = None if isinstance(layer, nn.Linear) else _geometry(layer)

    def forward(self, x: Tensor) -> Tensor:
        """Zeros of the shape that the layer would return, plus its bias."""
        if self.geometry is None:
            return self._said(x, x.shape[:-1])
        places = len(self.geometry)
        sizes = [size(length) for size, length in zip(self.geometry, x.shape[-places:], strict=True)]
        return self._said(x, (*x.shape[: -places - 1], *sizes)).movedim(-1, -places - 1)

    def _said(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Of no input a linear layer makes its bias."""
        return F.linear(x.new_zeros((*shape, 0)), x.new_zeros((self.channels, 0)), self.bias)

    def extra_repr(self) -> str:
        """Its width."""
        return f"{self.channels}, bias={self.bias is not None}"


class _Size:
    """The length that a convolution returns along one dimension."""

    def __init__(self, kernel: int, stride: int, before: int, dilation: int, transposed: bool, extra: int) -> None:
        self.kernel, self.stride, self.padding, self.dilation = kernel, stride, before, dilation
        self.transposed, self.extra = transposed, extra

    def __call__(self, length: int) -> int:
        reach = self.dilation * (self.kernel - 1)
        if self.transposed:
            return (length - 1) * self.stride - self.padding + reach + self.extra + 1
        return (length + self.padding - reach - 1) // self.stride + 1


def _geometry(conv: Any) -> list[_Size]:
    sizes = []
    for d in range(len(conv.kernel_size)):
        reach = conv.dilation[d] * (conv.kernel_size[d] - 1)
        padding = {"same": reach, "valid": 0}[conv.padding] if isinstance(conv.padding, str) else 2 * conv.padding[d]
        extra = conv.output_padding[d] if conv.transposed else 0
        sizes.append(_Size(conv.kernel_size[d], conv.stride[d], padding, conv.dilation[d], conv.transposed, extra))
    return sizes


def indexed(model: nn.Module, biases: Mapping[str, Tensor]) -> nn.Module:
    """A copy in which every float parameter and buffer holds the numbers of its own places, row by row.

    `biases` are by layer; one that has none gets one.
    """
    numbers: dict[int, Any] = {}  # what deepcopy takes instead of a copy
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            count = torch.arange(tensor.numel(), dtype=torch.double, device="cpu").view(tensor.shape)
            numbers[id(tensor)] = nn.Parameter(count) if isinstance(tensor, nn.Parameter) else count
    copy = deepcopy(model, numbers)
    for name, values in biases.items():
        layer = copy.get_submodule(name)
        if layer.bias is None:
            layer.bias = nn.Parameter(torch.arange(values.numel(), dtype=torch.double, device="cpu"))
    return copy


def cut(model: nn.Module, removed: Removed, graph: Any) -> dict[str, str]:
    """Take the channels out of an indexed model; returns what became of the layers that are left with none at all."""
    gone: dict[str, str] = {}
    layers = dict(model.named_modules())
    for name in dict.fromkeys(name for name, _ in removed):
        sides = {side: mask for (layer, side), mask in removed.items() if layer == name and mask.any()}
        if not sides:
            continue
        if name not in layers:
            _cut_parameter(model, name, sides["both"], graph)
        elif any(bool(mask.all()) for mask in sides.values()):
            gone[name] = _blank(model, name, layers[name], sides)
        elif getattr(layers[name], "groups", 1) > 1 and "both" not in sides:
            _cut_groups(layers[name], sides)
        else:
            pruner = graph.get_pruner_of_module(layers[name])
            for side, mask in sides.items():
                remove = pruner.prune_in_channels if side == "in" else pruner.prune_out_channels
                remove(layers[name], mask.nonzero().flatten().tolist())
    return gone


def _blank(model: nn.Module, name: str, layer: Any, sides: Mapping[str, Tensor]) -> str:
    """No channel is left on one side of it: it says zeros, or its bias; or it passes on nothing."""
    replacement: nn.Module
    if "both" in sides:  # no channel goes on, but a convolution still changes the size
        replacement = Blank(layer, 0, None) if isinstance(layer, nn.modules.conv._ConvNd) else nn.Identity()
    else:
        outs = ~sides["out"] if "out" in sides else None
        width = getattr(layer, "out_channels", None) or layer.out_features
        bias = layer.bias
        if bias is not None and outs is not None:
            bias = nn.Parameter(bias.data[outs]) if outs.any() else None
        replacement = Blank(layer, width if outs is None else int(outs.sum()), bias)
    replacement.training = layer.training
    owner, _, last = name.rpartition(".")
    setattr(model.get_submodule(owner), last, replacement)
    return type(replacement).__name__


def _cut_parameter(model: nn.Module, name: str, mask: Tensor, graph: Any) -> None:
    owner, _, last = name.rpartition(".")
    module = model.get_submodule(owner)
    parameter = module._parameters[last]
    assert parameter is not None
    dim = next(d for d in reversed(range(parameter.dim())) if parameter.shape[d] > 1)  # as Torch-Pruning takes it
    module._parameters[last] = nn.Parameter(parameter.data.index_select(dim, (~mask).nonzero().flatten()))


def _cut_groups(conv: Any, sides: Mapping[str, Tensor]) -> None:
    """A convolution in groups: whole groups go, and from the others as many channels each."""
    groups, weight = conv.groups, conv.weight.data
    stay_in = ~sides.get("in", torch.zeros(conv.in_channels, dtype=torch.bool)).view(groups, -1)
    stay_out = ~sides.get("out", torch.zeros(conv.out_channels, dtype=torch.bool)).view(groups, -1)
    left = [g for g in range(groups) if stay_in[g].any() or stay_out[g].any()]
    blocks = weight.view(groups, -1, *weight.shape[1:])
    conv.weight = nn.Parameter(torch.cat([blocks[g][stay_out[g]][:, stay_in[g]] for g in left]))
    if conv.bias is not None:
        conv.bias = nn.Parameter(conv.bias.data[stay_out.flatten()])
    conv.groups, conv.in_channels, conv.out_channels = len(left), int(stay_in.sum()), int(stay_out.sum())


def filled(small: nn.Module, source: nn.Module, biases: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give an indexed and cut model the values of the model it comes from, and of `biases` (by parameter) more.

    Returns the numbers, by name. A bias that there was not before is a constant, which is not trained.
    """
    original = parameters(source)
    buffers = dict(source.named_buffers())
    origin = {}
    for name, parameter in parameters(small).items():
        if not parameter.is_floating_point():  # it holds its values
            continue
        values = original[name].detach() if name in original else torch.zeros_like(biases[name])
        if name in biases:
            values = values + biases[name]
        origin[name] = parameter.data.long()
        parameter.data = _in_format_of(values, values.flatten()[origin[name].to(values.device)])
        parameter.grad = None
        parameter.requires_grad_(name in original and original[name].requires_grad)
    for path, module in small.named_modules():
        for last, buffer in module._buffers.items():
            name = f"{path}.{last}" if path else last
            if buffer is None or not buffer.is_floating_point():
                continue
            origin[name] = buffer.long()
            held = buffers[name]
            module._buffers[last] = held.flatten()[origin[name].to(held.device)].clone()
    return origin


def _in_format_of(values: Tensor, fewer: Tensor) -> Tensor:
    """As channels last, where the values are."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(values.dim())
    if last is None or values.is_contiguous() or not values.is_contiguous(memory_format=last):
        return fewer
    return fewer.contiguous(memory_format=last)


def with_channels_last(network: nn.Module) -> nn.Module:
    """The network itself, its 4-d parameters with the channels last in memory.

    `contiguous` would leave a kernel of one pixel or one channel as it is, which is in both orders at once.
    """
    for parameter in network.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.to(memory_format=torch.channels_last)
    return network


def scattered(target: nn.Module, small: nn.Module, origin: Mapping[str, Tensor]) -> None:
    """Put the values of a cut model back to the places that they come from."""
    with torch.no_grad():
        for kind in ("named_parameters", "named_buffers"):
            whole = dict(getattr(target, kind)())
            for name, value in getattr(small, kind)():
                if name not in whole:
                    continue
                if name in origin:
                    numbers = origin[name].flatten().to(whole[name].device)
                    flat = whole[name].detach().clone(memory_format=torch.contiguous_format).flatten()
                    flat[numbers] = value.detach().flatten().to(flat)
                    whole[name].copy_(flat.view(whole[name].shape))
                elif whole[name].shape == value.shape:
                    whole[name].copy_(value)


def rows(mask: Tensor, layer: Any) -> Tensor:
    """Which inputs each output of a layer reads: (outputs, inputs), any place of the kernel."""
    reads = mask.flatten(2).any(2) if mask.dim() > 2 else mask
    blocks = reads.chunk(getattr(layer, "groups", 1))
    return torch.block_diag(*([block.T for block in blocks] if getattr(layer, "transposed", False) else blocks))


def cells(reads: Tensor, layer: Any) -> Tensor:
    """The way back from `rows`: of the shape of the layer's weight, each kernel as a whole."""
    groups = getattr(layer, "groups", 1)
    blocks = reads.view(groups, reads.shape[0] // groups, groups, -1)
    blocks = torch.stack([blocks[g, :, g] for g in range(groups)])
    bits = (blocks.transpose(1, 2) if getattr(layer, "transposed", False) else blocks).flatten(0, 1)
    return bits.view(*bits.shape, *[1] * (layer.weight.dim() - 2))
