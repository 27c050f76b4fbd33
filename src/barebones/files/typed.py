"""Types of plain values, as JSON and TOML hold them."""

from typing import Any

from ..messages import shown

KINDS: dict[str, tuple[Any, str]] = {  # by the annotations of fields
    "str": (str, "a text"),
    "int": (int, "a whole number"),
    "float": ((int, float), "a number"),
    "bool": (bool, "true or false"),
}


def typed(name: str, value: Any, annotation: str) -> Any:
    """Return the value if it has the annotated type (a float may be a whole number), else raise a `ValueError`.

    >>> typed("seed", 3, "int | None"), typed("init", None, "str | None")
    (3, None)
    """
    kind, _, optional = annotation.partition(" | ")
    if value is None and optional:
        return None
    accepted, words = KINDS[kind]
    if not isinstance(value, accepted) or (kind != "bool" and isinstance(value, bool)):
        raise ValueError(f"{name} {shown(value)} is not {words}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:  # tensors and tables hold 64 bits
        raise ValueError(f"{name} {shown(value)} is too large")
    return value
