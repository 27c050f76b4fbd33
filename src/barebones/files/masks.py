"""Mask files: compact masks, with a header that says how they were made."""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from ..masks import Masks, check_masks, size
from ..messages import shortened
from ..running.shards import by_one
from ..scope import Pattern, parameters, placed, prunable
from ..version import __version__
from . import container
from .encoding import pack, unpack

KIND, VERSION = "barebones-masks", 1


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
        masks = unpack(tensors, layout)
    else:
        stored = {name: entry["shape"] for name, entry in layout.items()}
        weights, named = prunable(model, scope, exclude), parameters(model)
        if differing := container.differences(stored, named, required=weights):
            some = stored.keys() < weights.keys()
            hint = "; if only some weights have masks, pass scope= or exclude=" if some else ""
            where = f"{len(differing)} of the parameters differ: {shortened(differing)}"
            raise ValueError(f"{path} does not match the model; {where}{hint}")
        one = {name: {name: entry} for name, entry in layout.items()}  # at a time: of a sharded model, some rows stay
        masks = Masks({name: placed(unpack(tensors, one[name])[name], named[name]) for name in layout})
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
