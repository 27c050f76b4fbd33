"""Downloads: archives are downloaded by pooch, checked by SHA-256, and unpacked completely or not at all."""

import hashlib
import os
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn


@dataclass(frozen=True)
class Archive:
    """A published archive, and the folder that it contains."""

    title: str
    url: str
    sha256: str
    folder: str

    @property
    def name(self) -> str:
        """The name of the archive's file."""
        return self.url.rsplit("/", 1)[-1]


def located(archive: Archive, root: Path, download: bool, files: tuple[str, ...]) -> Path:
    """Return the unpacked folder; if necessary, download the archive into `root` and unpack it.

    The folder is `root` itself or a folder in it, whichever contains one of `files`.
    """
    for folder in (root / archive.folder, root):
        if any((folder / file).exists() for file in files):
            return folder
    path = root / archive.name
    if not path.exists():
        if not download:
            raise FileNotFoundError(
                f"there is no {archive.title} in {root}; put the folder {archive.folder} or the file {archive.name} "
                f"({archive.url}) there, or allow the download (--download, or download=True)"
            )
        fetch(archive, root)
    return unpack(path, archive)


def fetch(archive: Archive, root: Path) -> None:
    """Download the archive into `root`; the file exists only after its checksum has been verified."""
    try:
        import pooch
        import requests
    except ImportError as error:
        raise ImportError(f"downloading {archive.title} needs pooch: pip install 'barebones[data]'") from error
    root.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    columns = (TextColumn(archive.title), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    pooch.get_logger().setLevel("WARNING")  # the progress bar says the same
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        downloader = pooch.HTTPDownloader(progressbar=_PoochBar(progress), chunk_size=1 << 20)
        try:
            pooch.retrieve(archive.url, f"sha256:{archive.sha256}", archive.name, root, downloader=downloader)
        except requests.RequestException as error:
            raise ConnectionError(
                f"{archive.title} could not be downloaded ({error}); download {archive.url} yourself and put it into "
                f"{root}"
            ) from None
        except ValueError:
            raise ValueError(
                f"{archive.url} was damaged on its way or is not the published file (its SHA-256 differs); try again"
            ) from None


class _PoochBar:
    """The progress bar of rich, with the attribute and the methods that pooch uses."""

    total = 0

    def __init__(self, progress: Progress) -> None:
        self.progress, self.task = progress, progress.add_task("", total=None)

    def update(self, count: int) -> None:
        self.progress.update(self.task, advance=count, total=self.total)

    def reset(self) -> None:
        self.progress.reset(self.task)

    def close(self) -> None:
        self.progress.stop_task(self.task)


def unpack(path: Path, archive: Archive) -> Path:
    """Unpack an archive next to it, completely or not at all, if its checksum is that of the published file.

    pooch's own extraction is not used: it does not filter tar archives on Python 3.11, and it leaves a partial folder
    behind if it is interrupted.
    """
    with open(path, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != archive.sha256:
            raise ValueError(
                f"{path} is damaged or not the published file (its SHA-256 differs); delete it and download it again"
            )
    target = path.parent / archive.folder
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".unpacking-") as temporary:
        _extract(path, temporary)
        try:
            os.rename(Path(temporary, archive.folder), target)
        except OSError:
            if not target.is_dir():  # another process may have unpacked it in the meantime
                raise
    return target


def _extract(path: Path, folder: str) -> None:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
    else:
        with tarfile.open(path) as tar:
            tar.extractall(folder, filter="data")
