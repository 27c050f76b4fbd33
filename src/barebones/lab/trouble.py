"""Trouble: what to tell about masks that cut a network, leave layers without a weight or silence outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..words import empty_layers, shortened, silent_outputs

WARN, RAISE = ON_COLLAPSE = ("warn", "raise")


def sentences(about: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the masks of a run, from its result or from what its mask file says."""
    if collapsed := about.get("collapsed"):
        yield f"No signal passes from input to output: {shortened(collapsed)} cut the network."
    elif silent := silent_outputs(*_silent(about)):
        yield f"{silent.capitalize()}."
    if empty := about.get("empty"):
        yield f"{empty_layers(empty, about['layers'])}."


def in_short(about: Mapping[str, Any]) -> str:
    """Say the same in a few words, for a table.

    >>> in_short({"collapsed": ["a"], "empty": ["a", "b"], "layers": 3}), in_short({"empty": ["a"], "layers": 3})
    ('collapsed, 2 of 3 layers empty', '1 of 3 layers empty')
    >>> in_short({"silent_outputs": 6, "outputs": 10})
    '6 of 10 outputs silent'
    """
    silent, outputs = _silent(about)
    unheard = f"{silent} of {outputs} outputs silent" if silent else ""
    empty = about.get("empty")
    emptied = f"{len(empty)} of {about['layers']} layers empty" if empty else ""
    return ", ".join(filter(None, ["collapsed" if about.get("collapsed") else unheard, emptied]))


def _silent(about: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return how many outputs no signal reaches, and how many there are; None if older versions did not count them."""
    counts = about.get("account") or about
    return counts.get("silent_outputs"), counts.get("outputs")


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
