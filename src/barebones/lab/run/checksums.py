"""Checksums: every file of a run says which run it belongs to, and carries a digest that readers verify."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from ...files.header import typed
from ...words import printable

SEAL = "seal"  # the field of a JSON object that holds its seal
STAMP = {"run": "str", "initial": "str | None", "file": "str"}


@dataclass(frozen=True)
class Identity:
    """The run that a file belongs to."""

    run: str  # the name of its folder, which ends with the hash of all its settings
    initial: str | None  # the digest of its initial weights, and of data of the user's own; None in old records

    def stamp(self, file: str) -> dict[str, Any]:
        """Return what a file of this name says about the run it belongs to."""
        return {"run": self.run, "initial": self.initial, "file": file}

    def problem(self, stamp: Any, file: str) -> str:
        """Say why a file with this stamp is not the file of this name of this run; an empty string if it is.

        >>> Identity("digits-snip-s0", "01").problem({"run": "digits-snip-s1", "initial": "02", "file": "mask"}, "mask")
        'belongs to another run, digits-snip-s1'
        """
        if misfit(stamp, STAMP):
            return "does not say which run it belongs to"
        if stamp["run"] != self.run:
            return f"belongs to another run, {printable(stamp['run'])}"
        if stamp["file"] != file:
            return f"is another file of this run, {printable(stamp['file'])}"
        if self.initial != stamp["initial"] and None not in (self.initial, stamp["initial"]):
            found = printable(stamp["initial"])
            return f"belongs to a run from other initial weights or data ({found}, not {self.initial})"
        return ""


def digest(content: Any) -> str:
    """Return the SHA-256 of a value as canonical JSON, which depends neither on the order of keys nor on spaces.

    >>> digest({"a": 1, "b": [0.5]}) == digest({"b": [0.5], "a": 1})
    True
    """
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return sha256(text.encode()).hexdigest()


def sealed(content: Mapping[str, Any], stamp: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with a seal: the stamp, and the digest of the content and the stamp."""
    plain = json.loads(json.dumps(content, allow_nan=False))
    return {**plain, SEAL: {**stamp, "digest": digest([plain, stamp])}}


def unsealed(value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the content and the stamp of a sealed object; raise a `ValueError` if it has changed.

    >>> unsealed(sealed({"top1": 0.9}, {"file": "result.json"}))
    ({'top1': 0.9}, {'file': 'result.json'})
    >>> unsealed(sealed({"top1": 0.9}, {"file": "result.json"}) | {"top1": 0.8})
    Traceback (most recent call last):
    ValueError: its seal does not match its content
    """
    if not isinstance(value, dict):
        raise ValueError("it holds no JSON object")
    if not isinstance(value.get(SEAL), dict):
        raise ValueError("it has no seal, like files of older versions")
    content = {name: inner for name, inner in value.items() if name != SEAL}
    stamp = {name: inner for name, inner in value[SEAL].items() if name != "digest"}
    if digest([content, stamp]) != value[SEAL].get("digest"):
        raise ValueError("its seal does not match its content")
    return content, stamp


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
