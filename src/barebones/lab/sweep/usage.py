"""Usage: how busy the GPUs of a sweep are, as nvidia-smi tells it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from statistics import fmean
from threading import Thread
from typing import IO

QUERY = ["nvidia-smi", "--query-gpu=index,uuid,utilization.gpu", "--format=csv,noheader,nounits", "--loop=1"]


@contextmanager
def watched(devices: Iterable[str]) -> Iterator[Callable[[], str]]:
    """Yield a function that says in how many percent of the time so far these CUDA devices have run a kernel.

    It returns an empty text where that is not known: without nvidia-smi, and before its first sample.
    """
    names = _names(devices, os.environ.get("CUDA_VISIBLE_DEVICES"))
    samples: dict[str, list[float]] = {device: [] for device in names}
    try:
        process = subprocess.Popen(
            [*QUERY, f"--id={','.join(names.values())}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        ) if names else None  # fmt: skip
    except OSError:  # it is not installed
        process = None
    if process is None:
        yield lambda: ""
        return
    thread = Thread(target=_read, args=(process.stdout, names, samples), daemon=True)
    thread.start()
    try:
        yield lambda: _said(samples)
    finally:
        process.kill()  # if this process is killed, it ends by itself, because nobody reads what it prints
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
        thread.join(5)


def _names(devices: Iterable[str], visible: str | None) -> dict[str, str]:
    """Return the number, or the UUID, by which nvidia-smi knows each CUDA device.

    >>> _names(["cuda"], None), _names(["cuda:0", "cuda:1"], "3, GPU-8d2"), _names(["cpu", "cpu"], None)
    ({'cuda': '0'}, {'cuda:0': '3', 'cuda:1': 'GPU-8d2'}, {})
    """
    known = [name.strip() for name in visible.split(",")] if visible is not None else None
    numbers = {device: int(device.partition(":")[2] or 0) for device in devices if device.startswith("cuda")}
    return {
        device: str(number) if known is None else known[number]
        for device, number in numbers.items()
        if known is None or number < len(known)
    }


def _read(output: IO[str], names: Mapping[str, str], samples: dict[str, list[float]]) -> None:
    """Collect the samples of each device, until there are no more."""
    with output:
        for line in output:
            index, uuid, percent = (*map(str.strip, line.split(",")), "", "")[:3]
            for device, name in names.items():
                if name == index or (name and uuid.startswith(name)):
                    samples[device] += [float(percent)] if percent.isdecimal() else []  # "[N/A]" on a part of a GPU


def _said(samples: Mapping[str, list[float]]) -> str:
    """Return the means in words.

    >>> _said({"cuda": [90.0, 93.0]}), _said({"cuda:0": [100.0], "cuda:2": [], "cuda:3": [50.0]}), _said({"cuda": []})
    ('gpu busy 92 %', 'gpu busy 100 % (cuda:0), 50 % (cuda:3)', '')
    """
    several = len(samples) > 1
    means = [f"{fmean(some):.0f} %" + f" ({device})" * several for device, some in samples.items() if some]
    return f"gpu busy {', '.join(means)}" if means else ""
