"""Looks: the label, colour and marker of each method, the same in every plot and on every page."""

from __future__ import annotations

from typing import NamedTuple

from ...pruning.controls import CONTROLS
from ...pruning.methods import GREY, METHODS
from .experiment import DENSE, FILE


class Look(NamedTuple):
    """How a method is shown."""

    label: str
    colour: str
    marker: str  # one of Matplotlib's


LAB_METHODS = {  # the two "methods" of experiments that have no row in METHODS, because they do not prune
    DENSE: Look("Dense", "#000000", "o"),
    FILE: Look("Mask file", "#999999", "P"),
}


def look(method: str) -> Look:
    """Return the label, colour and marker of a method's row; a method without a row is grey, under its name.

    >>> look("iter-snip"), look("dense").label, look("not-registered").label
    (Look(label='Iter SNIP', colour='#0072B2', marker='s'), 'Dense', 'not-registered')
    """
    if method in LAB_METHODS:
        return LAB_METHODS[method]
    row = METHODS.get(method)
    return Look(row.label or method, row.colour, row.marker) if row else Look(method, GREY, ".")


def titled(name: str, control: str) -> str:
    """Return the name of a method with what a control did to it.

    >>> titled("force", "shuffle"), titled("FORCE", "none")
    ('force, shuffled', 'FORCE')
    """
    return ", ".join(part for part in (name, CONTROLS.get(control, control)) if part)


def looks() -> dict[str, Look]:
    """Return how to show every method that is known now, including those that were registered at run time."""
    return {method: look(method) for method in (*METHODS, *LAB_METHODS)}
