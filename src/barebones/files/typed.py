"""Types of plain values, as JSON, TOML and headers of files hold them."""

from typing import Any

from ..messages import shown

KINDS: dict[str, tuple[Any, str]] = {  # what JSON can hold, by the annotations of fields
    "str": (str, "a text"),
    "int": (int, "a whole number"),
    "float": ((int, float), "a number"),
    "bool": (bool, "true or false"),
    "list": (list, "a list"),
    "dict": (dict, "a table"),
}


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
