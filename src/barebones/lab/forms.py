"""Forms: what the values of a JSON object must look like, as plain data."""

from __future__ import annotations

from typing import Any

from ..files.header import typed

# The annotation of a type, a dictionary of forms, or a tuple of None and a form. A dictionary's key with a question
# mark may be missing, and other keys may follow.
Form = Any


def misfit(value: Any, form: Form, name: str = "it") -> str:
    """Say which value does not have its form; return an empty string if all have it.

    >>> form = {"test": {"top1": "float"}, "best": (None, {"epoch": "int"}), "layers": "list[str]"}
    >>> misfit({"test": {"top1": 0.5}, "best": None, "layers": ["a"]}, form)
    ''
    >>> misfit({"test": {"top1": "high"}, "best": None, "layers": []}, form), misfit({"test": {}}, form)
    ("top1 'high' is not a number", 'test has no top1')
    """
    try:
        _check(value, form, name)
    except ValueError as error:
        return str(error)
    return ""


def _check(value: Any, form: Form, name: str) -> None:
    if isinstance(form, tuple):
        if value is not None:
            _check(value, form[1], name)
    elif isinstance(form, str):
        typed(name, value, form)
    else:
        typed(name, value, "dict[str, Any]")
        for word, inner in form.items():
            key = word.rstrip("?")
            if key not in value:
                if word != key:
                    continue
                raise ValueError(f"{name} has no {key}")
            _check(value[key], inner, key)
