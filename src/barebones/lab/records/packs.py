"""Packs: finished and unfinished runs in one tar file, to be carried from machine to machine."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from ...files.container import atomically
from ...words import shown
from ..run.checksums import misfit
from ..run.folder import EXPERIMENT, FAILURE, FORMATS, FORMS, RESULT, emptied, failed, finished, recorded, verified
from ..run.folder import read_json as read_run_file
from ..run.lock import leased
from ..run.metrics import METRICS
from ..run.metrics import read as read_metrics

CONTENTS = "pack.json"  # the first member: what the others are
FORMAT, VERSION = "barebones-pack", 1
FILES = (*(name for name in (*FORMS, *FORMATS) if name != RESULT), METRICS, RESULT)  # in the order of writing
MEMBER = re.compile(rf"([A-Za-z0-9_][A-Za-z0-9._-]{{0,254}})/({'|'.join(map(re.escape, FILES))})")
LONGEST_CONTENTS = 2**26  # bytes; enough for a hundred thousand runs
CHUNK = 2**20


@dataclass(frozen=True)
class Carried:
    """The names of the runs that were packed or unpacked, and how many of them are finished."""

    runs: list[str]
    finished: int
    here: list[str]  # runs that were not unpacked, because the folder has them, as far or further


def pack(runs: Path, out: Path) -> Carried:
    """Write the runs in a folder, or the run that the folder is, into a tar file; every file of them is checked first.

    An unfinished run that another process works on is an error.
    """
    folders = [runs] if (runs / EXPERIMENT).exists() else sorted(path.parent for path in runs.glob(f"*/{EXPERIMENT}"))
    if not folders:
        raise ValueError(f"there is no run in {runs}; name the folder that holds the run folders")
    with ExitStack() as held:
        for folder in folders:
            if finished(folder) is None:  # a finished run does not change any more
                held.enter_context(leased(folder))
            check(folder)
        packed = [folder / name for folder in folders for name in FILES if (folder / name).exists()]
        names = {folder: recorded(folder)[1].run for folder in folders}
        members = {f"{names[path.parent]}/{path.name}": path for path in packed}
        entries = {name: _entry(path.read_bytes()) for name, path in members.items()}
        contents = {"format": FORMAT, "version": VERSION, "files": entries}
        with atomically(out) as file, tarfile.open(fileobj=file, mode="w") as archive:
            _add(archive, CONTENTS, json.dumps(contents, indent=1).encode())
            for name, path in members.items():
                _add(archive, name, path.read_bytes())
    return Carried(sorted(names.values()), sum((folder / RESULT).exists() for folder in folders), [])


def _entry(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": sha256(content).hexdigest()}


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)  # without owner and time, so that equal runs give equal packs
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def unpack(pack: Path, runs: Path) -> Carried:
    """Unpack the runs of a file that `pack` wrote into a folder, and check each; nothing is unpacked if one is damaged.

    A run that the folder has already is replaced if the one in the pack is further.
    """
    if not pack.is_file():
        raise ValueError(f"there is no file {pack}; name one that barebones pack wrote")
    with _made(runs), tempfile.TemporaryDirectory(prefix=".unpacking-", dir=runs) as place:
        with _explained(pack):
            names = _extracted(pack, Path(place))
        for name in names:
            check(Path(place) / name)
            if recorded(Path(place) / name)[1].run != name:
                raise ValueError(f"{pack} is damaged: the folder {name} holds another run")
        here = [name for name in names if _reached(runs / name) >= _reached(Path(place) / name)]
        further = [name for name in names if name not in here]
        for name in further:
            _moved(Path(place) / name, runs / name)
    return Carried(further, sum((runs / name / RESULT).exists() for name in further), here)


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Make a folder; if what follows fails, a folder that was not there before is gone again."""
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if new:
            with suppress(OSError):  # runs are in it already
                folder.rmdir()
        raise


