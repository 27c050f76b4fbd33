"""Digests: one number for the content of tensors, computed on their device and equal on every device."""

import functools
from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import chain

import torch
from torch import Tensor

LENGTH = 1 << 16  # 64-bit words in a row; each position in a row has its own factor
MIX = 0x5851F42D4C957F2D  # an odd number, for the factors of rows and tensors


def of_tensors(tensors: Iterable[Tensor]) -> Tensor:
    """Return a 64-bit digest of the bytes of some tensors in order, as an int64 scalar on the first tensor's device.

    It multiplies words of eight bytes, their high bits folded down, by fixed random odd numbers and sums them modulo
    2**64, which does not depend on the device, the thread count or the memory format. Shapes and types count too.

    >>> a, b = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])
    >>> bool(of_tensors([a]) == of_tensors([a.clone()])), bool(of_tensors([a]) == of_tensors([b]))
    (True, False)
    """
    total: Tensor | None = None
    scale, rest = 1, 0  # the digest so far is total * scale + rest: Python numbers cost no launch
    for tensor in chain.from_iterable(map(_strided, tensors)):
        flat = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
        if flat.storage_offset() * flat.element_size() % 8:
            flat = flat.clone()
        data = flat.view(torch.uint8)
        full = data.numel() // 8 * 8
        if total is None:
            total = torch.zeros((), dtype=torch.int64, device=tensor.device)
        for words in (data[:full].view(torch.int64), data[full:].to(torch.int64)):
            scale, rest = _signed(scale * MIX), _signed(rest * MIX + words.numel())
            for part in _parts(words):
                total = torch.add(part.to(total.device), total, alpha=scale)
                scale = 1
        scale, rest = _signed(scale * MIX), _signed(rest * MIX + text(tuple(tensor.shape), str(tensor.dtype)))
    if total is None:
        return torch.zeros((), dtype=torch.int64, device="cpu")
    return total * scale + rest


def _strided(tensor: Tensor) -> list[Tensor]:
    if tensor.layout == torch.strided:
        return [tensor]
    sparse = tensor if tensor.layout == torch.sparse_coo else tensor.to_sparse_coo()
    return [sparse.coalesce().indices(), sparse.coalesce().values()]


def hexadecimal(tensors: Iterable[Tensor]) -> str:
    return f"{int(of_tensors(tensors)) % 2**64:016x}"


def _parts(words: Tensor) -> Iterator[Tensor]:
    """Yield the terms of the digest: that of the incomplete last row of LENGTH words, then those of full rows."""
    rows = words.numel() // LENGTH
    full_rows, last_row = words[: rows * LENGTH].view(rows, LENGTH), words[rows * LENGTH :]
    factors = _factors(words.device)
    if last_row.numel():
        yield (_folded(last_row) * factors[: last_row.numel()]).sum()
    step = 4 if words.device.type == "cpu" else 256  # rows at a time: a cache's worth, or few calls
    for start in range(0, rows, step):
        block = full_rows[start : start + step]
        row_factors = torch.arange(start, start + len(block), device=words.device) * MIX | 1
        yield ((_folded(block) * factors).sum(1) * row_factors).sum()


def _signed(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


def _folded(words: Tensor) -> Tensor:
    """Fold the high bits down. Without that, the highest bits of two words, their signs, would cancel in the sum."""
    return words ^ (words >> 29)


@functools.cache
def _factors(device: torch.device) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(0)
    numbers = torch.randint(-(2**63), 2**63 - 1, (LENGTH,), generator=generator, device="cpu")
    return numbers.bitwise_or_(1).to(device)


def text(*words: object) -> int:
    """Return a 63-bit number for some printable values, for example a seed derived from several."""
    return int.from_bytes(sha256(repr(words).encode()).digest()[:8], "big") >> 1
