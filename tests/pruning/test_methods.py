"""What holds for every method, as one test over the table; their schedules; criteria of one's own, and revival."""

from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import pytest
import references
import torch
import zoo
from hypothesis import example, given, settings
from pruning_runs import BATCHES, FORCE, KEEP, run, same, steps_of
from references import Trace, equal, few, tiny, weights_of
from torch import nn

from barebones import METHODS, SCHEDULES, Method, Probe, Round, exponential, linear, prune, rounds, settle
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


def test_sparsity_zero_is_dense():
    result = prune(tiny(), BATCHES, 0.0, FORCE)
    assert kept(result.masks) == 114
    assert result.rounds == result.collapsed == []


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int]:
    total = draw(st.integers(1, 60) | st.integers(1, 10**9))
    return total, draw(st.integers(1, total) | st.sampled_from([1, total, max(1, total - 1)]))


@settings(max_examples=200, deadline=None)
@given(sizes(), st.integers(1, 300), st.sampled_from(sorted(SCHEDULES)))
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
    for then in (exponential, linear):
        assert settle(at, then=then)(*size, times) == then(*size, pruning) + [size[1]] * (times - pruning)


@pytest.mark.parametrize("at", [0, -0.1, 1.01, float("nan")])
def test_settle_must_prune_in_some_of_the_rounds(at):
    with pytest.raises(ValueError, match=r"settle\(at="):
        settle(at)


def test_a_method_of_ones_own_is_a_function():
    """Signed scores stay signed: nobody takes their absolute values."""
    method = Method(lambda probe: dict(probe.weights), rounds=3)
    model = tiny()
    masks = prune(model, sparsity=0.5, method=method, example=BATCHES[0][0], on_collapse="ignore").masks
    assert equal(masks, references.top(weights_of(model), 57))


def test_a_criterion_may_ask_for_everything():
    calls = []

    def criterion(probe):
        first = probe.gradient()
        second = probe.gradient()
        assert equal(first, second)
        product = probe.hessian_product()
        calls.append((probe.index, probe.keep, kept(probe.masks)))
        assert equal(probe.weights, dense)
        return {n: first[n] + product[n] + torch.rand(first[n].shape, generator=probe.generator) for n in first}

    model, dense = tiny(), weights_of(tiny())
    method = Method(criterion, rounds=2)
    first = list(rounds(Probe(model, BATCHES), method, 30))
    assert calls == [(0, first[0].keep, 114), (1, 30, first[0].keep)]
    assert equal(first[-1].masks, list(rounds(Probe(model, BATCHES), method, 30))[-1].masks)


def test_a_criterion_with_global_randomness_is_seeded_by_the_seed_and_the_round():
    method = Method(lambda probe: {n: torch.rand(w.shape) for n, w in probe.weights.items()}, 2, revive_until=1)
    first, repeated, other = (run(method, seed=seed) for seed in (0, 0, 5))
    assert same(first, repeated)
    assert not equal(first[0].masks, other[0].masks)


def scripted(*scores: list[Any], counts: list[int], **options: Any) -> Method:
    """Return a method that gives these scores to the one weight of a layer, round by round."""
    turns = [torch.tensor(turn).float() for turn in scores]
    return Method(lambda probe: {"weight": turns[probe.index].view(probe.weights["weight"].shape)}, len(counts),
                  schedule=lambda m, k, t: counts, **options)  # fmt: skip


def test_revival_into_empty_channels_can_be_forbidden():
    """The second row is empty after one round, and its weights score highest in the next."""
    scores = [[4, 3, 0], [0, 0, 0], [2, 0, 0]], [[1, 0, 5], [9, 9, 9], [1, 5, 0]]
    method = scripted(*scores, counts=[3, 3], revive_until=1)
    free, held = (run(replace(method, revive_empty=e), 3, nn.Linear(3, 3), None)[-1] for e in (True, False))
    assert (free.recovered, free.recovered_empty) == (3, 3)
    assert free.masks["weight"].tolist() == [[False] * 3, [True] * 3, [False] * 3]
    assert (held.recovered, held.recovered_empty) == (2, 0)
    assert held.masks["weight"].tolist() == [[True, False, True], [False] * 3, [False, True, False]]


def test_an_output_channel_of_a_transposed_convolution_is_its_second_dimension():
    """The weight is (in, out, size): out 1 is empty after one round, and must stay so."""
    method = scripted([[4, 0], [3, 0], [0, 0]], [[1, 9], [2, 9], [7, 9]], counts=[2, 2], revive_until=1)
    last = run(replace(method, revive_empty=False), 2, nn.ConvTranspose1d(3, 2, 1), None)[-1]
    assert last.masks["weight"].view(3, 2).tolist() == [[False, False], [True, False], [True, False]]
    assert last.recovered_empty == 0


def test_revival_of_scalars_and_vectors():
    model = zoo.Net(lambda net, x: net.layer(x) * net.scale, scale=nn.Parameter(torch.ones(())), layer=nn.Linear(3, 2))
    batches = [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))]
    for step in run(FORCE, 3, model, batches, scope="*", changes=dict(revive_empty=False)):
        assert kept(step.masks) == step.keep
        assert {n: m.shape for n, m in step.masks.items()} == {n: p.shape for n, p in model.named_parameters()}


def test_a_layer_without_weights_is_no_obstacle():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].weight = nn.Parameter(torch.zeros(0, 3))
    model[0].bias = nn.Parameter(torch.zeros(0))
    method = Method(lambda probe: {n: torch.ones_like(w) for n, w in probe.weights.items()}, rounds=3, revive_until=1)
    assert [kept(s.masks) for s in rounds(Probe(model), method, 2)] == [5, 3, 2]


def test_pruned_weights_stay_out_even_where_live_ones_are_dead():
    """The official "minimum saliency" ties with live weights of score 0."""
    method = scripted([0, 0, 5, 5, 5, 5], [0] * 6, [-3] * 6, counts=[4, 3, 2])
    steps = run(method, 2, nn.Linear(6, 1), None)
    stay = [step.masks["weight"].flatten().nonzero().flatten().tolist() for step in steps]
    assert stay == [[2, 3, 4, 5], [2, 3, 4], [2, 3]]


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.needs_data])
def test_vanished_gradients_keep_exactly_k(name):
    model, x = zoo.build("mlp")
    nn.init.constant_(model[0].bias, -100.0)  # no activation is alive
    nn.init.zeros_(model[2].weight)
    steps = run(name, 5, model, [(x, torch.tensor([0, 1, 2, 0]))])
    assert [kept(s.masks) for s in steps] == few(name).schedule(42, 5, few(name).rounds)
    assert steps[-1].saliency == 0.0
