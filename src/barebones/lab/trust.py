"""Trust: code that a file names is imported only if the user names the same code, or trusts the file."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from pathlib import Path

from ..imports import is_code
from ..words import printable


def check_trusted(
    code: str,
    source: Path | str,
    named: Collection[str | None] = (),
    trust: bool = False,
    option: str = "--model",
) -> None:
    """Raise a `ValueError` if a file names a network or data set that is code, unless it is in `named` or trusted.

    To use it is to import and run whatever the file names, so this comes before it.

    >>> check_trusted("vgg19", "mask"), check_trusted("helpers:net", "mask", named=["helpers:net"])
    (None, None)
    >>> check_trusted("helpers:net", "mask")
    Traceback (most recent call last):
    ValueError: mask asks to import and run helpers:net; if you trust that code, pass --model helpers:net, or --trust
    to run whatever the file names
    """
    if is_code(code) and code not in named and not trust:
        shown = printable(code)
        raise ValueError(
            f"{source} asks to import and run {shown}; if you trust that code, pass {option} {shlex.quote(shown)}, or "
            "--trust to run whatever the file names"
        )
