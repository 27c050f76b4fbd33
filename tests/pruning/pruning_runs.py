"""Runs of every method on one small network, for the tests of methods, criteria and rounds."""

import functools
from dataclasses import replace

from references import few, pairs, tiny

from barebones import Probe, Round, rounds

BATCHES = pairs(5)
KEEP = 20  # of the 114 prunable weights


def run(name: str, keep: int = KEEP, **options: object) -> list[Round]:
    """Return all rounds of a method, with few rounds and batches."""
    return list(rounds(Probe(tiny(), BATCHES, seed=3), replace(few(name), **options), keep))


@functools.cache
def steps_of(name: str) -> list[Round]:
    """Return the same, computed once for all tests that only read it."""
    return run(name)
