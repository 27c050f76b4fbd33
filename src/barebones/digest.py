"""Digests: a short number for the content of tensors, computed where they live and equal on every device."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

import torch
from torch import Tensor

CHUNK = 1 << 22
INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _int64(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


GOLDEN, MIX, MIX_AGAIN = (_int64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def content(tensors: Iterable[Tensor]) -> Tensor:
    """A 64-bit digest of the bits of some tensors in order, as an int64 scalar on the first one's device.

    Every element's bits are mixed with its position (splitmix64's finalizer) and summed modulo 2**64:
    integers only, so the number does not depend on the device, the thread count or the memory format.

    >>> a, b = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])
    >>> bool(content([a]) == content([a.clone()])), bool(content([a]) == content([b]))
    (True, False)
    """
    total: Tensor | None = None
    position = 0
    for tensor in tensors:
        flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        if flat.is_complex():
            flat = torch.view_as_real(flat).reshape(-1)
        bits = flat.view(torch.uint8) if flat.dtype == torch.bool else flat.view(INTEGER[flat.element_size()])
        if total is None:
            total = torch.zeros((), dtype=torch.int64, device=tensor.device)
        for chunk in bits.split(CHUNK):
            places = torch.arange(position, position + chunk.numel(), dtype=torch.int64, device=chunk.device)
            z = places.mul_(GOLDEN).add_(chunk)
            z = (z ^ (z >> 30)).mul_(MIX)
            z = (z ^ (z >> 27)).mul_(MIX_AGAIN)
            total = total + (z ^ (z >> 31)).sum().to(total.device)
            position += chunk.numel()
        position += 1  # so that a split into other tensors is another digest
    return torch.zeros((), dtype=torch.int64) if total is None else total


def text(*words: object) -> int:
    """A 63-bit number for some printable values: a seed derived from several."""
    return int.from_bytes(sha256(repr(words).encode()).digest()[:8], "big") >> 1
