"""Headers: what a file says about itself, parsed once into a record whose types are checked."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, TypeVar

from ..messages import shown

T = TypeVar("T")

KINDS: dict[str, tuple[Any, str]] = {  # what JSON can hold, by the annotations of fields
    "str": (str, "a text"),
    "int": (int, "a whole number"),
    "float": ((int, float), "a number"),
    "bool": (bool, "true or false"),
    "list": (list, "a list"),
    "dict": (dict, "a table"),
}


def record(kind: type[T], values: Any, what: str, others: bool = False) -> T:
    """Make a dataclass from plain values; a missing, unknown or mistyped one is a `ValueError` about `what`.

    With `others`, there may be more values than the dataclass has fields.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Point:
    ...     x: int
    ...     name: str | None = None
    >>> record(Point, {"x": 3}, "the point")
    Point(x=3, name=None)
    >>> record(Point, {"x": "3"}, "the point")
    Traceback (most recent call last):
    ValueError: the point is damaged: x '3' is not a whole number
    """
    try:
        known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
        for name in typed("it", values, "dict[str, Any]"):
            if name not in known and not others:
                raise ValueError(f"it has an unknown entry {shown(name)}")
        for name, field in known.items():
            if name not in values and field.default is MISSING:
                raise ValueError(f"it has no {name}")
        given = {name: typed(name, values[name], str(field.type)) for name, field in known.items() if name in values}
        return kind(**given)
    except ValueError as error:
        raise ValueError(f"{what} is damaged: {error}") from None


def typed(name: str, value: Any, annotation: str) -> Any:
    """Return the value if it has the annotated type, otherwise raise a `ValueError`.

    A float may be a whole number, and true and false are no numbers.

    >>> typed("seed", 3, "int | None"), typed("tied", {"a": "b"}, "dict[str, str]")
    (3, {'a': 'b'})
    """
    kind, _, optional = annotation.partition(" | ")
    if value is None and optional:
        return None
    outer, _, inner = kind.removesuffix("]").partition("[")
    accepted, words = KINDS[outer]
    if not isinstance(value, accepted) or (outer != "bool" and isinstance(value, bool)):
        raise ValueError(f"{name} {shown(value)} is not {words}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:  # tensors and tables hold 64 bits
        raise ValueError(f"{name} {shown(value)} is too large")
    inner = inner.rpartition(", ")[2]
    if inner not in ("", "Any"):
        for item in value.values() if outer == "dict" else value:
            typed(f"the entry of {name}", item, inner)
    return value
