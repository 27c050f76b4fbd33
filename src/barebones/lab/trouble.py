"""Trouble: what to tell about masks that cut a network, or that leave layers without a weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..words import empty_layers, shortened

WARN, RAISE = ON_COLLAPSE = ("warn", "raise")


def sentences(about: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the masks of a run, from its result or from what its mask file says."""
    if collapsed := about.get("collapsed"):
        yield f"No signal passes from input to output: {shortened(collapsed)} cut the network."
    if empty := about.get("empty"):
        yield f"{empty_layers(empty, about['layers'])}."


def in_short(about: Mapping[str, Any]) -> str:
    """Say the same in a few words, for a table.

    >>> in_short({"collapsed": ["a"], "empty": ["a", "b"], "layers": 3}), in_short({"empty": ["a"], "layers": 3})
    ('collapsed, 2 of 3 layers empty', '1 of 3 layers empty')
    """
    empty = about.get("empty")
    emptied = f"{len(empty)} of {about['layers']} layers empty" if empty else ""
    return ", ".join(filter(None, ["collapsed" if about.get("collapsed") else "", emptied]))


def check(about: Mapping[str, Any], on_collapse: str) -> None:
    """Raise a `ValueError` if the masks cut the network and that is to stop the run, before epochs are spent."""
    if on_collapse != RAISE:
        return
    unknown = (about.get("account") or {}).get("not_followed")
    problem = f"Whether a signal passes from input to output is not known: {unknown}" if unknown else ""
    if about.get("collapsed"):
        problem = next(sentences(about)).rstrip(".")
    if problem:
        raise ValueError(f"{problem}; lower the sparsity or prune in more rounds, or train it with --on-collapse warn")
