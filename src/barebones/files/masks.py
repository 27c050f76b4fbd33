"""Mask files: masks as few bytes, one bit per weight or the gaps between kept weights, and how they were made."""

import json
import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from ..masks import Masks, check_masks, size
from ..messages import shortened
from ..running.shards import by_one, count, full, is_sharded, on_disk
from ..scope import Pattern, parameters, placed, prunable
from ..version import __version__
from . import container

KIND, VERSION = "barebones-masks", 1
SHIFTS = torch.arange(8, dtype=torch.uint8, device="cpu")
WIDTHS = {"gaps8": 1, "gaps16": 2}  # bytes per gap
Layout = dict[str, dict[str, Any]]  # the shape, encoding and kept count of each mask, by name; fit for JSON
NUMBERS = (  # what a run counts of its masks and stores with them
    *("prunable", "kept", "effective", "sparsity", "effective_sparsity"),
    *("flops_dense", "flops_effective", "flops_shrunk", "disconnected_outputs", "outputs"),
)


def save_masks(masks: Mapping[str, Tensor], path: container.Path, **about: Any) -> None:
    """Save masks as a safetensors file: one bit per weight, or the gaps between kept weights if that is smaller.

    The header also holds `about`: how the masks were made (method, rounds, seed, ...), in values that JSON can
    represent. `sparsity` is computed unless given. The file is written atomically.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_masks({"w": torch.eye(2) > 0}, f"{folder}/masks", method="force")
    ...     masks = load_masks(f"{folder}/masks")
    >>> masks["w"].tolist(), masks.about["method"], masks.about["sparsity"], masks.about["kept"]
    ([[True, False], [False, True]], 'force', 0.5, 2)
    """
    check_masks(masks)
    tensors, layout = pack(masks)
    total, kept = size(masks), sum(entry["kept"] for entry in layout.values())
    counts = {"prunable": total, "kept": kept, "fingerprint": fingerprint(masks), "library": __version__}
    header = {"sparsity": (total - kept) / max(total, 1), **about, **counts}
    by_one(masks.values(), lambda: container.write(path, tensors, KIND, VERSION, header | {"layout": layout}))


def load_masks(
    path: container.Path, model: nn.Module | None = None, scope: Pattern | None = None, exclude: Pattern = ()
) -> Masks:
    """Return the masks of a file; with a model, on the devices of its parameters. Their `about` is that of the file.

    If the model does not match, a `ValueError` says where: every mask needs a parameter of the same name and shape,
    and every prunable weight needs a mask. `scope` and `exclude` define what is prunable, as for `prune`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_masks({"weight": torch.eye(2) > 0}, f"{folder}/masks")
    ...     load_masks(f"{folder}/masks", nn.Linear(2, 2)).about["kept"]
    2
    """
    tensors, about = container.read(path, KIND, VERSION)
    layout = about.pop("layout")
    if model is None:
        masks = unpack(tensors, layout, path)
    else:
        stored = {name: entry["shape"] for name, entry in layout.items()}
        weights, named = prunable(model, scope, exclude), parameters(model)
        if differing := container.differences(stored, named, required=weights):
            some = stored.keys() < weights.keys()
            hint = "; if only some weights have masks, pass scope= or exclude=" if some else ""
            where = f"{len(differing)} of the parameters differ: {shortened(differing)}"
            raise ValueError(f"{path} does not match the model; {where}{hint}")
        one = {name: {name: entry} for name, entry in layout.items()}  # at a time: of a sharded model, some rows stay
        masks = Masks({name: placed(unpack(tensors, one[name], path)[name], named[name]) for name in layout})
    masks.about = about
    return masks


def masks_digest(masks: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the masks, which does not depend on the file that holds them.

    >>> masks_digest({"w": torch.eye(2) > 0}) == masks_digest({"w": torch.eye(2) > 0.5})
    True
    """
    digest = sha256(fingerprint(masks).encode())
    for name in sorted(masks):
        digest.update(memoryview(masks[name].cpu().reshape(-1).view(torch.uint8).numpy()))  # type: ignore[arg-type]
    return digest.hexdigest()


def fingerprint(weights: Mapping[str, Any]) -> str:
    """Return a digest of names and shapes in any order: masks and the weights they belong to have the same.

    >>> fingerprint({"w": torch.zeros(2, 3)})[:8], fingerprint({"w": torch.zeros(3, 2)})[:8]
    ('481470a5', 'a91c8778')
    """
    shapes = {name: list(weight.shape) for name, weight in weights.items()}
    return sha256(json.dumps(shapes, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


# ---- encodings ----


def pack(masks: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Layout]:
    """Encode masks as byte tensors; also return the layout that `unpack` needs to decode them.

    The bytes of sharded masks are on the disk of the first process alone, and its memory holds one mask at a time.

    >>> pack({"w": torch.tensor([True, False, True])})
    ({'w': tensor([5], dtype=torch.uint8)}, {'w': {'shape': [3], 'encoding': 'bits', 'kept': 2}})
    """
    tensors, layout = {}, {}
    for name, mask in masks.items():
        encoding, data = encode(mask)
        tensors[name] = on_disk(data) if is_sharded(mask) else data
        layout[name] = {"shape": list(mask.shape), "encoding": encoding, "kept": count(mask)}
    return tensors, layout


def unpack(tensors: Mapping[str, Tensor], layout: Layout, path: container.Path) -> Masks:
    """Decode the masks that `pack` encoded, in their original order; a layout that does not fit them is an error.

    >>> dict(unpack(*pack({"w": torch.tensor([True, False])}), "file"))
    {'w': tensor([ True, False])}
    """
    try:
        total = sum(math.prod(entry["shape"]) for entry in layout.values())
        if total > 2**30 + 2**15 * size(tensors):  # the longest gap is 2**16 weights in 2 bytes, and the end has none
            raise ValueError(f"{size(tensors):,} bytes cannot stand for {total:,} weights")
        masks = Masks({name: decode(e["encoding"], tensors[name], e["shape"]) for name, e in layout.items()})
        if any(count(masks[name]) != entry["kept"] for name, entry in layout.items()):
            raise ValueError("they keep another number of weights than it says")
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path} has a header that does not fit its masks ({error}); make the file anew") from None
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
    return "bits", (padded.view(-1, 8) << SHIFTS).sum(1, dtype=torch.uint8)


def decode(encoding: str, data: Tensor, shape: Sequence[int]) -> Tensor:
    """Decode what `encode` encoded.

    >>> decode("gaps8", torch.tensor([1, 0], dtype=torch.uint8), (2, 2))
    tensor([[False,  True],
            [ True, False]])
    """
    count = math.prod(shape)
    if encoding == "bits":
        return (data[:, None] >> SHIFTS).bitwise_and_(1).view(torch.bool).view(-1)[:count].reshape(tuple(shape))
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
