"""What holds for every method, as one test over the table, and how methods are related."""

from itertools import pairwise

import pytest
import references
import torch
from pruning_runs import BATCHES, KEEP, run, steps_of
from references import Trace, assert_top, equal, few, of_round, tiny, weights_of
from torch import nn

from barebones import METHODS, Probe, Round, prune, rounds
from barebones.masks import kept


@pytest.mark.parametrize("name", METHODS)
class TestEveryMethod:
    """One table test over METHODS: a new row is tested by being there."""

    def test_keeps_exactly_the_count_of_each_round(self, name):
        steps = steps_of(name)
        method, total = few(name), 114
        assert [s.keep for s in steps] == method.schedule(total, KEEP, method.rounds)
        assert [kept(s.masks) for s in steps] == [s.keep for s in steps]
        assert [sum(s.record.layers.values()) for s in steps] == [s.keep for s in steps]

    def test_returns_pruned_weights_only_where_it_may(self, name):
        method = few(name)
        for before, after in pairwise(steps_of(name)):
            returned = {n: mask & ~before.masks[n] for n, mask in after.masks.items()}
            gone = {n: before.masks[n] & ~mask for n, mask in after.masks.items()}
            assert (after.recovered, after.pruned) == (kept(returned), kept(gone))
            assert method.revives(after.index) or after.recovered == 0

    def test_is_deterministic(self, name):
        torch.manual_seed(1)
        first = run(name)
        torch.manual_seed(2)
        second = run(name)
        for a, b in zip(first, second, strict=True):
            assert equal(a.masks, b.masks)
            assert torch.equal(a.counted.integers, b.counted.integers)
            assert torch.equal(a.counted.floats.nan_to_num(), b.counted.floats.nan_to_num())

    def test_resumes_from_every_round(self, name, tmp_path):
        all_steps = steps_of(name)
        for step in all_steps[:-1]:
            step.save(tmp_path / "round")
            loaded = Round.load(tmp_path / "round")
            assert equal(loaded.masks, step.masks)
            rest = list(rounds(Probe(tiny(), BATCHES, seed=3), few(name), KEEP, after=loaded))
            assert [r.index for r in rest] == [r.index for r in all_steps[step.index + 1 :]]
            for a, b in zip(rest, all_steps[step.index + 1 :], strict=True):
                assert equal(a.masks, b.masks)
                assert torch.equal(a.counted.integers, b.counted.integers)
                assert torch.equal(a.counted.floats.nan_to_num(), b.counted.floats.nan_to_num())

    def test_leaves_no_trace(self, name):
        model = tiny().eval()
        model[1].train()
        model(BATCHES[0][0]).sum().backward()
        trace = Trace(model)
        for _ in rounds(Probe(model, BATCHES), few(name), KEEP):
            trace.check()
        trace.check()
        prune(model, BATCHES, 0.8, name, rounds=few(name).rounds, batches_per_round=2, on_collapse="ignore")
        trace.check()

    @pytest.mark.parametrize("keep", [1, 113, 114])
    def test_keeps_one_or_nearly_all_or_all(self, name, keep):
        steps = run(name, keep=keep)
        assert [kept(s.masks) for s in steps] == [s.keep for s in steps]

    def test_is_what_prune_does(self, name):
        method = few(name)
        result = prune(
            tiny(), BATCHES, 1 - KEEP / 114, name, rounds=method.rounds, batches_per_round=method.batches, seed=3,
            on_collapse="ignore",
        )  # fmt: skip
        steps = steps_of(name)
        assert equal(result.masks, steps[-1].masks)
        assert [r.layers for r in result.rounds] == [s.record.layers for s in steps]
        assert [(r.keep, r.pruned, r.recovered) for r in result.rounds] == [
            (s.keep, s.pruned, s.recovered) for s in steps
        ]

    def test_keeps_a_floor_in_each_layer(self, name):
        for step in run(name, at_least=4):
            assert kept(step.masks) == step.keep
            assert all(count >= 4 for count in step.record.layers.values())

    def test_masks_of_a_round_are_its_own(self, name):
        expected = steps_of(name)
        seen = []
        for step in rounds(Probe(tiny(), BATCHES, seed=3), few(name), KEEP):
            seen.append({n: m.clone() for n, m in step.masks.items()})
            for mask in step.masks.values():
                mask.logical_not_()
        assert all(equal(a, b.masks) for a, b in zip(seen, expected, strict=True))


def test_hybrid_is_force_and_then_iterative_snip():
    """10 rounds of which 9 revive: the first 9 are FORCE's, the last one is Iterative SNIP's from there."""
    hybrid = run("hybrid", rounds=10)
    force = run("force", rounds=10)
    assert all(equal(a.masks, b.masks) for a, b in zip(hybrid[:9], force[:9], strict=True))
    assert any(s.recovered for s in force)
    scores = references.snip(tiny(), hybrid[8].masks, of_round(BATCHES, 9, 1))
    assert_top(hybrid[9].masks, {n: s.where(hybrid[8].masks[n], -torch.inf) for n, s in scores.items()}, KEEP)


def test_force_in_no_reviving_round_is_iterative_snip():
    assert equal(run("force", revive_until=0.0)[-1].masks, steps_of("iter-snip")[-1].masks)


@pytest.mark.parametrize("name", ["force", "iter-snip", "hybrid"])
def test_one_round_is_snip(name):
    assert equal(run(name, rounds=1)[-1].masks, steps_of("snip")[-1].masks)


@pytest.mark.parametrize("name", ["iter-snip", "iter-grasp", "grasp-taylor", "synflow"])
def test_what_is_iterative_without_revival_resurrects_nothing(name):
    steps = run(name, rounds=8)
    for before, after in pairwise(steps):
        assert all((before.masks[n] | ~m).all() for n, m in after.masks.items())
    assert any(s.recovered for s in run("force", rounds=8))


@pytest.mark.parametrize("name", METHODS)
def test_weights_are_never_initialized_again(name, monkeypatch):
    """Neither in place nor on the side: the digest is that of the model's own weights, and no initializer runs."""
    model = tiny()
    before = weights_of(model)
    for initializer in (
        "kaiming_uniform_",
        "kaiming_normal_",
        "xavier_normal_",
        "xavier_uniform_",
        "normal_",
        "uniform_",
    ):
        monkeypatch.setattr(nn.init, initializer, None)
    monkeypatch.setattr(nn.Linear, "reset_parameters", None)
    steps = list(rounds(Probe(model, BATCHES), few(name), KEEP))
    assert equal(weights_of(model), before)
    assert len({s.weights_digest for s in steps}) == 1


def test_sparsity_zero_is_dense():
    result = prune(tiny(), BATCHES, 0.0)
    assert kept(result.masks) == 114
    assert result.rounds == []
    assert result.collapsed == []
