"""Measuring: the time and the memory of a forward pass."""

from __future__ import annotations

import ctypes
import gc
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, sleep

import torch
from torch import Tensor

from .variants import Variant

SECONDS = 5.0  # spent on each batch size, at least
TURN, CALLS, PAUSE = 0.1, 10, 0.02  # seconds and calls of one turn, at most; seconds of pause before it
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # options of glibc's mallopt


def measure_time(variants: list[Variant], example: Tensor, batch: int, repeats: int) -> None:
    """Record the median time of each variant, measured in turns so that other load on the machine affects all alike.

    Threads of the previous variant may still spin, so each turn begins with a pause and a call that does not count.
    """
    images = random_images(example, batch)
    times: dict[str, list[float]] = {variant.name: [] for variant in variants}
    with torch.inference_mode():
        for variant in variants:
            _timed(variant, images)
        began = perf_counter()
        while len(times[variants[0].name]) < repeats or perf_counter() - began < SECONDS:
            for variant in variants:
                sleep(PAUSE)
                first = _timed(variant, images)
                turn = [_timed(variant, images) for _ in range(max(1, min(CALLS, int(TURN / first))))]
                times[variant.name].append(statistics.median(turn))
    for variant in variants:
        variant.seconds[batch] = statistics.median(times[variant.name])


def _timed(variant: Variant, images: Tensor) -> float:
    began = perf_counter()
    variant.forward(images)
    return perf_counter() - began


def measure_memory(variants: list[Variant], example: Tensor, batches: list[int]) -> None:
    """Record the memory that a forward pass needs beyond what the process held before; None if it cannot be read."""
    gc.collect()
    for variant in variants:
        for batch in batches:
            variant.memory[batch] = _peak(variant, random_images(example, batch))


def _peak(variant: Variant, images: Tensor) -> int | None:
    reset, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    with _memory_returned(), torch.inference_mode():
        try:
            reset.write_text("5")  # on Linux, this resets the peak
        except OSError:  # not on Linux
            return None
        before = _status_bytes(status, "VmRSS")
        (variant.lean or variant.forward)(images)
        return max(0, _status_bytes(status, "VmHWM") - before)


def _status_bytes(status: Path, key: str) -> int:
    return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith(key))


@contextmanager
def _memory_returned() -> Iterator[None]:
    """Make glibc return large blocks to the system at once, so that the peak counts only memory in use."""
    try:
        libc = ctypes.CDLL("libc.so.6")
        trim, option = libc.malloc_trim, libc.mallopt
    except (OSError, AttributeError):  # not glibc
        yield
        return
    option(M_MMAP_THRESHOLD, 65536)
    option(M_TRIM_THRESHOLD, 0)
    trim(0)
    try:
        yield
    finally:
        option(M_MMAP_THRESHOLD, 32 * 2**20)
        option(M_TRIM_THRESHOLD, 64 * 2**20)


def random_images(example: Tensor, batch: int) -> Tensor:
    """Return a batch of random inputs of the example's shape, the same ones for the same batch size."""
    generator = torch.Generator("cpu").manual_seed(batch)
    return torch.randn(batch, *example.shape[1:], generator=generator)
