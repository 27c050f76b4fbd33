"""Provenance: how a result was made: versions, device and modes; when, where and by which command."""

import platform
import shlex
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ...version import __version__
from .options import RunOptions


def environment(options: RunOptions, epochs: int) -> dict[str, Any]:
    """Return versions, device and modes, on which the bits of a result may depend."""
    device = torch.device(options.device)
    return {
        "barebones": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _other(device.type),
        "threads": torch.get_num_threads(),
        "compiled": options.compiles(epochs),
        "captured": options.captured and device.type == "cuda",
        "micro_batch": options.micro_batch,
    }


def _other(kind: str) -> str:
    return platform.machine() if kind == "cpu" else f"{kind} of {platform.machine()}"


def made() -> dict[str, Any]:
    """Return when, where and by which command a result was made, and the commit of the working folder, if any."""
    commit, script = None, Path(sys.argv[0]).name
    with suppress(OSError, subprocess.SubprocessError):
        git = ["git", "rev-parse", "HEAD"]
        commit = subprocess.run(git, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    return {
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["barebones" if script == "__main__.py" else script, *sys.argv[1:]]),
        "host": platform.node(),
        "commit": commit,
    }
