"""What holds for every method, as one test over the table, how methods are related, and their schedules."""

from decimal import Decimal
from itertools import pairwise

import hypothesis.strategies as st
import pytest
import references
import torch
from hypothesis import example, given, settings
from pruning_runs import BATCHES, FORCE, KEEP, run, same, steps_of
from references import Trace, assert_top, equal, few, of_round, tiny
from torch import nn

from barebones import METHODS, SCHEDULES, Probe, Round, exponential, linear, one_shot, prune, rounds, settle
from barebones.masks import kept


@pytest.mark.parametrize("name", METHODS)
class TestEveryMethod:
    """One table test over METHODS: a new row is tested by being there."""

    @pytest.mark.parametrize("keep", [1, KEEP, 113, 114])
    def test_keeps_exactly_the_count_of_each_round(self, name, keep):
        method = few(name)
        steps = run(name, keep)
        assert [s.keep for s in steps] == method.schedule(114, keep, method.rounds)
        assert [kept(s.masks) for s in steps] == [s.keep for s in steps]

    def test_returns_pruned_weights_only_where_it_may(self, name):
        until = {"force": 1.0, "force-signal": 1.0, "hybrid": 0.9}.get(name, 0.0)  # of the rounds
        for before, after in pairwise(steps_of(name)):
            counted = after.pruned, after.recovered, after.recovered_empty, after.record.layers
            assert counted == references.changes(before.masks, after.masks)
            assert after.index < until * few(name).rounds or after.recovered == 0

    def test_is_deterministic_and_resumes_from_every_round(self, name, tmp_path):
        torch.manual_seed(2)
        assert same(run(name), steps_of(name))
        for step in steps_of(name)[:-1]:
            step.save(tmp_path / "round")
            rest = run(name, after=Round.load(tmp_path / "round"))
            assert same(rest, steps_of(name)[step.index + 1 :])

    def test_leaves_no_trace_and_initializes_no_weights(self, name, monkeypatch):
        model = tiny().eval()
        model[1].train()
        model(BATCHES[0][0]).sum().backward()
        for initializer in [name for name in vars(nn.init) if name.endswith("_") and name[0] != "_"]:
            monkeypatch.setattr(nn.init, initializer, None)
        monkeypatch.setattr(nn.Linear, "reset_parameters", None)
        with Trace(model) as trace:
            for _ in rounds(Probe(model, BATCHES), few(name), KEEP):
                trace.check()

    def test_is_what_prune_does(self, name):
        model, options = tiny(), dict(rounds=few(name).rounds, batches_per_round=few(name).batches_per_round)
        with Trace(model):
            result = prune(model, BATCHES, 1 - KEEP / 114, name, **options, on_collapse="ignore")
        assert equal(result.masks, steps_of(name)[-1].masks)
        assert [(r.layers, r.keep, r.pruned, r.recovered) for r in result.rounds] == [
            (s.record.layers, s.keep, s.pruned, s.recovered) for s in steps_of(name)
        ]

    def test_keeps_a_floor_in_each_layer(self, name):
        for step in run(name, changes=dict(at_least=4)):
            assert kept(step.masks) == step.keep
            assert all(count >= 4 for count in step.record.layers.values())

    def test_masks_of_a_round_are_its_own(self, name):
        steps = rounds(Probe(tiny(), BATCHES), few(name), KEEP)
        for step, expected in zip(steps, steps_of(name), strict=True):
            assert equal(step.masks, expected.masks)
            for mask in step.masks.values():
                mask.logical_not_()


def test_hybrid_is_force_and_then_iterative_snip():
    """10 rounds of which 9 revive: the first 9 are FORCE's, the last one is Iterative SNIP's from there."""
    hybrid, force = (run(name, changes=dict(rounds=10)) for name in ("hybrid", "force"))
    assert all(equal(a.masks, b.masks) for a, b in zip(hybrid[:9], force[:9], strict=True))
    assert any(s.recovered for s in force)
    scores = references.snip(tiny(), hybrid[8].masks, of_round(BATCHES, 9, 1))
    assert_top(hybrid[9].masks, {n: s.where(hybrid[8].masks[n], -torch.inf) for n, s in scores.items()}, KEEP)


@pytest.mark.parametrize(
    ("name", "changes", "other"),
    [
        ("force", dict(revive_until=0.0), "iter-snip"),
        *((name, dict(rounds=1), "snip") for name in ("force", "iter-snip", "hybrid")),
    ],
)
def test_a_method_with_other_settings_is_another_method(name, changes, other):
    assert equal(run(name, changes=changes)[-1].masks, steps_of(other)[-1].masks)


def test_sparsity_zero_is_dense():
    result = prune(tiny(), BATCHES, 0.0, FORCE)
    assert kept(result.masks) == 114
    assert result.rounds == result.collapsed == []


# Schedules.

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
def test_counts_never_grow_and_end_at_the_target(size, count, name):
    total, keep = size
    counts = SCHEDULES[name](total, keep, count)
    assert (len(counts), counts[-1], {type(count) for count in counts}) == (count, keep, {int})
    assert all(a >= b for a, b in pairwise([total, *counts]))


@settings(max_examples=100, deadline=None)
@given(sizes(), st.integers(1, 60), st.floats(0.01, 1.0))
def test_counts_are_the_equations_to_the_nearest_whole(size, times, at):
    for count, exact in zip(exponential(*size, times), references.exponential(*size, times), strict=True):
        assert abs(count - exact) <= Decimal("0.5") + exact * Decimal("1e-13")
    assert linear(*size, times) == [round(exact) for exact in references.linear(*size, times)]
    pruning = max(1, round(at * times))
    assert settle(at)(*size, times) == exponential(*size, pruning) + [size[1]] * (times - pruning)


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
