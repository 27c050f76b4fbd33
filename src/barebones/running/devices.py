"""Devices: what torch can compute on here."""

import torch


def accelerator() -> str:
    """Return the kind of device that torch uses beside the CPU here, such as cuda, mps or xpu; cpu if there is none."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return found.type if found else "cpu"


def check_here(name: str) -> None:
    """Raise a `ValueError` if this machine does not have a device.

    >>> check_here("cpu")
    """
    device, kind = torch.device(name), accelerator()
    there = device.type == kind and (device.index or 0) < torch.accelerator.device_count()
    if device.type != "cpu" and not there:
        raise ValueError(f"there is no device {name} here; use --device {kind}")
