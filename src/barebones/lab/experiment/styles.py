"""Looks: the label, color and marker of each method, the same in every plot and on every page."""

from contextlib import suppress
from typing import Any, NamedTuple

from ...names import CONTROLS
from ...pruning.methods import GRAY, METHODS, Method
from .experiment import DENSE, FILE


class Look(NamedTuple):
    label: str
    color: str
    marker: str  # one of Matplotlib's


LOOKS = {  # of methods that have no row in METHODS: two that do not prune, and those of the runs that were read
    DENSE: Look("Dense", "#000000", "o"),
    FILE: Look("Mask file", "#999999", "P"),
}


def look(method: str) -> Look:
    """Return the label, color and marker of a method's row; a method without a row is gray, under its name.

    >>> look("iter-snip"), look("dense").label, look("not-registered").label
    (Look(label='Iter SNIP', color='#0072B2', marker='s'), 'Dense', 'not-registered')
    """
    if row := METHODS.get(method):
        return Look(row.label or method, row.color, row.marker)
    return LOOKS.get(method, Look(method, GRAY, "o"))


def remember(method: str, stored: Any) -> None:
    """Show a method that has no row here as a file says; what is no look is ignored."""
    with suppress(ValueError, TypeError):
        row = Method(METHODS["random"].criterion, **stored)  # which checks the values
        if method not in METHODS:
            LOOKS.setdefault(method, Look(str(row.label or method), row.color, row.marker))


def titled(name: str, control: str) -> str:
    """Return the name of a method with what a control did to it.

    >>> titled("force", "shuffle"), titled("FORCE", "none")
    ('force, shuffled', 'FORCE')
    """
    return ", ".join(part for part in (name, CONTROLS.get(control, control)) if part)


def looks() -> dict[str, Look]:
    """Return how to show every method that is known now, including those that were registered or read at run time."""
    return {method: look(method) for method in (*METHODS, *LOOKS)}
