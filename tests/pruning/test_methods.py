"""Every method against its equations, round by round, and what holds for all of them: one test over the table."""

import functools
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import hypothesis.strategies as st
import pytest
import references
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from references import Trace, assert_top, equal, few, of_round, ones, pairs, tiny, weights_of
from torch import Tensor, nn

from barebones import METHODS, Method, Probe, Round, prune, rounds
from barebones.masks import kept
from barebones.pruning import criteria
from barebones.pruning.criteria import erk_counts

BATCHES = pairs(5)
KEEP = 20


def run(name: str, keep: int = KEEP, **options: object) -> list[Round]:
    """Take all rounds of a method, with few rounds and batches."""
    return list(rounds(Probe(tiny(), BATCHES, seed=3), replace(few(name), **options), keep))


@functools.cache
def steps_of(name: str) -> list[Round]:
    """The same, once for all tests that only read them."""
    return run(name)


REFERENCES = {  # the scores of one round straight from the equations, by criterion
    criteria.saliency: references.snip,
    criteria.grasp: references.grasp,
    criteria.gradient_norm: references.gradient_norm,
    criteria.synflow: lambda model, masks, _: references.synflow(model, masks, BATCHES[0][0][:1]),
    criteria.magnitude: lambda model, *_: references.magnitude(model),
}
DETERMINED = [name for name, method in METHODS.items() if method.criterion in REFERENCES]
LEARNED = [name for name in DETERMINED if METHODS[name].needs_data]


@pytest.mark.parametrize("name", DETERMINED)
def test_every_round_is_what_the_equations_say(name):
    model, method = tiny(), few(name)
    probe = Probe(model, BATCHES)
    before = ones(weights_of(model))
    for step in rounds(probe, method, KEEP):
        scores = REFERENCES[method.criterion](model, before, of_round(BATCHES, step.index, method.batches))
        with probe.at(before, step.index, step.keep, method.batches):
            own_scores = method.criterion(probe)
        largest = max(float(s.abs().max()) for s in scores.values())
        for layer, score in scores.items():
            torch.testing.assert_close(own_scores[layer].double(), score, rtol=1e-8, atol=1e-11 * largest)
        if not method.revives(step.index):
            scores = {layer: score.where(before[layer], -torch.inf) for layer, score in scores.items()}
        assert_top(step.masks, scores, step.keep)
        before = step.masks
    assert kept(before) == KEEP


def test_the_reference_of_the_sensitivity_is_a_derivative():
    """With respect to the mask, from values of the loss alone; pruned weights too."""
    model = tiny()
    masks = {name: w > -0.1 for name, w in weights_of(model).items()}
    exact = references.sensitivity(model, masks, BATCHES[:1])
    rough = references.sensitivity_by_differences(model, masks, BATCHES[:1])
    for name in exact:
        torch.testing.assert_close(exact[name], rough[name], rtol=1e-5, atol=1e-8)


def test_synflow_sums_the_paths():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 5, bias=False), nn.ReLU(), nn.Linear(5, 3, bias=False), nn.Linear(3, 2, bias=False)
    )
    probe = Probe(model, example=torch.randn(1, 4))
    with probe.at(None, 0, 1):
        scores = METHODS["synflow"].criterion(probe)
    for score, expected in zip(
        scores.values(), references.synflow_by_paths([m.weight for m in model if hasattr(m, "weight")]), strict=True
    ):
        assert score.dtype == torch.float64
        torch.testing.assert_close(score, expected.detach())


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


def test_many_batches_are_the_mean_of_signed_gradients():
    """Not of absolute ones: those would be another criterion."""
    model = tiny()
    one_by_one = [references.sensitivity(model, ones(weights_of(model)), [b]) for b in BATCHES[:3]]
    signed = {n: sum(g[n] for g in one_by_one).abs() for n in one_by_one[0]}
    assert_top(steps_of("snip-mb")[-1].masks, signed, KEEP)


def test_a_method_of_ones_own_is_a_function():
    """Signed scores stay signed: nobody takes their absolute values (trap 12)."""
    method = Method(lambda probe: dict(probe.weights), rounds=3)
    model = tiny()
    masks = prune(model, sparsity=0.5, method=method, example=BATCHES[0][0], on_collapse="ignore").masks
    assert equal(masks, references.top(weights_of(model), 57))


