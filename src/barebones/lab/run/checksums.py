"""Checksums: every file of a run says which run it belongs to, and carries a digest that its reader verifies."""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from ...files.container import atomically
from ...messages import printable

RUN, DIGEST = "run", "digest"  # the entries of a JSON file that say where it belongs, and what it held


def stamp(run: str, file: str) -> str:
    """Return what a file says about itself: the name of its run's folder, and its own name."""
    return f"{run}/{file}"


def check_stamp(path: Path, found: Any, run: str) -> None:
    """Raise a `ValueError` unless the stamp in a file says that it is the file of this name of this run.

    >>> check_stamp(Path("mask"), "digits-snip-s1/mask", "digits-snip-s0")
    Traceback (most recent call last):
    ValueError: mask belongs to another run, digits-snip-s1
    """
    owner, _, name = str(found).rpartition("/")
    if not owner:
        raise ValueError(f"{path} does not say which run it belongs to")
    if owner != run:
        raise ValueError(f"{path} belongs to another run, {printable(owner)}")
    if name != path.name:
        raise ValueError(f"{path} is another file of this run, {printable(name)}")


def write(path: Path, content: Mapping[str, Any], run: str) -> None:
    """Write a JSON file of a run, atomically, with its stamp and the digest of all that it says."""
    whole = {**content, RUN: stamp(run, path.name)}
    text = json.dumps({**whole, DIGEST: _digest(whole)}, indent=2, allow_nan=False)
    with atomically(path) as file:
        file.write((text + "\n").encode())


def read(path: Path, run: str | None = None) -> dict[str, Any]:
    """Read a JSON file of a run, which must be as it was written; with `run`, it must belong to this run."""
    try:
        content = json.loads(path.read_bytes())
        if content.pop(DIGEST, "") != _digest(content):
            raise ValueError("its digest does not match its content")
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error})") from None
    found = content.pop(RUN, None)
    if run is not None:
        check_stamp(path, found, run)
    return content


def _digest(content: Any) -> str:
    """Return the SHA-256 of a value as canonical JSON, whatever the order of its keys."""
    return sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
