"""Mean and standard deviation over seeds, for records, figures and the report."""

from collections.abc import Hashable, Iterable
from statistics import fmean, stdev
from typing import NamedTuple


class Spread(NamedTuple):
    """The mean of some numbers, their standard deviation and how many there are."""

    mean: float | None  # None without any number
    deviation: float | None  # of a sample; None for fewer than two numbers
    number: int


def spread(values: Iterable[float | None]) -> Spread:
    """Return the mean and standard deviation of the values that are not None.

    >>> spread([1.0, 3.0, None])
    Spread(mean=2.0, deviation=1.4142135623730951, number=2)
    >>> spread([2.0]), spread([])
    (Spread(mean=2.0, deviation=None, number=1), Spread(mean=None, deviation=None, number=0))
    """
    known = [value for value in values if value is not None]
    return Spread(fmean(known) if known else None, stdev(known) if len(known) > 1 else None, len(known))


def over_seeds(runs: Iterable[tuple[Hashable, float | None]]) -> Spread:
    """Return the mean and standard deviation over seeds of pairs (seed, value).

    Each seed counts once, with its first value that is not None, so a copied run folder changes nothing.

    >>> over_seeds([(0, 0.5), (1, 0.7), (1, 0.7), (2, None)]).number
    2
    """
    first: dict[Hashable, float] = {}
    for seed, value in runs:
        if value is not None:
            first.setdefault(seed, value)
    return spread(first.values())