def _extracted(pack: Path, place: Path) -> list[str]:
    """Write the files of a pack into a folder, and return the names of the runs.

    Only what `pack` writes is accepted: plain files of the names and sizes that the first one lists. So links, devices,
    other folders, absolute names and data that would be larger than the pack itself never reach the disk.
    """
    size = os.path.getsize(pack)
    with tarfile.open(pack, mode="r:") as archive:  # not compressed: a pack holds no more than its own size
        first = archive.next()
        if first is None or first.name != CONTENTS or not first.isreg() or first.size > LONGEST_CONTENTS:
            raise ValueError("it does not begin with its list of contents")
        entries = _entries(_content(archive, first))
        names = list(dict.fromkeys(name.partition("/")[0] for name in entries))
        for name in names:
            (place / name).mkdir()
        waiting = dict(entries)
        while (member := archive.next()) is not None:
            entry = waiting.pop(member.name, None)
            if entry is None:
                raise ValueError(f"it holds {shown(member.name)}, which its list of contents does not have there")
            if member.type != tarfile.REGTYPE or member.sparse is not None or member.size != entry["bytes"]:
                raise ValueError(f"{member.name} is not a plain file of the size in its list of contents")
            if member.offset_data + member.size > size:
                raise ValueError(f"it is truncated inside {member.name}")
            digest = sha256()
            source: Any = archive.extractfile(member)
            with open(place / member.name, "xb") as file:
                while piece := source.read(CHUNK):
                    digest.update(piece)
                    file.write(piece)
            if digest.hexdigest() != entry["sha256"]:
                raise ValueError(f"{member.name} has changed since it was packed")
        if waiting:
            raise ValueError(f"it has lost {len(waiting)} of its {len(entries)} files")
    return names


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    source: Any = archive.extractfile(member)
    return source.read()


def _entries(text: bytes) -> dict[str, dict[str, Any]]:
    """Return the list of contents, checked."""
    contents = json.loads(text)
    if wrong := misfit(contents, {"format": "str", "version": "int", "files": {}}):
        raise ValueError(wrong)
    if contents["format"] != FORMAT:
        raise ValueError(f"its format is {shown(contents['format'])}, not {FORMAT}")
    if contents["version"] > VERSION:
        raise ValueError("a newer version of barebones wrote it; upgrade")
    for name, entry in contents["files"].items():
        if not MEMBER.fullmatch(name):
            raise ValueError(f"{shown(name)} is not the name of a file of a run")
        if wrong := misfit(entry, {"bytes": "int", "sha256": "str"}):
            raise ValueError(wrong)
    return contents["files"]


@contextmanager
def _explained(pack: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, tarfile.TarError, RecursionError, EOFError) as error:
        raise ValueError(f"{pack} is not a pack that barebones wrote, or it is damaged ({error})") from None


def check(folder: Path) -> None:
    """Raise a `ValueError` if a file of a run is damaged, or belongs to another run."""
    _, owner = recorded(folder)
    result = finished(folder)
    failed(folder)
    read_metrics(folder / METRICS, owner, (result or {}).get("metrics"))
    for name in (*FORMATS, *FORMS):
        if (folder / name).exists() and name not in (EXPERIMENT, RESULT, FAILURE):
            (verified if name in FORMATS else read_run_file)(folder / name, owner)


def _reached(folder: Path) -> tuple[bool, int]:
    """Return how far a run has come: whether it is finished, and how many rounds and epochs it has written."""
    if not (folder / EXPERIMENT).exists():
        return False, -1
    return finished(folder) is not None, len(read_metrics(folder / METRICS, recorded(folder)[1]))


def _moved(source: Path, target: Path) -> None:
    """Replace the files of a run. The metrics and the result come last: a run that lacks them has not come as far."""
    emptied(target)
    target.mkdir(exist_ok=True)
    with leased(target):
        for name in FILES:
            if (source / name).exists():
                os.replace(source / name, target / name)
