"""Runs of every method on one small network, for the tests of pruning."""

import functools
from dataclasses import replace
from typing import Any

import torch
from references import equal, few, pairs, tiny
from torch import nn

from barebones import Method, Probe, Round, rounds

BATCHES = pairs(5)
KEEP = 20  # of the 114 prunable weights
FORCE = few("force")


def run(
    method: str | Method = FORCE,
    keep: int = KEEP,
    model: nn.Module | None = None,
    batches: Any = BATCHES,
    after: Round | None = None,
    changes: dict[str, Any] | None = None,
    **options: Any,
) -> list[Round]:
    """Return all rounds of a method, or those after a round; `changes` are to the method, `options` of the probe."""
    method = replace(few(method) if isinstance(method, str) else method, **changes or {})
    return list(rounds(Probe(model or tiny(), batches, **options), method, keep, after))


def without_norms() -> nn.Sequential:
    """Return the small network without its batch-norms."""
    return nn.Sequential(*(layer for layer in tiny() if not isinstance(layer, nn.BatchNorm2d)))


@functools.cache
def steps_of(name: str) -> list[Round]:
    """Return the rounds of a method, computed once for all tests that only read them."""
    return run(name)


def same(a: list[Round], b: list[Round]) -> bool:
    """Return whether two runs have the same masks and numbers, bit for bit, and read the same batches."""
    return len(a) == len(b) and all(
        equal(x.masks, y.masks)
        and (x.index, x.batches_digest) == (y.index, y.batches_digest)
        and torch.equal(x.integers, y.integers)
        and torch.equal(x.floats.nan_to_num(), y.floats.nan_to_num())
        for x, y in zip(a, b, strict=True)
    )
