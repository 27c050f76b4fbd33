"""Schedules: numbers that a reader can check, and what must hold for all of them."""

from decimal import Decimal

import hypothesis.strategies as st
import pytest
import references
from hypothesis import example, given, settings

from barebones import SCHEDULES, exponential, linear, one_shot, settle

SIZES = st.integers(1, 10**9)
ROUNDS = st.integers(1, 300)


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int]:
    total = draw(st.integers(1, 60) | SIZES)
    return total, draw(st.integers(1, total) | st.sampled_from([1, total, max(1, total - 1)]))


@settings(max_examples=200, deadline=None)
@given(sizes(), ROUNDS, st.sampled_from(sorted(SCHEDULES)))
@example((1, 1), 1, "exponential")
@example((10**12, 10**12 - 1), 300, "exponential")
def test_counts_never_grow_and_end_at_the_target(size, rounds, name):
    total, keep = size
    counts = SCHEDULES[name](total, keep, rounds)
    assert len(counts) == rounds
    assert all(type(count) is int for count in counts)
    assert counts[-1] == keep
    assert all(a >= b for a, b in zip([total, *counts], counts, strict=False))


@settings(max_examples=100, deadline=None)
@given(sizes(), st.integers(1, 60), st.floats(0.01, 1.0))
def test_counts_are_the_equations_to_the_nearest_whole(size, rounds, at):
    for count, exact in zip(exponential(*size, rounds), references.exponential(*size, rounds), strict=True):
        assert abs(count - exact) <= Decimal("0.5") + exact * Decimal("1e-13")
    assert linear(*size, rounds) == [round(exact) for exact in references.linear(*size, rounds)]
    pruning = max(1, round(at * rounds))
    assert settle(at)(*size, rounds) == exponential(*size, pruning) + [size[1]] * (rounds - pruning)


def test_numbers():
    assert exponential(23_520_832, 117_604, 3) == [4022004, 687753, 117604]  # ResNet-50 at 99.5 %
    assert exponential(100, 50, 1) == [50]
    assert linear(10, 1, 2) == [6, 1]  # 5.5, to the even one
    assert one_shot(1000, 7, 3) == [7, 7, 7]
    assert settle(0.5, then=linear)(1000, 100, 4) == [550, 100, 100, 100]
    assert SCHEDULES["settle"](10**10, 1, 10) == [*exponential(10**10, 1, 7), 1, 1, 1]


@pytest.mark.parametrize("at", [0, -0.1, 1.01, float("nan")])
def test_settle_must_prune_in_some_of_the_rounds(at):
    with pytest.raises(ValueError, match=r"settle\(at="):
        settle(at)
