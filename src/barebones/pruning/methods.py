"""Methods: each is a row of data. It names a criterion, the rounds, the batches per round and the rule of revival."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..imports import named
from ..masks import Scores
from ..messages import unknown
from ..names import TARGETS, UNITS
from . import criteria, patterns
from . import densities as laws
from .probe import Probe
from .schedules import SCHEDULES, Schedule, exponential

Criterion = Callable[[Probe], Scores]
GRAY = "#888888"  # the color of a method that names none
MARKERS = tuple(".,ov^<>12348spP*hH+xXDd|_")  # of Matplotlib


@dataclass(frozen=True)
class Method:
    """How to prune, and how to show it.

    `revive_until` is the fraction of the rounds in which pruned weights may return: 1.0 is FORCE, 0.0 is Iterative
    SNIP. `revive_empty=False` forbids their return into output channels that keep no weight. `at_least` is the minimum
    of kept weights in each layer, and `min_per_channel` that in each output channel that keeps any, except in the last
    layer, whose channels are the network's outputs. With `densities`, each layer keeps its own number of weights, and
    weights compete within their layer: "uniform", "erk" (Erdős-Rényi kernel), masks whose counts to take, or a dict
    with the share that each layer keeps. `pattern` is "N:M", so that at most N of M weights along the inputs stay, or
    "block:RxC", so that blocks of R outputs and C inputs stay or go. With the `unit` "channel", coupled groups of
    channels stay or go, and sparsity is the fraction of the `target` that is removed: "weights" or "flops".
    `protocol_rounds` says whether a data set's protocol sets the number of rounds (T) and of batches per round (B); a
    method of one round over several batches then reads T x B batches.

    A method of your own needs one function (on the command line, `--method file.py:name`):

    >>> Method(lambda probe: {name: w.square() for name, w in probe.weights.items()}, rounds=3).rounds
    3
    """

    criterion: Criterion
    rounds: int = 1
    batches_per_round: int = 1
    revive_until: float = 0.0
    schedule: Schedule = exponential
    revive_empty: bool = True
    at_least: int = 0
    densities: laws.Densities | None = None
    min_per_channel: int = 0
    pattern: str | None = None
    unit: str = "weight"
    target: str = "weights"
    needs_data: bool = True
    protocol_rounds: bool = True
    label: str = ""  # in plots and tables; if empty, the name of the row
    color: str = GRAY
    marker: str = "o"  # one of `MARKERS`

    def __post_init__(self) -> None:
        for name, least in {"rounds": 1, "batches_per_round": 1, "at_least": 0, "min_per_channel": 0}.items():
            value = getattr(self, name)
            if type(value) is not int or value < least:  # nor True
                raise ValueError(f"{name}={value!r}: it must be a whole number, at least {least}")
        laws.check(self.densities)
        if self.pattern is not None:
            patterns.parsed(self.pattern)
        for name, known in {"unit": UNITS, "target": TARGETS}.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r}: choose {' or '.join(known)}")
        whole = self.unit == "channel"
        if self.target == "flops" and not whole:
            raise ValueError("target='flops' counts those of whole channels; add unit='channel'")
        others = {"densities= (erk has them)": self.densities is not None, "min_per_channel=": self.min_per_channel}
        of_weights = {"pattern=": self.pattern, "at_least=": self.at_least, "revive_empty=False": not self.revive_empty}
        for option, clashes in ("unit='channel'", whole and others | of_weights), ("pattern=", self.pattern and others):
            if clashes and (other := next(filter(clashes.get, clashes), None)):
                raise ValueError(f"{option} and {other} exclude each other; leave one of them out")
        if not callable(self.criterion):
            raise ValueError(f"criterion={self.criterion!r}: it must be a function from a probe to scores")
        if not isinstance(self.revive_until, int | float) or not 0 <= self.revive_until <= 1:
            raise ValueError(f"revive_until={self.revive_until!r}: it is a fraction of the rounds, from 0 to 1")
        if not re.fullmatch("#[0-9A-Fa-f]{6}", self.color):
            raise ValueError(f"color={self.color!r}: it must be six hexadecimal digits, such as {GRAY!r}")
        if self.marker not in MARKERS:
            raise ValueError(f"marker={self.marker!r}: it must be one of Matplotlib's, {' '.join(MARKERS)}")

    def revives(self, index: int) -> bool:
        """Return whether pruned weights compete in round `index`, counted from 0."""
        return index < round(self.revive_until * self.rounds)


METHODS: dict[str, Method] = {  # neighbors in a plot differ in color and marker, also for color-blind eyes
    "force": Method(criteria.saliency, rounds=60, revive_until=1.0, label="FORCE", color="#D55E00", marker="o"),
    "iter-snip": Method(criteria.saliency, rounds=60, label="Iter SNIP", color="#0072B2", marker="s"),
    "hybrid": Method(criteria.saliency, rounds=60, revive_until=0.9, label="Hybrid", color="#CC79A7", marker="D"),
    "force-signal": Method(
        criteria.signal_saliency, rounds=60, revive_until=1.0, label="FORCE, signals", color="#A52A2A", marker="v"
    ),
    "snip": Method(criteria.saliency, label="SNIP", color="#56B4E9", marker="^"),
    "snip-mb": Method(criteria.saliency, batches_per_round=60, label="SNIP-MB", color="#332288", marker="D"),
    "grasp": Method(criteria.grasp, label="GRASP", color="#009E73", marker="v"),
    "grasp-mb": Method(criteria.grasp, batches_per_round=60, label="GRASP-MB", color="#661100", marker="s"),
    "grasp-taylor": Method(criteria.grasp, rounds=60, label="GRASP iterated", color="#004D40", marker="^"),
    "iter-grasp": Method(criteria.gradient_norm, rounds=60, label="Iter GRASP", color="#E69F00", marker="P"),
    "synflow": Method(
        criteria.synflow, 100, needs_data=False, protocol_rounds=False, label="SynFlow", color="#D4C200", marker="o"
    ),
    "magnitude": Method(criteria.magnitude, needs_data=False, label="Magnitude", color="#882255", marker="v"),
    "random": Method(criteria.random, needs_data=False, label="Random", color="#686868", marker="X"),
    "erk": Method(
        criteria.random, densities="erk", needs_data=False, label="Random (ERK)", color="#8C510A", marker="X"
    ),
}


def as_method(method: str | Method) -> Method:
    """Return the row of that name, or the `Method` itself.

    >>> as_method("forse")
    Traceback (most recent call last):
    ValueError: there is no method 'forse'; did you mean 'force'? Choose one of force, iter-snip, ...
    """
    if isinstance(method, Method):
        return method
    if not isinstance(method, str):
        hint = "; wrap your criterion in bb.Method(...)" if callable(method) else ""
        raise ValueError(f"method={method!r} is neither a name nor a bb.Method{hint}")
    if method not in METHODS:
        raise ValueError(unknown("method", method, METHODS))
    return METHODS[method]


def imported(name: str) -> Method:
    """Import a method of the user's own, a `Method` or its criterion, and register it in `METHODS` under this name."""
    found = named(name, "method")
    if not isinstance(found, Method) and (isinstance(found, type) or not callable(found)):
        raise ValueError(f"{name} is not a function; name one that takes a probe and returns scores, or a bb.Method")
    METHODS[name] = found if isinstance(found, Method) else Method(found)
    return METHODS[name]


def resolved(method: str | Method, **changes: Any) -> Method:
    """Return the method with the settings that the caller changed; None leaves a setting as it is."""
    row = as_method(method)
    changes = {name: value for name, value in changes.items() if value is not None}
    rounds, schedule = changes.get("rounds", 1), changes.get("schedule")
    if isinstance(method, str) and row.rounds == 1 and rounds != 1:
        raise ValueError(f"{method} is one round by definition, not {rounds}; choose an iterative method")
    if isinstance(schedule, str):
        if schedule not in SCHEDULES:
            raise ValueError(unknown("schedule", schedule, SCHEDULES))
        changes["schedule"] = SCHEDULES[schedule]
    return replace(row, **changes)
