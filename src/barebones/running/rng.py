"""Randomness: the global random number generators and those of a network, seeded for a while and put back."""

import importlib
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


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


@contextmanager
def own_generators(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Put the generators that modules hold as attributes back at the end: those of torch, Python and NumPy."""
    kinds = _kinds()
    held = [value for module in modules for value in vars(module).values() if type(value) in kinds]
    states = [kinds[type(generator)][0](generator) for generator in held]
    try:
        yield
    finally:
        for generator, state in zip(held, states, strict=True):
            kinds[type(generator)][1](generator, state)


def _kinds() -> dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]]:
    """Return how to read and to write the state of each kind of generator."""
    kinds: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
        torch.Generator: (torch.Generator.get_state, torch.Generator.set_state),
        random.Random: (random.Random.getstate, random.Random.setstate),
    }
    if numpy := _numpy_random():
        kinds[numpy.RandomState] = (numpy.RandomState.get_state, numpy.RandomState.set_state)
        kinds[numpy.Generator] = (lambda g: g.bit_generator.state, lambda g, s: setattr(g.bit_generator, "state", s))
    return kinds


def _numpy_random() -> Any:
    """Return the module of NumPy's global generator, if NumPy is loaded. NumPy itself imports it only at first use."""
    return importlib.import_module("numpy.random") if "numpy" in sys.modules else None


def generators(device: torch.device) -> list[torch.Generator]:
    """Return torch's global generators: that of the CPU, and that of the device."""
    module: Any = getattr(torch, device.type, None)
    if hasattr(module, "default_generators"):  # torch.cuda, torch.xpu
        index = module.current_device() if device.index is None else device.index
        return [torch.default_generator, module.default_generators[index]]
    return [torch.default_generator, *([torch.mps._get_default_mps_generator()] if device.type == "mps" else [])]
