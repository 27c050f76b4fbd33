"""Blank layers: what stands in for a layer that is left with no input, or with no output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


class Blank(nn.Module):
    """A layer without weights: it returns its bias at every position, or zeros, in the shape of its original."""

    def __init__(self, layer: nn.Module, channels: int, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.channels, self.bias = channels, bias
        self.geometry = None if isinstance(layer, nn.Linear) else _geometry(layer)

    def forward(self, x: Tensor) -> Tensor:
        """Return zeros plus the bias."""
        if self.geometry is None:
            return self._filled(x, x.shape[:-1])
        dims = len(self.geometry)
        sizes = [length(size) for length, size in zip(self.geometry, x.shape[-dims:], strict=True)]
        return self._filled(x, (*x.shape[: -dims - 1], *sizes)).movedim(-1, -dims - 1)

    def _filled(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Apply a linear layer to no inputs, which gives its bias."""
        return F.linear(x.new_zeros((*shape, 0)), x.new_zeros((self.channels, 0)), self.bias)

    def extra_repr(self) -> str:
        """Return the width and whether there is a bias."""
        return f"{self.channels}, bias={self.bias is not None}"


class _Length:
    """Computes the size of a convolution's output along one dimension."""

    def __init__(self, kernel: int, stride: int, padding: int, dilation: int, transposed: bool, extra: int) -> None:
        self.kernel, self.stride, self.padding, self.dilation = kernel, stride, padding, dilation
        self.transposed, self.extra = transposed, extra

    def __call__(self, size: int) -> int:
        reach = self.dilation * (self.kernel - 1)
        if self.transposed:
            return (size - 1) * self.stride - self.padding + reach + self.extra + 1
        return (size + self.padding - reach - 1) // self.stride + 1


def _geometry(conv: Any) -> list[_Length]:
    lengths = []
    for d in range(len(conv.kernel_size)):
        reach = conv.dilation[d] * (conv.kernel_size[d] - 1)
        padding = {"same": reach, "valid": 0}[conv.padding] if isinstance(conv.padding, str) else 2 * conv.padding[d]
        extra = conv.output_padding[d] if conv.transposed else 0
        lengths.append(_Length(conv.kernel_size[d], conv.stride[d], padding, conv.dilation[d], conv.transposed, extra))
    return lengths
