"""Mask files: compact masks, with a header that says how they were made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from ..masks import Masks, size
from ..messages import shortened, shown
from ..running.shards import by_one
from ..scope import Pattern, parameters, placed, prunable
from ..version import __version__
from . import container
from .encoding import Layer, check_size, decoded, layers, pack
from .header import record

KIND, VERSION = "barebones-masks", 1


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a mask file says about its masks, checked; every other entry of its `about` belongs to the user."""

    prunable: int
    kept: int
    sparsity: float
    fingerprint: str
    library: str
    experiment: dict[str, Any] | None = None  # the settings of the run that found the masks
    account: dict[str, Any] | None = None  # the fields of `Counts`
    collapsed: list[str] | None = None  # layers that disconnect the network
    seconds: float | None = None  # that it took to find the masks


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What a run counts of its masks and stores with them."""

    prunable: int
    kept: int
    effective: int | None = None
    sparsity: float
    effective_sparsity: float | None = None
    flops_dense: int | None = None
    flops_effective: int | None = None
    flops_shrunk: int | None = None
    disconnected_outputs: int | None = None
    outputs: int | None = None
    not_followed: str | None = None  # why there are no effective weights and no FLOPs


NUMBERS = tuple(field.name for field in fields(Counts) if field.name != "not_followed")


def save_masks(masks: Mapping[str, Tensor], path: container.Path, **about: Any) -> None:
    """Save masks as a safetensors file: one bit per weight, or the gaps between kept weights if that is smaller.

    The header also holds the number of weights, a fingerprint of their names and shapes, the version of the library,
    and `about`: how the masks were made (method, rounds, seed, ...), in values that JSON can represent. `sparsity` is
    computed unless given, and must fit the masks. `experiment`, `account`, `collapsed` and `seconds` must be as a run
    writes them (see `Header`). The file is written atomically.

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
    header = {"sparsity": (total - kept) / max(total, 1), **about, **counts}
    _check(header, layers(tensors, layout))
    by_one(masks.values(), lambda: container.write(path, tensors, KIND, VERSION, header | {"layout": layout}))


def load_masks(
    path: container.Path, model: nn.Module | None = None, scope: Pattern | None = None, exclude: Pattern = ()
) -> tuple[Masks, dict[str, Any]]:
    """Return the masks of a file and its `about`; with a model, the masks are on the devices of its parameters.

    If the model does not match, a `ValueError` says where: every mask needs a parameter of the same name and shape,
    and every prunable weight needs a mask. `scope` and `exclude` define what is prunable, as for `prune`. Without a
    model, a file may not need far more memory than it has bytes (see `encoding.check_size`).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_masks({"weight": torch.eye(2) > 0}, f"{folder}/masks")
    ...     masks, about = load_masks(f"{folder}/masks", nn.Linear(2, 2))
    >>> about["prunable"], about["kept"]
    (4, 2)
    """
    tensors, about = container.read(path, KIND, VERSION)
    with container.named(path):
        stored = layers(tensors, about.pop("layout", None))
        about |= _check(about, stored)
        if model is None:
            check_size(sum(layer.total for layer in stored.values()), size(tensors))
            return decoded(tensors, stored), about
    weights, named = prunable(model, scope, exclude), parameters(model)
    if differing := container.differences(stored, named, required=weights):
        hint = "; if only some weights have masks, pass scope= or exclude=" if stored.keys() < weights.keys() else ""
        raise ValueError(
            f"{path} does not match the model; {len(differing)} of the parameters differ: {shortened(differing)}{hint}"
        )
    with container.named(path):  # one layer at a time: of a sharded model, this process keeps some rows
        masks = {name: placed(decoded(tensors, {name: layer})[name], named[name]) for name, layer in stored.items()}
    return Masks(masks), about


def check_counts(prunable: int, kept: int, sparsity: float, stored: Mapping[str, Layer]) -> None:
    """Check the counts in a header against the masks; the sparsity may be any that rounds to the kept weights."""
    for name, value, actual in (
        ("prunable", prunable, sum(layer.total for layer in stored.values())),
        ("kept", kept, sum(layer.kept for layer in stored.values())),
    ):
        if value != actual:
            raise ValueError(f"its header says {name} {shown(value)}, but its masks have {actual}")
    if not 0 <= sparsity <= 1 or abs((1 - sparsity) * prunable - kept) > 0.5 + 1e-9 * prunable:
        raise ValueError(f"sparsity {shown(sparsity)} does not fit masks that keep {kept:,} of {prunable:,} weights")


def _check(about: Mapping[str, Any], stored: Mapping[str, Layer]) -> dict[str, Any]:
    """Parse the entries of `about` that the library reads, check them against the masks, and return them."""
    header = record(Header, about, "its header", others=True)
    check_counts(header.prunable, header.kept, header.sparsity, stored)
    if (header.seconds or 0) < 0:
        raise ValueError(f"its header is damaged: seconds {shown(header.seconds)} is negative")
    if header.fingerprint != fingerprint(stored):
        raise ValueError("its fingerprint is not that of the names and shapes of its masks")
    return {} if header.account is None else {"account": asdict(_account(header.account, stored))}


def _account(values: dict[str, Any], stored: Mapping[str, Layer]) -> Counts:
    """Parse the account of a run, and check it against the masks as far as they tell."""
    counts = record(Counts, values, "its account")
    check_counts(counts.prunable, counts.kept, counts.sparsity, stored)
    effective, sparsity = counts.effective, counts.effective_sparsity
    if effective is None or sparsity is None:
        fits = effective is sparsity
    else:
        fits = effective <= counts.kept and abs((1 - sparsity) * counts.prunable - effective) < 0.5
    if not fits:
        raise ValueError(
            f"its account has {shown(effective)} effective weights, and sparsity {shown(sparsity)} of them"
        )
    lost, outputs = counts.disconnected_outputs, counts.outputs
    if (lost is None) != (outputs is None) or (lost or 0) > (outputs or 0):
        raise ValueError(f"its account has {shown(lost)} disconnected outputs of {shown(outputs)}")
    if any(value < 0 for value in asdict(counts).values() if isinstance(value, int | float)):
        raise ValueError("its account is damaged: a count is negative")
    return counts


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
