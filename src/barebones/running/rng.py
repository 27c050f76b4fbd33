"""Randomness: the global generators, forked and put back."""

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
    """Leave the global generators of torch (CPU and `device`), Python and NumPy as they were found.

    With `seed`, all of them start from it inside.

    >>> before = torch.get_rng_state()
    >>> with forked(torch.device("cpu"), seed=1):
    ...     _ = torch.rand(3)
    >>> bool((torch.get_rng_state() == before).all())
    True
    """
    generators = _generators(device)
    states = [g.get_state() for g in generators]
    python = random.getstate()
    numpy = _numpy_random()
    numpy_state = numpy.get_state() if numpy else None
    try:
        if seed is not None:
            reseed(device, seed)
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        random.setstate(python)
        if numpy:
            numpy.set_state(numpy_state)


def reseed(device: torch.device, seed: int) -> None:
    """Start the same generators from `seed`. (`torch.manual_seed` would touch every other device too.)"""
    for generator in _generators(device):
        generator.manual_seed(seed)
    random.seed(seed)
    if numpy := _numpy_random():
        numpy.seed(seed % 2**32)


def _numpy_random() -> Any:
    """NumPy's global generator, if NumPy is in use: it loads that part only when it is first asked for."""
    return importlib.import_module("numpy.random") if "numpy" in sys.modules else None


def _generators(device: torch.device) -> list[torch.Generator]:
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return [torch.default_generator, torch.cuda.default_generators[index]]
    return [torch.default_generator]
