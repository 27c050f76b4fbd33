"""Downloads: an archive fetched, checked and unpacked, whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import tarfile
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path, PurePosixPath

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

CHUNK = 1 << 20
TIMEOUT = 30  # seconds without a byte
LENGTHS = {"sha256": 64, "md5": 32}  # of the checksums that can be checked, in hexadecimal digits
UNWRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR, errno.EEXIST}


@dataclass(frozen=True)
class Archive:
    """An archive as its publisher offers it, and the folder in it."""

    title: str
    url: str
    size: int  # bytes
    checksum: str  # "sha256:..." or "md5:..."
    folder: str

    @property
    def name(self) -> str:
        """Of the file."""
        return self.url.rsplit("/", 1)[-1]


def located(archive: Archive, root: Path, download: bool, files: tuple[str, ...]) -> Path:
    """The unpacked folder: in `root`, `root` itself, or from the archive that lies there or is to be downloaded.

    A folder is known by holding one of `files`.
    """
    for folder in (root / archive.folder, root):
        if any((folder / file).exists() for file in files):
            return folder
    packed = root / archive.name
    if not packed.exists():
        if not download:
            raise FileNotFoundError(
                f"there is no {archive.title} in {root}: put the folder {archive.folder} or {archive.name} there "
                f"({archive.url}), or ask for the download"
            )
        fetch(archive, root)
    return unpack(packed, archive)


def fetch(archive: Archive, root: Path) -> Path:
    """Download into `root`, with a progress bar; the file is there once its size and checksum are right, not before."""
    _published(archive)
    target = root / archive.name
    with _beside(target) as temporary:
        if (free := shutil.disk_usage(root).free) < archive.size:
            raise OSError(errno.ENOSPC, f"{archive.title} needs {archive.size:,} bytes, and {free:,} are left")
        with open(temporary, "xb") as file:
            for chunk in _received(archive, root):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        check(temporary, archive, archive.url)
        os.replace(temporary, target)
    return target


def check(path: Path, archive: Archive, shown: str | None = None) -> None:
    """A `ValueError` unless the file has the published size and checksum; it calls the file `shown`, or its path."""
    algorithm, expected = _published(archive)
    shown = shown or str(path)
    if (size := path.stat().st_size) != archive.size:
        fault = "is truncated" if size < archive.size else "is not the published file"
        raise ValueError(f"{shown} {fault}: {size:,} bytes instead of {archive.size:,}; fetch it again")
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, algorithm).hexdigest()
    if found != expected:
        raise ValueError(f"{shown} is damaged or not the published file: its {algorithm} is {found}; fetch it again")


def unpack(path: Path, archive: Archive) -> Path:
    """Check the archive and unpack it beside itself; nothing in it can be written elsewhere."""
    check(path, archive)
    target = path.parent / archive.folder
    with _beside(target) as temporary:
        temporary.mkdir()
        try:
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as file:
                    for name in map(PurePosixPath, file.namelist()):
                        if name.is_absolute() or ".." in name.parts:
                            raise ValueError(f"{path} is refused: {name} in it points outside of its folder")
                    file.extractall(temporary)
            else:
                with tarfile.open(path) as tar:
                    tar.extractall(temporary, filter="data")
        except tarfile.FilterError as error:
            raise ValueError(f"{path} is refused: {error}") from None
        except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise ValueError(f"{path} cannot be unpacked ({error})") from None
        if not (temporary / archive.folder).is_dir():
            raise ValueError(f"{path} does not hold the folder {archive.folder}")
        try:
            os.rename(temporary / archive.folder, target)
        except OSError:
            if not target.is_dir():  # it is where another process was faster
                raise
    return target


def _published(archive: Archive) -> tuple[str, str]:
    algorithm, _, digits = archive.checksum.partition(":")
    if LENGTHS.get(algorithm) != len(digits):
        raise ValueError(
            f"{archive.title} has no checksum to check {archive.url} against, so it is not fetched or read"
        )
    return algorithm, digits.lower()


def _received(archive: Archive, root: Path) -> Iterator[bytes]:
    """The bytes as they come, at most one chunk more than there should be; the bar is for a terminal only."""
    console = Console(stderr=True)
    columns = (TextColumn(archive.title), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(archive.title, total=archive.size)
        received = 0
        try:
            with urllib.request.urlopen(archive.url, timeout=TIMEOUT) as response:
                while received <= archive.size and (chunk := response.read(CHUNK)):
                    received += len(chunk)
                    progress.update(task, completed=received)
                    yield chunk
        except (OSError, HTTPException) as error:
            raise ConnectionError(
                f"{archive.title} could not be downloaded ({getattr(error, 'reason', None) or error}): fetch "
                f"{archive.url} by hand and put it into {root}"
            ) from None


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A name in the target's folder for what is not finished; whatever has it at the end is removed."""
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        raise OSError(error.errno, f"cannot write into {target.parent} ({error.strerror})") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        with suppress(OSError):
            temporary.unlink()
