"""Pieces: large tensors taken a cache's worth at a time, so that several steps cost one trip to memory."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

PIECE = 1 << 18  # elements


def pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Aligned flat views of tensors of one shape; on an accelerator, or where one is not contiguous, all at once.

    >>> import torch
    >>> [a.numel() for a, b in pieces(torch.ones(3, 1 << 18), torch.ones(3, 1 << 18))]
    [262144, 262144, 262144]
    """
    if any(t.device.type != "cpu" or not t.is_contiguous() for t in tensors):
        yield tensors
    else:
        yield from zip(*(t.view(-1).split(PIECE) for t in tensors), strict=True)
