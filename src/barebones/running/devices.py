"""Devices: what torch can compute on here, and the processors of this process."""

import os


def accelerator() -> str:
    """Return the kind of device that torch uses beside the CPU here, such as cuda, mps or xpu; cpu if there is none."""
    import torch

    found = torch.accelerator.current_accelerator(check_available=True)
    return found.type if found else "cpu"


def check_here(name: str) -> None:
    """Raise a `ValueError` if this machine does not have a device.

    >>> check_here("cpu")
    """
    import torch

    device, kind = torch.device(name), accelerator()
    there = device.type == kind and (device.index or 0) < torch.accelerator.device_count()
    if device.type != "cpu" and not there:
        raise ValueError(f"there is no device {name} here; use --device {kind}")


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