def test_a_criterion_may_ask_for_everything():
    seen = []

    def criterion(probe):
        first = probe.gradient()
        second = probe.gradient()
        assert equal(first, second)
        product = probe.hessian_product()
        seen.append((probe.index, probe.keep, kept(probe.masks)))
        assert equal(probe.weights, dense)
        return {n: first[n] + product[n] + torch.rand(first[n].shape, generator=probe.generator) for n in first}

    model, dense = tiny(), weights_of(tiny())
    method = Method(criterion, rounds=2)
    first = list(rounds(Probe(model, BATCHES), method, 30))
    assert seen == [(0, first[0].keep, 114), (1, 30, first[0].keep)]
    assert equal(first[-1].masks, list(rounds(Probe(model, BATCHES), method, 30))[-1].masks)


def test_a_criterion_with_global_randomness_is_seeded_by_the_seed_and_the_round():
    def masks(outside: int, seed: int) -> list[dict[str, Tensor]]:
        torch.manual_seed(outside)
        method = Method(lambda probe: {n: torch.rand(w.shape) for n, w in probe.weights.items()}, 2, revive_until=1)
        return [r.masks for r in rounds(Probe(tiny(), BATCHES, seed=seed), method, 30)]

    assert all(equal(a, b) for a, b in zip(masks(1, 0), masks(2, 0), strict=True))
    assert not equal(masks(1, 0)[0], masks(1, 5)[0])


def test_integer_scores_stay_exact_over_rounds():
    scores = {"weight": torch.tensor([[2**24 + 1, 2**24, 2**24 + 3, 2**24 + 2]])}
    method = Method(lambda probe: dict(scores), rounds=2)
    assert list(rounds(Probe(nn.Linear(4, 1)), method, 1))[-1].masks["weight"].tolist() == [[False, False, True, False]]


def test_a_criterion_must_score_every_weight():
    for wrong in ({}, {"weight": torch.zeros(4)}, {"weight": torch.zeros(1, 4), "bias": torch.zeros(1)}):
        with pytest.raises(ValueError, match="must score every prunable weight"):
            list(rounds(Probe(nn.Linear(4, 1)), Method(lambda probe, w=wrong: w), 1))


def test_revival_into_empty_channels_can_be_forbidden():
    """Linear: the second row is empty after one round, and its weights score highest in the next."""
    turns = iter(
        [torch.tensor([[4.0, 3, 0], [0, 0, 0], [2, 0, 0]]), torch.tensor([[1.0, 0, 5], [9, 9, 9], [1, 5, 0]])] * 2
    )
    method = Method(lambda probe: {"weight": next(turns)}, 2, revive_until=1, schedule=lambda m, k, t: [3, 3])
    free = list(rounds(Probe(nn.Linear(3, 3)), method, 3))[-1]
    assert (free.recovered, free.recovered_empty) == (3, 3)
    assert free.masks["weight"].tolist() == [[False] * 3, [True] * 3, [False] * 3]
    held = list(rounds(Probe(nn.Linear(3, 3)), replace(method, revive_empty=False), 3))[-1]
    assert held.masks["weight"].tolist() == [[True, False, True], [False] * 3, [False, True, False]]
    assert (held.recovered, held.recovered_empty) == (2, 0)


def test_an_output_channel_of_a_transposed_convolution_is_its_second_dimension():
    """The weight is (in, out, size): out 1 is empty after one round, and must stay so."""
    turns = iter([torch.tensor([[4.0, 0], [3, 0], [0, 0]]), torch.tensor([[1.0, 9], [2, 9], [7, 9]])])
    method = Method(
        lambda probe: {"weight": next(turns).view(3, 2, 1)},
        rounds=2,
        revive_until=1,
        revive_empty=False,
        schedule=lambda m, k, t: [2, 2],
    )
    last = list(rounds(Probe(nn.ConvTranspose1d(3, 2, 1)), method, 2))[-1]
    assert last.masks["weight"].view(3, 2).tolist() == [[False, False], [True, False], [True, False]]
    assert last.recovered_empty == 0


def test_revival_of_scalars_and_vectors():
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.linear = nn.Parameter(torch.tensor(2.0)), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * self.scale

    method = replace(METHODS["force"], rounds=3, revive_empty=False)
    probe = Probe(Scaled(), [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))], scope="*")
    for step in rounds(probe, method, 3):
        assert kept(step.masks) == step.keep
        assert {n: m.shape for n, m in step.masks.items()} == {n: w.shape for n, w in probe.weights.items()}


