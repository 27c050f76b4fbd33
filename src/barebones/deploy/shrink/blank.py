"""Blank layers: they replace layers that have lost all their inputs, or all their outputs."""

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
        pairs = zip(self.geometry, x.shape[-dims:], strict=True)
        sizes = [(size * before + offset) // after + 1 for (before, offset, after), size in pairs]
        # Contiguous: torch crashes in the gradient of a group-norm for a constant input with channels last.
        return self._filled(x, (*x.shape[: -dims - 1], *sizes)).movedim(-1, -dims - 1).contiguous()

    def _filled(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Apply a linear layer to no inputs, which gives its bias."""
        return F.linear(x.new_zeros((*shape, 0)), x.new_zeros((self.channels, 0)), self.bias)

    def extra_repr(self) -> str:
        """Return the width and whether there is a bias."""
        return f"{self.channels}, bias={self.bias is not None}"


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
