"""Encodings: a mask as few bytes, one bit per weight or the gaps between kept weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..masks import Masks, size
from ..messages import printable, shortened
from ..running.shards import count, full, is_sharded, on_disk
from .header import record, shown

WIDTHS = {"gaps8": 1, "gaps16": 2}  # bytes per gap

# A mask that keeps few of many weights needs few bytes, and one that keeps none needs no byte at all. So the bytes of a
# file alone do not bound what they decode to. Without a model to compare with, a file may decode to this many bytes, or
# to this many for each byte that it holds. The first is enough for each network of the library.
ANY_FILE, PER_BYTE = 160_000_000, 1024

Layout = dict[str, dict[str, Any]]  # the shape, encoding and kept count of each mask, by name; fit for JSON


@dataclass(frozen=True)
class Layer:
    """An entry of a layout, checked: the shape of a mask, its encoding, and how many weights it keeps."""

    shape: list[int]
    encoding: str
    kept: int

    @property
    def total(self) -> int:
        """The number of weights."""
        return math.prod(self.shape)


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


def layers(tensors: Mapping[str, Tensor], layout: Any) -> dict[str, Layer]:
    """Check a layout against the byte tensors that it describes; nothing is decoded.

    >>> layers(*pack({"w": torch.tensor([True, False])}))
    {'w': Layer(shape=[2], encoding='bits', kept=1)}
    """
    if not isinstance(layout, dict):
        raise ValueError("the layout of its masks is missing")
    checked = {name: record(Layer, entry, f"the mask of {printable(name)}") for name, entry in layout.items()}
    for name, layer in checked.items():
        try:
            _check_shape(layer.shape)
            if name not in tensors:
                raise ValueError("its bytes are missing")
        except ValueError as error:
            raise ValueError(f"the mask of {printable(name)} is damaged: {error}") from None
    if unknown := [printable(name) for name in tensors if name not in checked]:
        raise ValueError(f"it holds {shortened(unknown)}, which the layout of its masks does not list")
    return checked


def check_size(decoded: int, stored: int) -> None:
    """Raise a `ValueError` if a file with this many bytes may not decode to that many: it would fill the memory.

    >>> check_size(decoded=2**40, stored=1000)
    Traceback (most recent call last):
    ValueError: it would take 1,099,511,627,776 bytes of memory, but its 1,000 bytes of data may stand for at most
    160,000,000; if it is right, load it with its model
    """
    most = max(ANY_FILE, PER_BYTE * stored)
    if decoded > most:
        raise ValueError(
            f"it would take {decoded:,} bytes of memory, but its {stored:,} bytes of data may stand for at most "
            f"{most:,}; if it is right, load it with its model"
        )


def unpack(tensors: Mapping[str, Tensor], layout: Any) -> Masks:
    """Decode the masks that `pack` encoded, in their original order; check all that can be checked before.

    >>> dict(unpack(*pack({"w": torch.tensor([True, False])})))
    {'w': tensor([ True, False])}
    """
    checked = layers(tensors, layout)
    check_size(sum(layer.total for layer in checked.values()), size(tensors))
    return decoded(tensors, checked)


def decoded(tensors: Mapping[str, Tensor], checked: Mapping[str, Layer]) -> Masks:
    """Decode the masks of a layout that `layers` has checked; the caller has checked that they are not too large."""
    masks = Masks()
    for name, layer in checked.items():
        try:
            masks[name] = decode(layer.encoding, tensors[name], layer.shape)
            if (kept := int(masks[name].count_nonzero())) != layer.kept:
                raise ValueError(f"it keeps {kept} weights, not {shown(layer.kept)}")
        except ValueError as error:
            raise ValueError(f"the mask of {printable(name)} is damaged: {error}") from None
    return masks


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
    """Decode a mask of this shape; bytes that `encode` cannot have written are a `ValueError`.

    >>> decode("gaps8", torch.tensor([1, 0], dtype=torch.uint8), (2, 2))
    tensor([[False,  True],
            [ True, False]])
    """
    _check_shape(shape)
    count = math.prod(shape)
    if encoding == "bits":
        _check_bytes(data)
        if data.numel() != -(-count // 8):
            raise ValueError(f"{count} weights need {-(-count // 8)} bytes of bits, not {data.numel()}")
        if count % 8 and int(data[-1]) >> count % 8:
            raise ValueError("bits are set after its last weight")
        return (data[:, None] >> _shifts()).bitwise_and_(1).view(torch.bool).view(-1)[:count].reshape(tuple(shape))
    indices = decode_indices(encoding, data)
    if indices.numel() and int(indices[-1]) >= count:
        raise ValueError(f"it keeps weight {int(indices[-1])}, but there are only {count}")
    mask = torch.zeros(count, dtype=torch.bool, device="cpu")
    mask[indices] = True
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
    if encoding not in WIDTHS:
        raise ValueError(f"its encoding {shown(encoding)} is unknown")
    _check_bytes(data)
    if data.numel() % WIDTHS[encoding]:
        raise ValueError(f"{data.numel()} bytes are not a whole number of {encoding}")
    values = data.int()
    if encoding == "gaps16":
        values = values[::2] + 256 * values[1::2]
    ends = values != 256 ** WIDTHS[encoding] - 1
    if ends.numel() and not ends[-1]:
        raise ValueError("its last gap between indices is incomplete")
    return (values + ends).cumsum(0)[ends] - 1


def _shifts() -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device="cpu")


def _check_shape(shape: Sequence[int]) -> None:
    if min(shape, default=0) < 0 or math.prod(max(length, 1) for length in shape) >= 2**63:  # beyond torch's integers
        raise ValueError(f"no tensor has the shape {shown(list(shape))}")


def _check_bytes(data: Tensor) -> None:
    if data.dtype != torch.uint8 or data.dim() != 1:
        raise ValueError(f"it is stored as {data.dtype} in {data.dim()} dimensions, not as a row of bytes")
