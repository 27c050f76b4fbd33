"""Randomness: the global random number generators, seeded for a while and put back."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def forked(device: torch.device, seed: int | None = None) -> Iterator[None]:
    """Put the global generators of torch (CPU and `device`), Python and NumPy back at the end.

    With a `seed`, all of them start from it inside.

    >>> before = torch.get_rng_state()
    >>> with forked(torch.device("cpu"), seed=1):
    ...     _ = torch.rand(3)
    >>> bool((torch.get_rng_state() == before).all())
    True
    """
    own = generators(device)
    states = [g.get_state() for g in own]
    python = random.getstate()
    numpy = _numpy_random()
    numpy_state = numpy.get_state() if numpy else None
    try:
        if seed is not None:
            reseed(device, seed)
        yield
    finally:
        for generator, state in zip(own, states, strict=True):
            generator.set_state(state)
        random.setstate(python)
        if numpy:
            numpy.set_state(numpy_state)


def reseed(device: torch.device, seed: int) -> None:
    """Start the same generators from `seed`. (`torch.manual_seed` would seed every other device too.)"""
    for generator in generators(device):
        generator.manual_seed(seed)
    random.seed(seed)
    if numpy := _numpy_random():
        numpy.seed(seed % 2**32)


def _numpy_random() -> Any:
    """Return the module of NumPy's global generator, if NumPy is loaded. NumPy itself imports it only at first use."""
    return importlib.import_module("numpy.random") if "numpy" in sys.modules else None


def generators(device: torch.device) -> list[torch.Generator]:
    """Return torch's global generators: that of the CPU, and that of the device."""
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return [torch.default_generator, torch.cuda.default_generators[index]]
    return [torch.default_generator]
