"""Mask files: compact masks, with a header that says how they were made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from ..masks import Masks, size
from ..scope import Pattern, parameters, prunable
from ..version import __version__
from ..words import shortened
from . import container
from .encoding import pack, unpack

KIND, VERSION = "barebones-masks", 1


def save_masks(masks: Mapping[str, Tensor], path: container.Path, **about: Any) -> None:
    """Save masks as a safetensors file: one bit per weight, or the gaps between kept weights if that is smaller.

    The header also holds the number of weights, a fingerprint of their names and shapes, the version of the library,
    and `about`: how the masks were made (method, rounds, seed, ...), in values that JSON can represent. `sparsity` is
    computed unless given. The file is written atomically.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_masks({"w": torch.eye(2) > 0}, f"{folder}/masks", method="force")
    ...     masks, about = load_masks(f"{folder}/masks")
    >>> masks["w"].tolist(), about["method"], about["sparsity"], about["kept"]
    ([[True, False], [False, True]], 'force', 0.5, 2)
    """
    tensors, layout = pack(masks)
    total, kept = size(masks), sum(entry["kept"] for entry in layout.values())
    counts = {"prunable": total, "kept": kept, "fingerprint": fingerprint(masks), "library": __version__}
    header = {"sparsity": (total - kept) / max(total, 1), **about, **counts, "layout": layout}
    container.write(path, tensors, KIND, VERSION, header)


def load_masks(
    path: container.Path, model: nn.Module | None = None, scope: Pattern | None = None, exclude: Pattern = ()
) -> tuple[Masks, dict[str, Any]]:
    """Return the masks of a file and its `about`; with a model, the masks are on the devices of its parameters.

    If the model does not match, a `ValueError` says where: every mask needs a parameter of the same name and shape,
    and every prunable weight needs a mask. `scope` and `exclude` define what is prunable, as for `prune`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_masks({"weight": torch.eye(2) > 0}, f"{folder}/masks")
    ...     masks, about = load_masks(f"{folder}/masks", nn.Linear(2, 2))
    >>> about["prunable"], about["kept"]
    (4, 2)
    """
    tensors, about = container.read(path, KIND, VERSION)
    try:
        masks = unpack(tensors, about.pop("layout", None))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if model is None:
        return masks, about
    weights, named = prunable(model, scope, exclude), parameters(model)
    if differing := container.differences(masks, named, required=weights):
        hint = "; if only some weights have masks, pass scope= or exclude=" if masks.keys() < weights.keys() else ""
        raise ValueError(
            f"{path} does not match the model; {len(differing)} of the parameters differ: {shortened(differing)}{hint}"
        )
    return Masks({name: mask.to(named[name].device) for name, mask in masks.items()}), about


def masks_digest(masks: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the masks, which does not depend on the file that holds them.

    >>> masks_digest({"w": torch.eye(2) > 0}) == masks_digest({"w": torch.eye(2) > 0.5})
    True
    """
    digest = sha256(fingerprint(masks).encode())
    for name in sorted(masks):
        digest.update(masks[name].cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """Return a digest of names and shapes in any order: masks and the weights they belong to have the same.

    >>> fingerprint({"w": torch.zeros(2, 3)})[:8], fingerprint({"w": torch.zeros(3, 2)})[:8]
    ('481470a5', 'a91c8778')
    """
    shapes = {name: list(weight.shape) for name, weight in weights.items()}
    return sha256(json.dumps(shapes, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
