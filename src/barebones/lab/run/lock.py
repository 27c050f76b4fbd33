"""Locks: which process owns a run's folder, on any node that sees it.

The owner of a folder has a file in it, `lock-1`, which says where it runs, and whose time it renews every few seconds.
A lock that was not renewed three times in a row, or whose process is dead, is taken over with the next number,
`lock-2`. Such a file is made exclusively, so that only one process can take over. Who finds its own lock gone, or a
higher one beside it, no longer owns the folder and must not write. The age of a lock is read from the clock of the
file system alone, so that the clocks of nodes may differ.
"""

import json
import os
import re
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

RENEWED_EVERY = 10.0  # seconds
MISSED = 3  # renewals, after which a lock may be taken over
NAME = re.compile(r"lock-([1-9][0-9]{0,8})")


class Busy(ValueError):
    """The folder of the run belongs to another process."""


@dataclass(frozen=True)
class Lock:
    """The right of this process to write into a folder."""

    folder: Path
    attempt: int
    file: BinaryIO  # kept open, so that no other file can get its number

    @property
    def path(self) -> Path:
        return self.folder / f"lock-{self.attempt}"

    def check(self) -> None:
        """Raise `Busy` if another process has taken the folder over, or if the folder is gone or is another one."""
        if (self.folder / f"lock-{self.attempt + 1}").exists() or not self._is_there():
            raise Busy(
                f"{self.folder} was taken over by another process, moved or deleted while this run was working in it, "
                "so this run stops; run the experiment again to see its result, or to start anew"
            )

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self.file.fileno()), os.stat(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def renew(self) -> None:
        os.utime(self.file.fileno())


def is_lock(name: str) -> bool:
    return NAME.fullmatch(name) is not None


@contextmanager
def locked(folder: Path) -> Iterator[Lock]:
    """Own a folder, which must exist, until the end of the block; raise `Busy` if another process owns it."""
    lock = _taken(folder)
    done = threading.Event()
    thread = threading.Thread(target=_keep_renewing, args=(lock, done), daemon=True, name=f"renews {lock.path}")
    try:
        for attempt in _attempts(folder):
            if attempt < lock.attempt:  # their owners find them gone
                (folder / f"lock-{attempt}").unlink(missing_ok=True)
        thread.start()
        yield lock
    finally:
        done.set()
        if thread.is_alive():
            thread.join()
        if lock._is_there():
            lock.path.unlink(missing_ok=True)
        lock.file.close()


def _keep_renewing(lock: Lock, done: threading.Event) -> None:
    while not done.wait(RENEWED_EVERY):
        with suppress(OSError):  # the folder is gone, which `check` tells; or its server is, perhaps for a moment
            lock.renew()


def check_free(folder: Path) -> int:
    """Raise `Busy` if a process owns the folder; otherwise return the number of the last lock, or 0."""
    attempt = max(_attempts(folder), default=0)
    if attempt and not _is_stale(folder / f"lock-{attempt}"):
        raise _busy(folder)
    return attempt


def _busy(folder: Path) -> Busy:
    return Busy(f"another process is running in {folder}; wait for it, or stop it first")


def _taken(folder: Path) -> Lock:
    """Make the file of the next lock."""
    attempt = check_free(folder)
    path = folder / f"lock-{attempt + 1}"
    try:
        file = open(path, "xb", buffering=0)  # noqa: SIM115 (the lock keeps it open)
    except FileExistsError:
        raise _busy(folder) from None
    try:
        file.write(json.dumps(_here()).encode())
    except OSError as error:  # for example a full disk; an empty lock would look like that of a running process
        file.close()
        path.unlink(missing_ok=True)
        raise OSError(error.errno, f"cannot write ({error.strerror})", str(path)) from None
    return Lock(folder, attempt + 1, file)


def _attempts(folder: Path) -> list[int]:
    try:
        return [int(match[1]) for name in os.listdir(folder) if (match := NAME.fullmatch(name))]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_stale(path: Path) -> bool:
    """Return whether a lock may be taken over: its process is dead, or it has missed its renewals."""
    try:
        written, content = os.stat(path).st_mtime, path.read_bytes()
    except FileNotFoundError:
        return True  # given back this moment
    with suppress(ValueError, TypeError, KeyError, OverflowError):  # its owner is not written yet, or damaged
        owner = json.loads(content)
        if owner["node"] == _here()["node"] and not _runs(owner):
            return True
    return _now(path.parent) - written > MISSED * RENEWED_EVERY


def _now(folder: Path) -> float:
    """Return the time by the clock of the file system: that of a file that is made now."""
    probe = folder / f".{secrets.token_hex(8)}.tmp"
    try:
        probe.touch(exist_ok=False)
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _here() -> dict[str, Any]:
    """Name this process by its node and when that was started, its container, its number, and when it began."""
    node = socket.gethostname()
    with suppress(OSError):
        node += " " + Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        node += " " + os.readlink("/proc/self/ns/pid")
    return {"node": node, "process": os.getpid(), "began": _began(os.getpid())}


def _began(process: int) -> str:
    """Return when a process of this node began, as the system counts it; empty where that is not known."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _runs(owner: dict[str, Any]) -> bool:
    """Return whether the owner of a lock of this node is alive. Another process may have got its number."""
    try:
        os.kill(owner["process"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _began(owner["process"]) == owner["began"]
