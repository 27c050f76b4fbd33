"""The theory, on networks where every mask can be tried: it holds, it is sharp, and the paper's wording can fail."""

import itertools
import math
from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import Tensor, nn

import barebones as bb
from barebones.paper.theory import (
    Bound,
    Landscape,
    bound,
    gap,
    gaps_by_step,
    saliencies,
    smoothness,
    step,
    tanh_network,
)

WIDTHS = [(2, 2), (4, 2), (1, 1, 2), (1, 1, 1, 2), (1, 2, 2), (2, 1, 2), (2, 2, 2), (1, 2, 2, 2), (3, 2, 2), (2, 3, 2)]


# Plain, slow references: one network, one mask and one gradient at a time


def module(widths, seed, samples, scale) -> tuple[nn.Sequential, Tensor, Tensor]:
    """Return the network of `tanh_network`, made of torch's layers."""
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layer = nn.Linear(inputs, outputs, bias=False, dtype=torch.float64)
        weight = torch.randn(outputs, inputs, generator=generator, dtype=torch.float64)
        layer.weight.data = weight * scale / math.sqrt(inputs)
        layers += [layer, nn.Tanh()]
    inputs = torch.randn(samples, widths[0], generator=generator, dtype=torch.float64)
    return nn.Sequential(*layers[:-1]), inputs, torch.randint(widths[-1], (samples,), generator=generator)


class Slow:
    """The definitions as plain loops over sets of weights."""

    def __init__(self, *arguments) -> None:
        self.model, self.inputs, self.labels = module(*arguments)
        self.theta = torch.cat([p.detach().flatten() for p in self.model.parameters()]).clone()
        self.known: dict[frozenset[int], list[float]] = {}

    def gradient(self, mask) -> list[float]:
        mask = frozenset(mask)
        if mask not in self.known:
            start = 0
            for p in self.model.parameters():
                for place in range(p.numel()):
                    p.data.view(-1)[place] = self.theta[start + place] if start + place in mask else 0.0
                start += p.numel()
            self.model.zero_grad()
            F.cross_entropy(self.model(self.inputs), self.labels).backward()
            self.known[mask] = torch.cat([p.grad.flatten() for p in self.model.parameters()]).tolist()
        return self.known[mask]

    def scores(self, mask) -> list[float]:
        return [abs(float(t) * g) for t, g in zip(self.theta, self.gradient(mask), strict=True)]

    def total(self, mask) -> float:
        return sum(self.scores(mask)[i] for i in mask)

    def gap(self, after, before, swaps) -> float:
        return max(
            self.total((after - set(out)) | set(come)) - self.total(after)
            for out in itertools.combinations(after, swaps)
            for come in itertools.combinations(before - after, swaps)
        )

    def ratio(self, mask, inner, places) -> float:
        moved = sum(abs(float(self.theta[i])) for i in mask - inner)
        outer, lower = self.gradient(mask), self.gradient(inner)
        return max((abs(outer[i] - lower[i]) for i in places), default=0.0) / moved

    def smoothness(self, mask) -> float:
        return max(
            (
                self.ratio(mask, set(inner), mask)
                for count in range(len(mask))
                for inner in itertools.combinations(mask, count)
            ),
            default=0.0,
        )


def places(mask: Tensor) -> set[int]:
    return {i for i, bit in enumerate(mask.tolist()) if bit}


# The theory


def kept(*bits: int) -> Tensor:
    return torch.tensor(bits).bool()


def total(landscape: Landscape, mask: Tensor) -> float:
    return float(landscape.totals[landscape.row(mask)])


def slack(value: float) -> float:
    """Return a limit with room for rounding."""
    return value + 1e-11 * (1 + abs(value))


def quadratic(theta: list[float], curves: list[list[float]], slopes: list[float]) -> Landscape:
    """Return the landscape of w H w / 2 - b w, whose gradient is H w - b."""
    matrix, vector = torch.tensor(curves, dtype=torch.float64), torch.tensor(slopes, dtype=torch.float64)
    assert torch.equal(matrix, matrix.T)
    return Landscape(torch.tensor(theta), lambda w: ((w @ matrix) * w).sum(-1) / 2 - w @ vector)


