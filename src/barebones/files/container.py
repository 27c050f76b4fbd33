"""The container of all our files: safetensors, written atomically, with a checksum that is verified on reading."""

import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from hashlib import sha256
from typing import Any, BinaryIO

import torch
from safetensors.torch import load, save
from torch import Tensor

from ..messages import printable, shape_of, shown
from ..version import __version__

Path = str | os.PathLike[str]

BLANK = "0" * 64  # stands in for the checksum while it is computed
_check: ContextVar[Callable[[], None]] = ContextVar("check", default=lambda: None)
_check_read: ContextVar[Callable[[dict[str, Any]], None]] = ContextVar("check_read", default=lambda about: None)


@contextmanager
def put_only_if(check: Callable[[], None]) -> Iterator[None]:
    """Call `check` before each file that is written within is put in place; if it raises, the old file stays."""
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


@contextmanager
def checked_by(check: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Call `check` with the `about` of each file that is read within, once its checksum is verified."""
    token = _check_read.set(check)
    try:
        yield
    finally:
        _check_read.reset(token)


@contextmanager
def atomically(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file for writing that replaces `path` at the end; after an exception `path` is unchanged.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomically(f"{folder}/note") as file:
    ...         _ = file.write(b"whole")
    ...         before = os.path.exists(f"{folder}/note")
    ...     before, os.listdir(folder)
    (False, ['note'])
    """
    name, check = os.fspath(path), _check.get()
    target = os.path.realpath(path)  # a symbolic link stays one; the file it points to is replaced
    if os.path.exists(target) and not os.path.isfile(target):
        raise ValueError(f"{name} is a folder or a device; give the name of a file to write")
    folder = os.path.dirname(target)
    temporary = os.path.join(folder, f".{secrets.token_hex(8)}.tmp")
    try:
        try:
            file = open(temporary, "xb")  # noqa: SIM115 (closed below, before it is renamed)
        except OSError as error:
            raise OSError(error.errno, f"cannot write into {folder} ({error.strerror})", name) from None
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        check()
        try:
            os.replace(temporary, target)
        except FileNotFoundError:
            check()  # whoever took the folder over has deleted the temporary file
            raise
    except BaseException as error:
        with suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None:  # for example a full disk: the error names no file
            old = "; the old file is unchanged" * os.path.exists(target)
            raise OSError(error.errno, f"cannot write ({error.strerror}){old}", name) from None
        raise
    with suppress(OSError):  # not every system can open and sync a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write(path: Path, tensors: Mapping[str, Tensor], kind: str, version: int, about: Mapping[str, Any]) -> None:
    """Write tensors as a safetensors file of this kind and version, atomically and with a checksum of all its bytes.

    Equal content gives equal bytes. Tensors are copied one by one.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(f"{folder}/a", {"w": torch.ones(2)}, "example", 1, {"seed": 0})
    ...     read(f"{folder}/a", "example", 1)
    ({'w': tensor([1., 1.])}, {'seed': 0})
    """
    metadata = {"format": kind, "version": str(version), "library": __version__, "about": _json(about), "sha256": BLANK}
    blob = save({name: torch.empty(0, dtype=tensor.dtype, device="cpu") for name, tensor in tensors.items()})
    entries, end = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")]), 0  # types and order, as it wants them
    for name, entry in entries.items():
        begin, end = end, end + tensors[name].nbytes
        entry |= {"shape": list(tensors[name].shape), "data_offsets": [begin, end]}
    text = json.dumps({"__metadata__": metadata, **entries}, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    start = len(text).to_bytes(8, "little")
    digest = sha256(start + text)
    with atomically(path) as file:
        file.write(start + text)
        for name in entries:
            row = tensors[name].detach().cpu().contiguous().reshape(-1)
            data = memoryview(row.view(torch.uint8).numpy())  # type: ignore[arg-type]
            digest.update(data)
            file.write(data)
        file.seek(8 + text.index(_seal(BLANK)))
        file.write(_seal(digest.hexdigest()))


def read(path: Path, kind: str, version: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the `about` of a file that `write` made; any other file is a `ValueError`.

    >>> read(__file__, "example", 1)
    Traceback (most recent call last):
    ValueError: ...container.py is not a safetensors file
    """
    name = os.fspath(path)
    if os.path.isdir(path):
        raise ValueError(f"{name} is a folder, not a {kind} file")
    with open(path, "rb") as file:
        blob = file.read()
    end = 8 + int.from_bytes(blob[:8], "little")
    if blob[8:9] != b"{":
        raise ValueError(f"{name} is {'not a safetensors file' if blob else 'empty'}")
    try:
        header = json.loads(blob[8:end])
        metadata = header.get("__metadata__", {})
        stored, number = metadata.get("format"), int(metadata.get("version", 0))
    except (ValueError, TypeError, OverflowError, AttributeError, RecursionError):
        raise ValueError(f"{name} is not a safetensors file, or its header is damaged") from None
    if stored != kind:
        raise ValueError(f"{name} is a safetensors file, but not a {kind} file (its format is {shown(stored)})")
    if number > version:
        writer = printable(str(metadata.get("library", "?")))
        reads = f"barebones {__version__} reads up to version {version}"
        raise ValueError(f"{name} is a {kind} file of version {number}, and {reads}; upgrade to barebones {writer}")
    checksum = metadata.get("sha256", "")
    digest = sha256(blob[:end].replace(_seal(checksum), _seal(BLANK), 1))
    digest.update(memoryview(blob)[end:])
    if digest.hexdigest() != checksum:
        raise ValueError(f"{name} is truncated or damaged: its checksum does not match its content")
    about, tensors = json.loads(metadata["about"]), load(blob)  # in random order
    _check_read.get()(about)
    return {name: tensors[name] for name in header if name in tensors}, about


def differences(
    stored: Mapping[str, Any],
    expected: Mapping[str, Tensor],
    required: Iterable[str],
    describe: Callable[[Any], str] = shape_of,
) -> list[str]:
    """List where the tensors of a file differ from those of a model, of which the `required` ones must be stored.

    >>> import torch
    >>> model = {"a": torch.ones(2), "b": torch.ones(3)}
    >>> differences({"c": torch.ones(1), "a": torch.ones(1)}, model, required=model)
    ['a (1 in the file, 2 in the model)', 'b (not in the file)', 'c (not in the model)']
    """
    lines, must_have = [], set(required)
    for name in expected:
        if name not in stored:
            lines += [f"{name} (not in the file)"] if name in must_have else []
        elif (in_file := describe(stored[name])) != (in_model := describe(expected[name])):
            lines.append(f"{name} ({in_file} in the file, {in_model} in the model)")
    return lines + [f"{printable(name)} (not in the model)" for name in stored if name not in expected]


def _seal(checksum: str) -> bytes:
    """Return the checksum as it appears in a header; inside any other JSON string the quotes would be escaped."""
    return f'"sha256":"{checksum}"'.encode()


def _json(about: Mapping[str, Any]) -> str:
    for key, value in about.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{key}={value!r} cannot be stored: {error}; use numbers, text, lists or dicts") from None
    return json.dumps(about, allow_nan=False, separators=(",", ":"))
