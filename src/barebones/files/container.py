"""Files: written whole or not at all, and read only where nothing in them is damaged."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import Any, BinaryIO

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ..version import __version__

Path = str | os.PathLike[str]

LONGEST = 100_000_000  # bytes of header; safetensors reads no longer one
BLANK = "0" * 64  # stands for the checksum while it is computed


@contextmanager
def atomically(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` at the end, or never: any exception leaves `path` as it was.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomically(f"{folder}/note") as file:
    ...         _ = file.write(b"whole")
    ...         before = os.path.exists(f"{folder}/note")
    ...     before, os.listdir(folder)
    (False, ['note'])
    """
    name = os.fspath(path)
    target = os.path.realpath(path)  # a link stays a link
    if os.path.exists(target) and not os.path.isfile(target):
        raise ValueError(f"{os.fspath(path)} is a folder or a device; name a file to write")
    folder = os.path.dirname(target)
    temporary = os.path.join(folder, f".{secrets.token_hex(8)}.tmp")
    try:
        try:
            file = open(temporary, "xb")  # noqa: SIM115 (closed below, before it is renamed)
        except OSError as error:
            raise OSError(error.errno, f"cannot write into {folder} ({error.strerror})", os.fspath(path)) from None
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None:  # a full disk, say, which names nothing
            raise OSError(error.errno, f"cannot write ({error.strerror}); what was there is untouched", name) from None
        raise
    with suppress(OSError):  # not every system can open or sync a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write(path: Path, tensors: Mapping[str, Tensor], kind: str, version: int, about: Mapping[str, Any]) -> None:
    """Write tensors as a safetensors file of this kind and version, atomically and with a checksum of all its bytes.

    `about` may hold whatever JSON can. Equal content makes equal bytes.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(f"{folder}/a", {"w": torch.ones(2)}, "example", 1, {"seed": 0})
    ...     read(f"{folder}/a", "example", 1)
    ({'w': tensor([1., 1.])}, {'seed': 0})
    """
    blob = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    end = 8 + int.from_bytes(blob[:8], "little")
    stated = {"format": kind, "version": str(version), "library": __version__, "about": _json(about), "sha256": BLANK}
    # safetensors writes metadata in random order, so the header is put together here
    header = {"__metadata__": stated, **json.loads(blob[8:end])}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    start, data = len(text).to_bytes(8, "little"), memoryview(blob)[end:]
    text = text.replace(_seal(BLANK), _seal(_checksum(start, text, data)), 1)
    with atomically(path) as file:
        for part in (start, text, data):
            file.write(part)


def read(path: Path, kind: str, version: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the `about` of a file that `write` made; a file that is anything else is a `ValueError`.

    Not a safetensors file, truncated, damaged, of another kind, or of a newer version than this one: the message
    says which, and names the file.

    >>> read(__file__, "example", 1)
    Traceback (most recent call last):
    ValueError: ...container.py is not a safetensors file
    """
    name = os.fspath(path)
    if os.path.isdir(path):
        raise ValueError(f"{name} is a folder, not a {kind} file")
    with open(path, "rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        text = file.read(length) if length <= LONGEST else b""
        if len(start) < 8 or length > LONGEST or text[:1] not in (b"{", b""):
            raise ValueError(f"{name} is {'not a safetensors file' if start else 'empty'}")
        if len(text) < length:
            raise ValueError(f"{name} is truncated; it ends within its header")
        try:
            stated = json.loads(text).get("__metadata__", {})
            found = stated.get("format")
        except (ValueError, AttributeError, RecursionError):
            raise ValueError(f"{name} is not a safetensors file, or its header is damaged") from None
        if found != kind:
            raise ValueError(f"{name} is a safetensors file, but not one of {kind} (its format is {found!r})")
        if (number := str(stated.get("version"))).isdecimal() and int(number) > version:
            raise ValueError(
                f"{name} is a {kind} file of version {number}, and barebones {__version__} reads up to version "
                f"{version}; it was written by barebones {stated.get('library')}, so upgrade to that"
            )
        file.seek(0)
        blob = file.read()
    checksum = str(stated.get("sha256"))
    if _checksum(start, text.replace(_seal(checksum), _seal(BLANK), 1), memoryview(blob)[8 + length :]) != checksum:
        raise ValueError(f"{name} is truncated or damaged; its checksum does not match its content")
    try:
        return load(blob), dict(json.loads(stated["about"]))
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not a {kind} file as barebones writes it ({error!r})") from None


def _seal(checksum: str) -> bytes:
    """The checksum as it stands in a header; inside any other string there the quotes would be escaped."""
    return f'"sha256":"{checksum}"'.encode()


def _checksum(start: bytes, text: bytes, data: memoryview) -> str:
    digest = sha256(start + text)
    digest.update(data)
    return digest.hexdigest()


def _json(about: Mapping[str, Any]) -> str:
    for key, value in about.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{key}={value!r} cannot be stored: {error}; pass numbers, text, lists or dicts") from None
    return json.dumps(about, allow_nan=False, separators=(",", ":"))
