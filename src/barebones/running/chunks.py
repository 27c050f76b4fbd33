"""Chunks: large tensors in parts that fit into the cache, so that several operations read memory once."""

from collections.abc import Iterator

from torch import Tensor

CHUNK = 1 << 18  # elements


def chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield flat views of the same part of several tensors of one shape.

    If a tensor is on an accelerator or is not contiguous, all tensors are yielded once, undivided.

    >>> import torch
    >>> [a.numel() for a, b in chunks(torch.ones(3, 1 << 18), torch.ones(3, 1 << 18))]
    [262144, 262144, 262144]
    """
    if any(t.device.type != "cpu" or not t.is_contiguous() for t in tensors):
        yield tensors
    else:
        yield from zip(*(t.view(-1).split(CHUNK) for t in tensors), strict=True)
