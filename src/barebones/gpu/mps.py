"""MPS: NVIDIA's service by which several processes run on a GPU at the same time. Without it, they take turns."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

FOLDERS = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
CONTROL = "nvidia-cuda-mps-control"
PATIENCE = 20.0  # seconds for an answer


@contextmanager
def service() -> Iterator[bool]:
    """Run the service for processes that are started within, unless the user runs one, and yield whether it runs.

    It is asked for its server first: where that cannot start, as in some containers, every process would fail.
    """
    if any(name in os.environ for name in FOLDERS):
        yield True
        return
    with tempfile.TemporaryDirectory(prefix="mps-", ignore_cleanup_errors=True) as folder:
        os.environ.update(dict.fromkeys(FOLDERS, folder))
        try:
            begun = shutil.which(CONTROL) is not None and _ask("-d") is not None
            serves = begun and bool(_ask(order=f"start_server -uid {os.getuid()}\nget_server_list"))
            if not serves:
                _forget()
            yield serves
        finally:
            os.environ.update(dict.fromkeys(FOLDERS, folder))
            if begun:
                _ask(order="quit")
            _forget()


def _ask(*options: str, order: str = "") -> str | None:
    """Call the program that controls the service, and return what it prints; None if it fails."""
    env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}  # which is for clients
    reads = subprocess.PIPE if order else subprocess.DEVNULL  # the service itself would keep a pipe open
    command, order = [CONTROL, *options], order + "\n"
    try:
        asked = subprocess.run(
            command, input=order, stdout=reads, stderr=subprocess.DEVNULL, text=True, timeout=PATIENCE, env=env
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (asked.stdout or "").strip() if asked.returncode == 0 else None


def _forget() -> None:
    for name in FOLDERS:
        os.environ.pop(name, None)
