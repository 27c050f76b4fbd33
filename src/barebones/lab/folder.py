"""A run's folder: the names of its files, its lock, its record and result, and the progress of the run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..files.container import atomically
from .experiment import Experiment
from .metrics import METRICS
from .metrics import read as read_metrics

EXPERIMENT, RESULT, FAILURE = "experiment.json", "result.json", "failure.json"
MASK, WEIGHTS = "mask.safetensors", "weights.safetensors"
PRETRAINED = "pretrained.safetensors"
ROUND, PRETRAINING, CHECKPOINT = "round.safetensors", "pretraining.safetensors", "checkpoint.safetensors"  # to resume
SHRUNK = "shrunk.json"  # what shrinking did to the network, and how fast it trains
LOCK = "lock"
SPARE = 16 * 2**20  # bytes of disk for everything but weights


class Busy(ValueError):
    """Another process is running the experiment."""


@contextmanager
def reserved(folder: Path, experiment: Experiment, weight_bytes: int) -> Iterator[None]:
    """Make the run's folder and lock it for this process; check that the disk has room for what a run writes."""
    folder.mkdir(parents=True, exist_ok=True)
    try:  # the system releases the lock when the process ends, also by SIGKILL
        lock = FileLock(folder / LOCK, timeout=0, thread_local=False).acquire()
    except Timeout:
        raise Busy(f"another process is running in {folder}; wait for it, or stop it first") from None
    with lock:
        needed = 5 * weight_bytes + SPARE  # the weights, and two checkpoints of weights and momentum
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise ValueError(
                f"{folder} needs about {needed / 1e6:.0f} MB, but its disk has {free / 1e6:.0f} MB left; "
                "delete something first"
            )
        for unfinished in folder.glob(".*.tmp"):  # a process was killed while it wrote them
            unfinished.unlink(missing_ok=True)
        path = folder / EXPERIMENT
        if not path.exists():
            write_json(path, experiment.to_dict())
        elif not experiment.is_record(recorded(path)):
            raise ValueError(f"{path} is another experiment; move that folder away")
        yield


def finished(folder: Path, experiment: Experiment | None = None) -> dict[str, Any] | None:
    """Return the result of a finished run, None if the run is not finished.

    A result that cannot be read, or that belongs to another experiment, raises a `ValueError`.
    """
    path = folder / RESULT
    try:
        result = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read ({error}); delete it to run this again") from None
    complete = {"experiment", "test", "seconds"} <= result.keys()
    if not complete or (experiment is not None and not experiment.is_record(result["experiment"])):
        raise ValueError(f"{path} is not the result of this experiment; delete it to run this again")
    return result


def recorded(path: Path) -> dict[str, Any]:
    """Return the plain values in the experiment.json of a run's folder."""
    try:
        return read_json(path)
    except FileNotFoundError:
        raise ValueError(f"{path.parent} is not the folder of a run: it has no {path.name}") from None
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); move its folder away") from None


def progress(folder: Path) -> str:
    """Return the progress of a run, in words.

    >>> progress(Path("no/such/folder"))
    'not begun'
    """
    if (folder / RESULT).exists():
        return "finished"
    lines = read_metrics(folder / METRICS)
    if (folder / MASK).exists():
        epochs = [line for line in lines if line["stage"] == "train"]
        return f"pruned; trained {epochs[-1]['epoch'] + 1} of {epochs[-1]['epochs']} epochs" if epochs else "pruned"
    if lines:
        last = lines[-1]
        unit = "round" if last["stage"] == "prune" else "epoch"
        return f"{last['stage']}: {last[unit] + 1} of {last[unit + 's']} {unit}s"
    return "begun" if folder.exists() else "not begun"


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object; anything else in it raises a `ValueError`."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} holds no JSON object")
    return content


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    with atomically(path) as file:
        file.write((json.dumps(value, indent=2, allow_nan=False) + "\n").encode())
