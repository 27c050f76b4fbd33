"""Densities: how many weights each layer keeps, by a law of its own. Any criterion then ranks within the layers."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsFloat

from torch import Tensor

from ..messages import shortened, unknown
from ..running.shards import count

Shape = Sequence[int]
Densities = str | Mapping[str, float] | Mapping[str, Tensor]  # a law, the share that each layer keeps, or masks
LAWS: dict[str, Callable[[Shape], float]] = {  # how large a layer's part of all kept weights is
    "uniform": math.prod,
    "erk": lambda shape: float(sum(shape)) or 1.0,  # Erdős-Rényi-kernel: a weight's chance is sum / product
}
TINY = 1e-9  # the part of a layer that is to keep nothing in the end: it takes weights when all others are full


def check(densities: object) -> None:
    if isinstance(densities, str) and densities not in LAWS:
        raise ValueError(unknown("law of densities", densities, LAWS))
    if not isinstance(densities, str | Mapping | None):
        raise ValueError(f"densities={densities!r}: choose {' or '.join(LAWS)}, or pass masks or a dict by layer")


def layer_counts(
    densities: Densities, shapes: Mapping[str, Shape], counts: Sequence[int], at_least: int = 0
) -> list[dict[str, int]]:
    """Return how many weights each layer keeps, for each of these total counts, which never grow.

    A layer's count is in proportion to its part, but at least `at_least` and at most what it kept before; the others
    share the difference. No layer's count ever grows. The counts add up to the totals exactly.

    >>> layer_counts("erk", {"small": (2, 2), "large": (100, 100)}, [1000])
    [{'small': 4, 'large': 996}]
    >>> layer_counts({"a": 0.5, "b": 0.1}, {"a": (10,), "b": (10,)}, [12, 6])
    [{'a': 10, 'b': 2}, {'a': 5, 'b': 1}]
    """
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    if isinstance(densities, str):
        parts = {name: LAWS[densities](shape) for name, shape in shapes.items()}
    else:
        parts = _given(densities, sizes, counts[-1])
    parts = {name: part or TINY * sizes[name] for name, part in parts.items()}
    most, least = sizes, {name: min(at_least, size) for name, size in sizes.items()}
    taken = []
    for total in counts:
        exact = _shared(total, parts, least, most)
        most = {name: int(value) for name, value in exact.items()}
        open_layers = [name for name, value in exact.items() if not isinstance(value, int)]
        rest = sorted(open_layers, key=lambda name: most[name] - exact[name])
        for name in rest[: total - sum(most.values())]:
            most[name] += 1
        taken.append(most)
    return taken


def _given(densities: Mapping[str, float] | Mapping[str, Tensor], sizes: dict[str, int], keep: int) -> dict[str, float]:
    """Return what the user wants each layer to keep, if it adds up to `keep`."""
    if wrong := sorted(densities.keys() ^ sizes.keys()):
        raise ValueError(f"densities= must name every prunable layer and no other; check {shortened(wrong)}")
    masks = {n: d for n, d in densities.items() if isinstance(d, Tensor) and (d.dim() or not d.is_floating_point())}
    shares: dict[str, Any] = {**densities, **{name: count(mask) / max(mask.numel(), 1) for name, mask in masks.items()}}
    if wrong := [n for n, s in shares.items() if not isinstance(s, SupportsFloat) or not 0 <= float(s) <= 1]:
        raise ValueError(f"densities= are masks, or shares of a layer's weights from 0 to 1; check {shortened(wrong)}")
    wanted = {name: float(shares[name]) * size for name, size in sizes.items()}
    total, kept = sum(sizes.values()), sum(wanted.values())
    if abs(kept - keep) > len(sizes) / 2:
        raise ValueError(
            f"these densities keep {kept:,.0f} of {total:,} weights, but the sparsity keeps {keep:,}; "
            f"pass sparsity={1 - kept / total:.6g}, or other densities"
        )
    return wanted


def _shared(
    total: int, parts: Mapping[str, float], least: Mapping[str, int], most: Mapping[str, int]
) -> dict[str, float]:
    """Share `total` out in proportion to the parts. What is at its minimum or maximum is a whole number."""
    fixed: dict[str, float] = {}
    while True:
        free = [name for name in parts if name not in fixed]
        unit = (total - sum(fixed.values())) / sum(parts[name] for name in free) if free else 0.0
        wanted = {name: unit * parts[name] for name in free}
        over = {name: most[name] for name in free if wanted[name] >= most[name]}
        under = {name: least[name] for name in free if wanted[name] < least[name]}
        if not over and not under:
            return {name: fixed.get(name, wanted.get(name, 0.0)) for name in parts}
        excess = sum(wanted[name] - most[name] for name in over)
        lack = sum(least[name] - wanted[name] for name in under)
        fixed |= over if over and excess >= lack else under
