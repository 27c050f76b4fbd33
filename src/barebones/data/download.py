"""Downloads: archives are downloaded by torch.hub, checked by SHA-256, and unpacked completely or not at all."""

import hashlib
import os
import shutil
import socket
import ssl
import sys
import tempfile
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError

import torch

STALLED = 30.0  # seconds without data, after which a download fails


@dataclass(frozen=True)
class Archive:
    """A published archive, and the folder that it contains."""

    title: str
    url: str
    sha256: str
    folder: str

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[-1]


def located(archive: Archive, root: Path, download: bool, files: tuple[str, ...]) -> Path:
    """Return the unpacked folder, `root` or one in it, that has one of `files`; download and unpack it if need be."""
    for folder in (root / archive.folder, root):
        if any((folder / file).exists() for file in files):
            return folder
    path = root / archive.name
    if not path.exists():
        if not download:
            wanted = f"the folder {archive.folder} or the file {archive.name} ({archive.url})"
            hint = f"put {wanted} there, or allow the download (--download, or download=True)"
            raise FileNotFoundError(f"there is no {archive.title} in {root}; {hint}")
        fetch(archive, root)
    return unpack(path, archive)


def fetch(archive: Archive, root: Path) -> None:
    """Download the archive into `root`; the file exists only after its checksum has been verified."""
    root.mkdir(parents=True, exist_ok=True)
    progress, before = sys.stderr.isatty(), socket.getdefaulttimeout()
    socket.setdefaulttimeout(STALLED)
    try:
        torch.hub.download_url_to_file(archive.url, str(root / archive.name), archive.sha256, progress)
    except (URLError, HTTPException, ConnectionError, TimeoutError, ssl.SSLError) as error:
        if isinstance(error, HTTPError):
            error.close()  # it is a response, too
        hint = f"download {archive.url} yourself and put it into {root}"
        raise ConnectionError(f"{archive.title} could not be downloaded ({error}); {hint}") from None
    except RuntimeError:
        problem = "was damaged on its way or is not the published file (its SHA-256 differs)"
        raise ValueError(f"{archive.url} {problem}; try again") from None
    finally:
        socket.setdefaulttimeout(before)


def unpack(path: Path, archive: Archive) -> Path:
    """Unpack an archive next to it, completely or not at all, if its checksum is that of the published file."""
    with open(path, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != archive.sha256:
            problem = f"{path} is damaged or not the published file (its SHA-256 differs)"
            raise ValueError(f"{problem}; delete it and download it again")
    target = path.parent / archive.folder
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".unpacking-") as temporary:
        shutil.unpack_archive(path, temporary, filter=None if path.suffix == ".zip" else "data")  # zip always filters
        try:
            os.rename(Path(temporary, archive.folder), target)
        except OSError:
            if not target.is_dir():  # another process may have unpacked it in the meantime
                raise
    return target
