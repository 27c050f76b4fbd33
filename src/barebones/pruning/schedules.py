"""Schedules: how many weights stay after each round. They are pure functions from numbers to numbers."""

import math
from collections.abc import Callable

Schedule = Callable[[int, int, int], list[int]]  # (total, keep, rounds) -> the count after each round


def exponential(total: int, keep: int, rounds: int) -> list[int]:
    """Remove the same share in each round: k_t = exp(a ln k + (1 - a) ln m) with a = t / T, t = 1..T (eq. 8).

    >>> exponential(1000, 1, 3)
    [100, 10, 1]
    """

    def count(t: int) -> int:
        a = t / rounds
        return round(math.exp(a * math.log(keep) + (1 - a) * math.log(total)))

    return [count(t) for t in range(1, rounds)] + [keep]


def linear(total: int, keep: int, rounds: int) -> list[int]:
    """Remove the same number of weights in each round.

    >>> linear(1000, 100, 3)
    [700, 400, 100]
    """
    return [round(total - (total - keep) * t / rounds) for t in range(1, rounds)] + [keep]


def one_shot(total: int, keep: int, rounds: int) -> list[int]:
    """Remove everything in the first round: every round keeps the final count.

    >>> one_shot(1000, 100, 3)
    [100, 100, 100]
    """
    return [keep] * rounds


def settle(at: float = 0.7, then: Schedule = exponential) -> Schedule:
    """Return a schedule that reaches the final count after the fraction `at` of the rounds, and stays there.

    >>> settle(0.5)(10_000, 100, 4)
    [1000, 100, 100, 100]
    """
    if not 0 < at <= 1:
        raise ValueError(f"settle(at={at}): choose a fraction of the rounds, above 0 and at most 1")

    def schedule(total: int, keep: int, rounds: int) -> list[int]:
        pruning = max(1, round(at * rounds))
        return then(total, keep, pruning) + [keep] * (rounds - pruning)

    return schedule


SCHEDULES: dict[str, Schedule] = {
    "exponential": exponential,
    "linear": linear,
    "one-shot": one_shot,
    "settle": settle(),
}
