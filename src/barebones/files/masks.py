"""Mask files: every mask in the fewest bytes, under a header that says where it comes from."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from ..masks import Masks, size
from ..scope import Pattern, parameters, prunable
from ..version import __version__
from . import container as files

KIND, VERSION = "barebones-masks", 1
WIDTHS = {"gaps8": 1, "gaps16": 2}  # bytes per gap
RESERVED = ("fingerprint", "format", "kept", "layout", "library", "prunable", "version")  # what we write ourselves
SHOWN = 5  # of the parameters that differ

Layout = dict[str, dict[str, Any]]  # name -> shape, encoding, kept; goes through JSON


def save_masks(masks: Mapping[str, Tensor], path: files.Path, **about: Any) -> None:
    """Save masks as a safetensors file: each bit-packed, or as gaps between kept weights where that is smaller.

    The header also holds their count, a fingerprint of their names and shapes, the version of the library, and
    `about`: what made them (method, rounds, seed, a digest of the dense weights, ...), as far as JSON can hold it.
    `sparsity` is computed where it is not given. The file appears whole or not at all.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_masks({"w": torch.eye(2) > 0}, f"{folder}/masks", method="force")
    ...     masks, about = load_masks(f"{folder}/masks")
    >>> masks["w"].tolist(), about["method"], about["sparsity"], about["kept"]
    ([[True, False], [False, True]], 'force', 0.5, 2)
    """
    about = {name: value for name, value in about.items() if name not in RESERVED}  # so what was loaded can be saved
    tensors, layout = pack(masks)
    total, left = size(masks), sum(entry["kept"] for entry in layout.values())
    files.write(
        path,
        tensors,
        KIND,
        VERSION,
        {
            "sparsity": (total - left) / max(total, 1),
            **about,
            "prunable": total,
            "kept": left,
            "fingerprint": fingerprint(masks),
            "library": __version__,
            "layout": layout,
        },
    )


def load_masks(
    path: files.Path, model: nn.Module | None = None, scope: Pattern | None = None, exclude: Pattern = ()
) -> tuple[Masks, dict[str, Any]]:
    """The masks of a file and what it says about them; with a model, on the devices of its parameters.

    A model that does not match is a `ValueError` that says where: every mask needs a parameter of its name and shape,
    and every prunable weight a mask, where `scope` and `exclude` say what is prunable, as they do for `prune`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_masks({"weight": torch.eye(2) > 0}, f"{folder}/masks")
    ...     masks, about = load_masks(f"{folder}/masks", nn.Linear(2, 2))
    >>> about["prunable"], about["kept"]
    (4, 2)
    """
    tensors, about = files.read(path, KIND, VERSION)
    try:
        masks = unpack(tensors, about.pop("layout", None))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if model is None:
        return masks, about
    weights, named = prunable(model, scope, exclude), parameters(model)
    if differing := list(_mismatches(masks, named, weights)):
        more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
        hint = "; for masks of fewer weights, pass their scope= or exclude=" if masks.keys() < weights.keys() else ""
        raise ValueError(
            f"{path} does not match the model; {len(differing)} of the parameters differ: "
            f"{', '.join(differing[:SHOWN])}{more}{hint}"
        )
    return Masks({name: mask.to(named[name].device) for name, mask in masks.items()}), about


def content(masks: Mapping[str, Tensor]) -> str:
    """SHA-256 of the masks themselves, whatever file they are in.

    >>> content({"w": torch.eye(2) > 0}) == content({"w": torch.eye(2) > 0.5})
    True
    """
    found = sha256(fingerprint(masks).encode())
    for name in sorted(masks):
        found.update(masks[name].cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """A digest of names and shapes, in whatever order: equal for masks and for the weights they belong to.

    >>> fingerprint({"w": torch.zeros(2, 3)})[:8], fingerprint({"w": torch.zeros(3, 2)})[:8]
    ('481470a5', 'a91c8778')
    """
    shapes = {name: list(weight.shape) for name, weight in weights.items()}
    return sha256(json.dumps(shapes, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def pack(masks: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Layout]:
    """Masks as byte tensors to store, and the layout (fit for JSON) that `unpack` needs to read them.

    >>> pack({"w": torch.tensor([True, False, True])})
    ({'w': tensor([5], dtype=torch.uint8)}, {'w': {'shape': [3], 'encoding': 'bits', 'kept': 2}})
    """
    tensors, layout = {}, {}
    for name, mask in masks.items():
        if mask.dtype != torch.bool:
            raise ValueError(f"the mask of {name} is of {mask.dtype}; a mask is a bool tensor, True to keep")
        encoding, tensors[name] = encode(mask)
        layout[name] = {"shape": list(mask.shape), "encoding": encoding, "kept": int(mask.count_nonzero())}
    return tensors, layout


def unpack(tensors: Mapping[str, Tensor], layout: Layout) -> Masks:
    """The masks that `pack` stored, in their old order; tensors that the layout does not name are not touched.

    >>> dict(unpack(*pack({"w": torch.tensor([True, False])})))
    {'w': tensor([ True, False])}
    """
    if not isinstance(layout, dict):
        raise ValueError("it says nothing of the layout of its masks")
    masks = Masks()
    for name, entry in layout.items():
        try:
            masks[name] = decode(entry["encoding"], tensors[name], entry["shape"])
            if (left := int(masks[name].count_nonzero())) != entry["kept"]:
                raise ValueError(f"it keeps {left} weights, not {entry['kept']}")
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"the mask of {name} is damaged: {error}") from None
    return masks


def encode(mask: Tensor) -> tuple[str, Tensor]:
    """A mask in the fewest bytes: one bit per weight, or one gap per kept weight; indices are logical row-major.

    >>> encode(torch.tensor([True, False, False, True]))
    ('bits', tensor([9], dtype=torch.uint8))
    >>> encode(torch.arange(100) % 40 == 39)
    ('gaps8', tensor([39, 39], dtype=torch.uint8))
    """
    flat = mask.detach().cpu().reshape(-1)
    count = -(-flat.numel() // 8)
    if int(flat.count_nonzero()) < count:  # else gaps cannot be fewer bytes
        encoding, data = encode_indices(flat.nonzero().flatten())
        if data.numel() < count:
            return encoding, data
    padded = torch.zeros(8 * count, dtype=torch.uint8, device="cpu")
    padded[: flat.numel()] = flat
    return "bits", (padded.view(-1, 8) << _shifts()).sum(1, dtype=torch.uint8)


def decode(encoding: str, data: Tensor, shape: Sequence[int]) -> Tensor:
    """The mask of this shape that `encode` wrote; bytes that no mask has are a `ValueError`.

    >>> decode("gaps8", torch.tensor([1, 0], dtype=torch.uint8), (2, 2))
    tensor([[False,  True],
            [ True, False]])
    """
    count = math.prod(shape)
    if any(length < 0 for length in shape):
        raise ValueError(f"no tensor has the shape {list(shape)}")
    if encoding == "bits":
        _check_bytes(data)
        if data.numel() != -(-count // 8):
            raise ValueError(f"{count} weights need {-(-count // 8)} bytes of bits, not {data.numel()}")
        if count % 8 and int(data[-1]) >> count % 8:
            raise ValueError("bits are set beyond its last weight")
        return (data[:, None] >> _shifts()).bitwise_and_(1).view(torch.bool).view(-1)[:count].reshape(tuple(shape))
    indices = decode_indices(encoding, data)
    if indices.numel() and int(indices[-1]) >= count:
        raise ValueError(f"it keeps weight {int(indices[-1])}, and there are {count}")
    mask = torch.zeros(count, dtype=torch.bool, device="cpu")
    mask[indices] = True
    return mask.view(tuple(shape))


def encode_indices(indices: Tensor) -> tuple[str, Tensor]:
    """Ascending indices (int64, on the CPU) as gaps of one byte ("gaps8") or two, low byte first ("gaps16").

    A gap is how many indices lie skipped before one; the highest value of a unit skips that many and goes on.

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
    """The indices that `encode_indices` wrote.

    >>> decode_indices("gaps8", torch.tensor([0, 4, 255, 8], dtype=torch.uint8))
    tensor([  0,   5, 269])
    """
    if encoding not in WIDTHS:
        raise ValueError(f"its encoding {encoding!r} is unknown")
    _check_bytes(data)
    if data.numel() % WIDTHS[encoding]:
        raise ValueError(f"{data.numel()} bytes are not a whole number of {encoding}")
    values = data.int()
    if encoding == "gaps16":
        values = values[::2] + 256 * values[1::2]
    ends = values != 256 ** WIDTHS[encoding] - 1
    if ends.numel() and not ends[-1]:
        raise ValueError("its last gap leads nowhere")
    return (values + ends).cumsum(0)[ends] - 1


def _shifts() -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device="cpu")


def _check_bytes(data: Tensor) -> None:
    if data.dtype != torch.uint8 or data.dim() != 1:
        raise ValueError(f"it is stored as {data.dtype} of {data.dim()} dimensions, not as a row of bytes")


def _mismatches(masks: Masks, named: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> Iterator[str]:
    for name, mask in masks.items():
        if name not in named:
            yield f"{name} (not in the model)"
        elif mask.shape != named[name].shape:
            yield f"{name} ({_shape(mask)} in the file, {_shape(named[name])} in the model)"
    for name in weights:
        if name not in masks:
            yield f"{name} (not in the file)"


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a scalar"
