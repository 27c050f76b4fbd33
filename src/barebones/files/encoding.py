"""Encodings: a mask as few bytes, one bit per weight or the gaps between kept weights."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..masks import Masks
from ..running.shards import count, full, is_sharded, on_disk

WIDTHS = {"gaps8": 1, "gaps16": 2}  # bytes per gap

Layout = dict[str, dict[str, Any]]  # the shape, encoding and kept count of each mask, by name; fit for JSON


def pack(masks: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Layout]:
    """Encode masks as byte tensors; also return the layout that `unpack` needs to decode them.

    The bytes of sharded masks are on the disk of the first process alone, and its memory holds one mask at a time.

    >>> pack({"w": torch.tensor([True, False, True])})
    ({'w': tensor([5], dtype=torch.uint8)}, {'w': {'shape': [3], 'encoding': 'bits', 'kept': 2}})
    """
    tensors, layout = {}, {}
    for name, mask in masks.items():
        if mask.dtype != torch.bool:
            raise ValueError(f"the mask of {name} has the type {mask.dtype}; masks must be bool tensors")
        encoding, data = encode(mask)
        tensors[name] = on_disk(data) if is_sharded(mask) else data
        layout[name] = {"shape": list(mask.shape), "encoding": encoding, "kept": count(mask)}
    return tensors, layout


def unpack(tensors: Mapping[str, Tensor], layout: Layout) -> Masks:
    """Decode the masks that `pack` encoded, in their original order.

    >>> dict(unpack(*pack({"w": torch.tensor([True, False])})))
    {'w': tensor([ True, False])}
    """
    return Masks({name: decode(e["encoding"], tensors[name], e["shape"]) for name, e in layout.items()})


def encode(mask: Tensor) -> tuple[str, Tensor]:
    """Encode a mask in the fewest bytes: one bit per weight, or one gap per kept weight, in logical row-major order.

    >>> encode(torch.tensor([True, False, False, True]))
    ('bits', tensor([9], dtype=torch.uint8))
    >>> encode(torch.arange(100) % 40 == 39)
    ('gaps8', tensor([39, 39], dtype=torch.uint8))
    """
    flat = full(mask).detach().cpu().reshape(-1)
    length = -(-flat.numel() // 8)
    if int(flat.count_nonzero()) < length:  # otherwise gaps cannot need fewer bytes
        encoding, data = encode_indices(flat.nonzero().flatten())
        if data.numel() < length:
            return encoding, data
    padded = torch.zeros(8 * length, dtype=torch.uint8, device="cpu")
    padded[: flat.numel()] = flat
    return "bits", (padded.view(-1, 8) << _shifts()).sum(1, dtype=torch.uint8)


def decode(encoding: str, data: Tensor, shape: Sequence[int]) -> Tensor:
    """Decode what `encode` encoded.

    >>> decode("gaps8", torch.tensor([1, 0], dtype=torch.uint8), (2, 2))
    tensor([[False,  True],
            [ True, False]])
    """
    count = math.prod(shape)
    if encoding == "bits":
        return (data[:, None] >> _shifts()).bitwise_and_(1).view(torch.bool).view(-1)[:count].reshape(tuple(shape))
    mask = torch.zeros(count, dtype=torch.bool, device="cpu")
    mask[decode_indices(encoding, data)] = True
    return mask.view(tuple(shape))


def encode_indices(indices: Tensor) -> tuple[str, Tensor]:
    """Encode ascending indices (int64, on the CPU) as gaps of one byte ("gaps8") or of two, low byte first ("gaps16").

    A gap is the number of indices skipped since the last one. The highest value of a unit (255 or 65535) skips that
    many indices and is continued by the next unit.

    >>> encode_indices(torch.tensor([0, 5, 6, 270, 600]))
    ('gaps8', tensor([  0,   4,   0, 255,   8, 255,  74], dtype=torch.uint8))
    """
    gaps = torch.diff(indices, prepend=indices.new_tensor([-1])) - 1
    units = {name: gaps.numel() + int((gaps // (256**width - 1)).sum()) for name, width in WIDTHS.items()}
    encoding = min(WIDTHS, key=lambda name: units[name] * WIDTHS[name])
    escape = 256 ** WIDTHS[encoding] - 1
    values = torch.full((units[encoding],), escape, dtype=torch.int32, device="cpu")
    values[(gaps // escape + 1).cumsum(0) - 1] = (gaps % escape).int()
    if encoding == "gaps8":
        return encoding, values.to(torch.uint8)
    return encoding, torch.stack([values & 255, values >> 8], 1).to(torch.uint8).flatten()


def decode_indices(encoding: str, data: Tensor) -> Tensor:
    """Decode the indices that `encode_indices` encoded.

    >>> decode_indices("gaps8", torch.tensor([0, 4, 255, 8], dtype=torch.uint8))
    tensor([  0,   5, 269])
    """
    values = data.int()
    if encoding == "gaps16":
        values = values[::2] + 256 * values[1::2]
    ends = values != 256 ** WIDTHS[encoding] - 1
    return (values + ends).cumsum(0)[ends] - 1


def _shifts() -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device="cpu")
