"""Methods: a criterion, a number of rounds, a schedule and a rule of revival. A method is data."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass

from ..masks import Scores
from . import criteria
from .probe import Probe
from .schedules import Schedule, exponential

Criterion = Callable[[Probe], Scores]


@dataclass(frozen=True)
class Method:
    """How to prune.

    `revive_until` is the fraction of the rounds in which pruned weights may return: 1.0 is FORCE, 0.0 is
    Iterative SNIP. `revive_empty=False` forbids their return into output channels that are wholly empty.
    `at_least` is a floor of kept weights in each layer.

    A method of your own is one function:

    >>> Method(lambda probe: {name: w.square() for name, w in probe.weights.items()}, rounds=3).rounds
    3
    """

    criterion: Criterion
    rounds: int = 1
    batches: int = 1
    revive_until: float = 0.0
    schedule: Schedule = exponential
    revive_empty: bool = True
    at_least: int = 0

    def __post_init__(self) -> None:
        for name in ("rounds", "batches", "at_least"):
            if not isinstance(getattr(self, name), int):
                raise ValueError(f"{name}={getattr(self, name)!r}: it is a whole number")
        if not callable(self.criterion):
            raise ValueError(f"criterion={self.criterion!r}: it is a function from a probe to scores")
        if self.rounds < 1:
            raise ValueError(f"rounds={self.rounds}: pruning needs at least one round")
        if self.batches < 1:
            raise ValueError(f"batches={self.batches}: a round needs at least one batch")
        if not 0 <= self.revive_until <= 1:
            raise ValueError(f"revive_until={self.revive_until}: it is a fraction of the rounds, from 0 to 1")
        if self.at_least < 0:
            raise ValueError(f"at_least={self.at_least}: a layer cannot keep fewer than 0 weights")

    def revives(self, index: int) -> bool:
        """Whether pruned weights compete in round `index`, counted from 0."""
        return index < round(self.revive_until * self.rounds)


METHODS: dict[str, Method] = {
    "force": Method(criteria.saliency, rounds=60, revive_until=1.0),
    "iter-snip": Method(criteria.saliency, rounds=60),
    "hybrid": Method(criteria.saliency, rounds=60, revive_until=0.9),
    "snip": Method(criteria.saliency),
    "snip-mb": Method(criteria.saliency, batches=60),
    "grasp": Method(criteria.grasp),
    "grasp-mb": Method(criteria.grasp, batches=60),
    "grasp-taylor": Method(criteria.grasp, rounds=60),
    "iter-grasp": Method(criteria.gradient_norm, rounds=60),
    "synflow": Method(criteria.synflow, rounds=100),
    "magnitude": Method(criteria.magnitude),
    "random": Method(criteria.random),
    "erk": Method(criteria.erk),
}


def named(name: str) -> Method:
    """The method of that name.

    >>> named("forse")
    Traceback (most recent call last):
    ValueError: there is no method 'forse'; did you mean 'force'? The names are force, iter-snip, hybrid, snip, \
snip-mb, grasp, grasp-mb, grasp-taylor, iter-grasp, synflow, magnitude, random, erk
    """
    if name in METHODS:
        return METHODS[name]
    nearest = difflib.get_close_matches(name.lower(), METHODS, n=1)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    raise ValueError(f"there is no method {name!r}; {hint}The names are {', '.join(METHODS)}")