@st.composite
def steps(draw: st.DrawFn) -> tuple[tuple, Tensor, int, int]:
    """Draw arguments of `tanh_network`, the mask c_t, how many weights stay and how many are exchanged."""
    widths = draw(st.sampled_from(WIDTHS))
    arguments = (widths, draw(st.integers(0, 10**6)), draw(st.integers(1, 8)), draw(st.sampled_from([0.5, 1, 2, 4])))
    number = sum(a * b for a, b in itertools.pairwise(widths))
    bits = draw(st.lists(st.booleans(), min_size=number, max_size=number).filter(lambda bits: sum(bits) >= 2))
    before = torch.tensor(bits) if draw(st.booleans()) else torch.ones(number, dtype=torch.bool)
    keep = draw(st.integers(1, int(before.sum()) - 1))
    return arguments, before, keep, draw(st.integers(1, min(keep, int(before.sum()) - keep, 3)))


def network(arguments: tuple) -> Landscape:
    widths, seed, samples, scale = arguments
    return tanh_network(widths, seed=seed, samples=samples, scale=scale)


@pytest.mark.slow
@settings(max_examples=15)
@given(steps())
def test_everything_equals_the_slow_reference(case):
    arguments, before, keep, swaps = case
    landscape, slow = network(arguments), Slow(*arguments)
    close = lambda value: pytest.approx(value, rel=1e-9, abs=1e-12)
    assert torch.equal(landscape.theta, slow.theta)
    old, scores = places(before), slow.scores(places(before))
    assert saliencies(landscape, before).tolist() == close(scores)
    assert total(landscape, before) == close(slow.total(old))
    after = step(landscape, before, keep)
    new = places(after)
    assert len(new) == keep
    assert new <= old
    assert min(scores[i] for i in new) >= max(scores[i] for i in old - new) - 1e-12
    revived = step(landscape, before, keep, revive=True)
    assert sum(scores[i] for i in places(revived)) == close(sum(sorted(scores)[-keep:]))
    assert gap(landscape, after, swaps, within=before) == close(slow.gap(new, old, swaps))
    if len(old) <= 8:
        limit = check(landscape, before, keep, swaps)
        wider = max(slow.smoothness(new | set(more)) for more in itertools.combinations(old - new, swaps))
        assert limit.lambda_before == pytest.approx(slow.smoothness(old), rel=1e-7, abs=1e-10)
        assert limit.lambda_swap == pytest.approx(wider, rel=1e-7, abs=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_library_s_objective_and_step(seed):
    arguments = ((3, 2, 2), seed, 8, 1.0)
    landscape, (model, inputs, labels) = network(arguments), module(*arguments)
    result = bb.prune(model, [(inputs, labels)], sparsity=0.5, method="snip", on_collapse="ignore")
    after = step(landscape, torch.ones(10, dtype=torch.bool), 5)
    assert torch.equal(torch.cat([m.flatten() for m in result.masks.values()]), after)
    assert total(landscape, after) == pytest.approx(bb.saliency(model, result.masks, [(inputs, labels)]), rel=1e-6)


# The inequality, and how sharp it is


def check(landscape: Landscape, before: Tensor, keep: int, swaps: int) -> Bound:
    after = step(landscape, before, keep)
    limit = bound(landscape, before, after, swaps)
    assert gap(landscape, after, swaps, within=before) <= slack(limit.sharp)
    assert limit.sharp <= slack(limit.total)
    return limit


@pytest.mark.slow
@settings(max_examples=100)
@given(st.integers(2, 6), st.data())
def test_the_gap_is_within_the_bound_for_quadratic_losses_of_whole_numbers(number, data):
    """These losses reveal a wrong constant soonest."""
    small = st.integers(-3, 3)
    theta = [float(data.draw(st.sampled_from([-2, -1, 0, 1, 2]))) for _ in range(number)]
    half = [[data.draw(small) for _ in range(number)] for _ in range(number)]
    curves = [[float(half[max(i, j)][min(i, j)]) for j in range(number)] for i in range(number)]
    slopes = [float(data.draw(st.integers(-9, 9))) for _ in range(number)]
    keep = data.draw(st.integers(1, number - 1))
    swaps = data.draw(st.integers(1, min(keep, number - keep)))
    check(quadratic(theta, curves, slopes), torch.ones(number, dtype=torch.bool), keep, swaps)


def worst(kept_on: int, swaps: int, pruned: int) -> tuple[Landscape, Tensor]:
    """A quadratic loss whose gap is the sharp bound: A stays, B should not have stayed, C should have, D goes."""
    kinds = "A" * (kept_on - swaps) + "B" * swaps + "C" * swaps + "D" * (pruned - swaps)
    curve = {"AB": -1.0, "AC": 1.0, "BC": -1.0, "BD": -1.0, "CD": -1.0}
    curves = [[curve.get("".join(sorted(a + b)), 0.0) for b in kinds] for a in kinds]
    ends = [sum(row) for row in curves]  # H theta
    inside = {"B": 0.0, "C": 2.0 * pruned}  # what the gradient of B is to be at c_{t+1}, that of C at the exchange
    slopes = []
    for kind, row, end in zip(kinds, curves, ends, strict=True):
        if kind == "A":
            slopes.append(end - 100.0)
        elif kind == "D":
            slopes.append(end)
        else:
            others = "AB" if kind == "B" else "AC"
            slopes.append(sum(h for h, k in zip(row, kinds, strict=True) if k in others) - inside[kind])
    return quadratic([1.0] * len(kinds), curves, slopes), torch.tensor([k in "AB" for k in kinds])


@pytest.mark.parametrize(
    ("keep", "swaps", "pruned"),
    [(k, p, s) for k in range(1, 5) for s in range(1, 5) for p in range(1, min(k, s) + 1)],
)
def test_the_sharp_bound_is_attained(keep, swaps, pruned):
    landscape, expected = worst(keep, swaps, pruned)
    before = torch.ones(keep + pruned, dtype=torch.bool)
    after = step(landscape, before, keep)
    assert torch.equal(after, expected)
    limit = bound(landscape, before, after, swaps)
    assert (max(limit.lambda_before, limit.lambda_swap), limit.margin) == (1, 0)
    assert gap(landscape, after, swaps, within=before) == limit.sharp == 2 * swaps * (keep + pruned - swaps)
    assert limit.total == 2 * swaps * (keep + pruned)


def test_the_two_constants_cannot_change_places():
    """lambda of c_t belongs to the step, lambda of the swapped supports to what stays: here they are 1 and 0."""
    curves = torch.zeros(5, 5)
    curves[1, 2:] = curves[2:, 1] = -1
    landscape = quadratic([1.0] * 5, curves.tolist(), [-1.0, -4.0, -1.0, -1.0, -1.0])
    before = torch.ones(5, dtype=torch.bool)
    after = step(landscape, before, 1)
    assert torch.equal(after, kept(1, 0, 0, 0, 0))
    limit = bound(landscape, before, after, 1)
    assert (limit.lambda_before, limit.lambda_swap, limit.margin) == (1, 0, 0)
    assert gap(landscape, after, 1, within=before) == 3 <= limit.sharp == 8
    assert replace(limit, lambda_before=limit.lambda_swap, lambda_swap=limit.lambda_before).sharp == 0


# What the paper's text says otherwise


def test_the_printed_constant_fails_where_snip_cuts_the_network():
    """One-shot SNIP keeps both output weights of a chain and not its input weight. No signal: S is 0.

    The gradient of an output weight is then tanh(0) times something, at every w: lambda of c_{t+1}, which is what the
    paper prints in its bound, is 0 for all w, and with it the bound.
    """
    landscape, before = tanh_network([1, 1, 2], seed=917299, samples=4, scale=2), kept(1, 1, 1)
    after = step(landscape, before, 2)
    assert torch.equal(after, kept(0, 1, 1))
    check(landscape, before, 2, 1)
    assert total(landscape, after) == 0
    assert gap(landscape, after, 1, within=before) == pytest.approx(0.94654, abs=1e-4)
    for scale in ([1.0, 1.0, 1.0], [0.1, -0.2, 0.3], [10.0, -20.0, 30.0]):
        assert smoothness(Landscape(landscape.theta * torch.tensor(scale), landscape.loss), after) == 0


def test_the_first_term_needs_the_swapped_support():
    """The paper bounds it with lambda of c_{t+1}, though the exchange leaves c_{t+1}. Its sum then fails."""
    landscape, before = tanh_network([1, 1, 2], seed=846386, samples=2, scale=0.5), kept(1, 1, 1)
    after = step(landscape, before, 2)
    limit = check(landscape, before, 2, 1)
    wrong = 2 * limit.largest**2 * (smoothness(landscape, after) * 2 + limit.lambda_before * 1) - limit.margin
    assert gap(landscape, after, 1, within=before) > wrong + 0.01


def test_force_may_do_worse_than_the_bound():
    """A quadratic loss, lambda 1 everywhere: c_t = {c, d}, and FORCE chooses {a, b}. The gap is 7; the bound says 4."""
    a, b, c, d = range(4)
    curves = torch.zeros(4, 4)
    for i, j, value in [(a, b, -1), (a, c, 1), (b, c, 1), (b, d, 1), (c, d, -1), (b, b, -1)]:
        curves[i, j] = curves[j, i] = value
    at = torch.tensor([50.0, 4.0, 3.0, 0.0])  # the gradient at c_t
    before = kept(0, 0, 1, 1)
    landscape = quadratic([1.0] * 4, curves.tolist(), (curves @ before.float() - at).tolist())
    after = step(landscape, before, 2, revive=True)
    assert torch.equal(after, kept(1, 1, 0, 0))
    assert max(smoothness(landscape, mask) for mask in landscape.masks) == 1
    reached = gap(landscape, after, 1, within=before | after)
    assert reached == 7 > 2 * 1 * 1 * 2  # 2 lambda p |c_t|
    with pytest.raises(ValueError, match="without revival"):
        bound(landscape, before, after, 1)


# The plot


@pytest.mark.slow
def test_the_gap_grows_with_the_step():
    rows = gaps_by_step((tanh_network([3, 2, 2], seed=seed) for seed in range(80)), keep=4)
    assert [(row.step, row.networks) for row in rows] == [(size, 80) for size in range(1, 7)]
    first, last = rows[0], rows[-1]
    assert last.gap - first.gap > 4 * math.hypot(first.error, last.error)
    assert last.gap_anywhere - first.gap_anywhere > 3 * math.hypot(first.error_anywhere, last.error_anywhere)
    assert all(a.bound < b.bound for a, b in itertools.pairwise(rows))
    assert first.saliency > last.saliency
    assert all(row.gap <= min(row.gap_anywhere + 1e-12, row.bound) for row in rows)
    assert last.gap == last.gap_anywhere  # c_t is everything


def test_a_row_is_the_mean_of_what_the_functions_say():
    networks = [tanh_network([2, 2, 2], seed=seed) for seed in range(3)]
    gaps, limits = [], []
    for landscape in networks:
        mask = torch.ones(8, dtype=torch.bool)
        for keep in (7, 6, 5):
            mask = step(landscape, mask, keep)
        after = step(landscape, mask, 3)
        gaps.append(gap(landscape, after, 2, within=mask))
        limits.append(bound(landscape, mask, after, 2).sharp)
    row = gaps_by_step(networks, 3, swaps=2)[0]
    assert (row.step, row.networks) == (2, 3)
    assert (row.gap, row.bound) == pytest.approx((sum(gaps) / 3, sum(limits) / 3))
    assert row.error == pytest.approx(float(torch.tensor(gaps, dtype=torch.float64).std()) / math.sqrt(3))
    assert math.isnan(gaps_by_step(networks[:1], 3)[0].error)


# Edges and misuse


def test_edges():
    landscape = tanh_network([2, 2])
    none_kept, all_kept = torch.zeros(4, dtype=torch.bool), torch.ones(4, dtype=torch.bool)
    assert smoothness(landscape, none_kept) == total(landscape, none_kept) == 0
    assert gap(landscape, none_kept, 0) == gap(landscape, all_kept, 0) == 0
    assert bound(landscape, all_kept, all_kept, 0).total == 0
    zero = Landscape(torch.tensor([0.0, 1.0]), lambda w: w.sum(-1).square())
    assert smoothness(zero, kept(1, 1)) == 2  # to remove a weight that is zero changes nothing


@pytest.mark.parametrize(
    ("misuse", "sentence"),
    [
        (lambda n: Landscape(torch.ones(17), n.loss), "theta has 17 weights; pass at most 16"),
        (lambda n: step(n, kept(1, 1, 0, 0), 3), "cannot keep 3 weights among 2"),
        (lambda n: gap(n, kept(1, 1, 0, 0), 3), "cannot exchange 3 of 2 kept weights with 2"),
        (lambda n: gap(n, kept(1, 1, 0, 0), 1, within=kept(1, 0, 1, 0)), "outside of c_t"),
        (lambda n: bound(n, kept(1, 1, 1, 1), ~step(n, kept(1, 1, 1, 1), 2), 1), "is not the step from before"),
    ],
)
def test_misuse_is_a_sentence(misuse, sentence):
    with pytest.raises(ValueError, match=sentence):
        misuse(tanh_network([2, 2]))