def test_a_layer_without_weights_is_no_obstacle():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].weight = nn.Parameter(torch.zeros(0, 3))
    model[0].bias = nn.Parameter(torch.zeros(0))
    method = Method(lambda probe: {n: torch.ones_like(w) for n, w in probe.weights.items()}, rounds=3, revive_until=1)
    assert [kept(s.masks) for s in rounds(Probe(model), method, 2)] == [5, 3, 2]


# The traps of PEERS.md.


def collapsing() -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """A network whose gradients are all zero: its last activations are dead."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3, bias=False))
    nn.init.constant_(model[2].bias, -100.0)
    return model.double(), [(torch.randn(8, 4, dtype=torch.float64), torch.randint(3, (8,)))]


@pytest.mark.parametrize("name", LEARNED)
def test_trap_1_vanished_gradients_keep_exactly_k(name):
    model, batches = collapsing()
    method = few(name)
    steps = list(rounds(Probe(model, batches), method, 5))
    assert [kept(s.masks) for s in steps] == method.schedule(78, 5, method.rounds)
    assert steps[-1].saliency == 0.0


def test_trap_1_a_network_that_collapses_on_the_way_keeps_exactly_k():
    torch.manual_seed(0)
    model = nn.Sequential(*(m for _ in range(9) for m in (nn.Linear(6, 6, bias=False), nn.ReLU()))).double()
    batches = [(torch.rand(8, 6, dtype=torch.float64), torch.randint(6, (8,)))]
    for name in ("force", "iter-snip", "snip"):
        with pytest.warns(UserWarning, match="no signal passes"):
            result = prune(model, batches, 0.985, few(name, rounds=20))
        assert kept(result.masks) == 5
        assert result.collapsed


def test_trap_2_negative_log_likelihood_of_raw_outputs_is_another_criterion():
    model = tiny()
    probe = Probe(model, BATCHES, loss="nll-on-logits")
    step = next(rounds(probe, METHODS["snip"], KEEP))
    assert_top(step.masks, references.snip(model, ones(weights_of(model)), BATCHES[:1], loss=F.nll_loss), KEEP)
    assert not equal(step.masks, steps_of("snip")[-1].masks)
    named = next(rounds(Probe(model, BATCHES, loss="cross-entropy"), METHODS["snip"], KEEP))
    assert equal(named.masks, steps_of("snip")[-1].masks)


@pytest.mark.parametrize("bn", ["batch", "eval"])
@pytest.mark.parametrize("training", [True, False])
def test_trap_3_the_mode_of_batch_norm_decides_the_mask_and_its_statistics_stay(bn, training):
    model = tiny().train(training)
    trace = Trace(model)
    step = next(rounds(Probe(model, BATCHES, bn=bn), METHODS["snip"], KEEP))
    trace.check()
    assert_top(step.masks, references.snip(model, ones(weights_of(model)), BATCHES[:1], bn=bn), KEEP)
    other = next(rounds(Probe(model, BATCHES, bn={"batch": "eval", "eval": "batch"}[bn]), METHODS["snip"], KEEP))
    assert not equal(step.masks, other.masks)


@pytest.mark.parametrize("name", ["iter-snip", "iter-grasp", "grasp-taylor", "synflow"])
def test_trap_4_what_is_iterative_without_revival_resurrects_nothing(name):
    steps = run(name, rounds=8)
    for before, after in pairwise(steps):
        assert all((before.masks[n] | ~m).all() for n, m in after.masks.items())
    assert any(s.recovered for s in run("force", rounds=8))


def test_trap_4_pruned_weights_stay_out_even_where_live_ones_are_dead():
    """The official "minimum saliency" ties with live weights of score 0."""
    turns = iter([torch.tensor([[0.0, 0.0, 5.0, 5.0, 5.0, 5.0]]), torch.zeros(1, 6), torch.full((1, 6), -3.0)])
    method = Method(lambda probe: {"weight": next(turns)}, rounds=3, schedule=lambda m, k, t: [4, 3, 2])
    last = [s.masks["weight"].tolist()[0] for s in rounds(Probe(nn.Linear(6, 1)), method, 2)]
    assert last == [
        [False, False, True, True, True, True],
        [False, False, True, True, True, False],
        [False, False, True, True, False, False],
    ]


def test_trap_5_grasp_removes_the_highest_of_minus_theta_hg():
    """Exactly as many as asked, and those: a sum of kept scores no other choice of 20 exceeds."""
    model = tiny()
    step = next(rounds(Probe(model, BATCHES), METHODS["grasp"], KEEP))
    scores = references.grasp(model, ones(weights_of(model)), BATCHES[:1])
    flat = torch.cat([s.flatten() for s in scores.values()])
    chosen = torch.cat([m.flatten() for m in step.masks.values()])
    assert int(chosen.sum()) == KEEP
    torch.testing.assert_close(flat[chosen].sum(), flat.sort(descending=True).values[:KEEP].sum())
    assert flat.min() < 0 < flat.max()


def test_trap_5_grasp_over_batches_is_mean_hessian_times_mean_gradient():
    """Not the mean of the products."""
    model, everything = tiny(), ones(weights_of(tiny()))
    probe = Probe(model, BATCHES)
    with probe.at(None, 0, KEEP, 3):
        scores = METHODS["grasp-mb"].criterion(probe)
    right = references.grasp(model, everything, BATCHES[:3])
    for name in scores:
        torch.testing.assert_close(scores[name], right[name], rtol=1e-7, atol=1e-16)


@pytest.mark.parametrize("name", METHODS)
def test_trap_6_weights_are_never_initialized_again(name, monkeypatch):
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


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4).map(tuple), min_size=1, max_size=6), st.data())
def test_trap_8_erk_counts_add_up_and_follow_the_densities(shapes, data):
    named = {f"layer{i}": shape for i, shape in enumerate(shapes)}
    sizes = {name: torch.Size(shape).numel() for name, shape in named.items()}
    keep = data.draw(st.integers(0, sum(sizes.values())))
    counts, shares = erk_counts(named, keep), references.erk_shares(named, keep)
    assert sum(counts.values()) == keep == sum(shares.values())
    for name, count in counts.items():
        assert 0 <= count <= sizes[name]
        assert abs(Fraction(count) - shares[name]) < 1


def test_trap_8_erk_draws_those_counts():
    model = tiny()
    shapes = {name: tuple(w.shape) for name, w in weights_of(model).items()}
    for sparsity in (0.1, 0.5, 0.9):
        result = prune(model, sparsity=sparsity, method="erk", example=BATCHES[0][0], on_collapse="ignore")
        keep = round((1 - sparsity) * 114)
        assert result.rounds[0].layers == erk_counts(shapes, keep)
        assert kept(result.masks) == keep


def test_random_masks_are_uniform_over_all_weights_and_follow_the_seed():
    model = nn.Sequential(nn.Linear(40, 50), nn.Linear(50, 20))
    x = torch.ones(1, 40)
    masks = {seed: prune(model, None, 0.5, "random", seed=seed, example=x).masks for seed in (0, 1)}
    again = prune(nn.Sequential(nn.Linear(40, 50), nn.Linear(50, 20)), None, 0.5, "random", example=x).masks
    assert equal(masks[0], again)  # whatever the weights
    assert 0.4 < float((masks[0]["0.weight"] == masks[1]["0.weight"]).double().mean()) < 0.6
    assert 900 < int(masks[0]["0.weight"].sum()) < 1100


def test_the_objective_and_the_loss_are_those_of_the_masks_a_round_begins_with():
    model = tiny()
    before = ones(weights_of(model))
    for step in steps_of("force"):
        batch = of_round(BATCHES, step.index, 1)
        assert step.saliency == pytest.approx(references.objective_value(model, before, batch), rel=1e-10)
        masked = {n: w * before[n] for n, w in weights_of(model).items()}
        assert step.loss == pytest.approx(references.loss_at(model, masked, batch, F.cross_entropy).item(), rel=1e-12)
        before = step.masks


def test_sparsity_zero_is_dense():
    result = prune(tiny(), BATCHES, 0.0)
    assert kept(result.masks) == 114
    assert result.rounds == []
    assert result.collapsed == []


def test_temperature_changes_grasp_only():
    model = tiny()
    probe = Probe(model, BATCHES)
    with probe.at(None, 0, KEEP):
        cold = METHODS["grasp"].criterion(probe)
    right = references.grasp(model, ones(weights_of(model)), BATCHES[:1], temperature=1.0)
    assert not all(torch.allclose(cold[n] * 200**2, right[n], rtol=1e-3) for n in cold)


def test_the_temperature_is_the_same_for_a_loss_and_an_objective():
    def objective(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    step = next(rounds(Probe(tiny(), BATCHES, seed=3, objective=objective), METHODS["grasp"], KEEP))
    assert equal(step.masks, steps_of("grasp")[-1].masks)
