"""What the scripts share: the device, seconds, memory, many processes, and errors in one sentence."""

import os
import statistics
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import typer


def start(main: Callable[..., None]) -> None:
    """Run a script."""
    try:
        typer.run(main)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")


def machine(device: str) -> str:
    """Say what computes here, and the version of torch."""
    name = f"{torch.get_num_threads()} threads" if device == "cpu" else torch.cuda.get_device_name()
    return f"{name}, torch {torch.__version__}"


def seconds(work: Callable[[], Any], device: str) -> float:
    """Return how long something takes, until the device has ended it."""
    wait(device)
    began = perf_counter()
    work()
    wait(device)
    return perf_counter() - began


def wait(device: str) -> None:
    """Wait until the device has nothing left to do."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def in_turns(sides: dict[str, Callable[[], Any]], repeats: int, device: str) -> dict[str, float]:
    """Measure the sides in turns, so that other load affects all alike; return the median seconds of each."""
    times = [{side: seconds(work, device) for side, work in sides.items()} for _ in range(repeats)]
    return {side: statistics.median(row[side] for row in times) for side in sides}


def memory(key: str) -> int:
    """Return a line of the kernel's account of this process, in bytes: VmRSS now, VmHWM at its highest."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def in_processes(case: Callable[..., Any], cases: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Call a function for each case, in as many processes as there are processors."""
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        return list(pool.map(case, *zip(*cases, strict=True), chunksize=4))
