"""The theory on networks where every mask can be tried: the bound holds, is sharp, and the paper's wording can fail."""

import re
import sys
from functools import cache
from itertools import combinations, pairwise, product
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import nn

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from theory import attained, main, members, revived, tanh_network

WIDTHS = [(2, 2), (4, 2), (1, 1, 2), (1, 1, 1, 2), (1, 2, 2), (2, 1, 2), (2, 2, 2), (1, 2, 2, 2), (3, 2, 2), (2, 3, 2)]


class Slow:
    """The definitions as plain loops over sets of weights, with a network of torch's layers."""

    def __init__(self, widths, seed, samples, scale) -> None:
        generator = torch.Generator().manual_seed(seed)
        layers = [nn.Linear(i, o, bias=False, dtype=torch.float64) for i, o in pairwise(widths)]
        for layer in layers:
            layer.weight.data = nn.init.normal_(layer.weight.data, generator=generator) * scale / layer.in_features**0.5
        self.model = nn.Sequential(*[part for layer in layers for part in (nn.Tanh(), layer)][1:])
        self.inputs = torch.randn(samples, widths[0], generator=generator, dtype=torch.float64)
        self.labels = torch.randint(widths[-1], (samples,), generator=generator)
        self.theta = nn.utils.parameters_to_vector(self.model.parameters()).detach()
        self.gradient = cache(self._gradient)

    def _gradient(self, mask: frozenset) -> list[float]:
        weights = [float(t) if i in mask else 0.0 for i, t in enumerate(self.theta)]
        nn.utils.vector_to_parameters(torch.tensor(weights, dtype=torch.float64), self.model.parameters())
        loss = nn.functional.cross_entropy(self.model(self.inputs), self.labels)
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*self.model.parameters()])]).tolist()

    def scores(self, mask) -> list[float]:
        return (self.theta * torch.tensor(self.gradient(mask), dtype=torch.float64)).abs().tolist()

    def total(self, mask) -> float:
        return sum(self.scores(mask)[i] for i in mask)

    def gap(self, before, after, swaps) -> float:
        pairs = product(combinations(after, swaps), combinations(before - after, swaps))
        return max(self.total(after.difference(out).union(come)) for out, come in pairs) - self.total(after)

    def smoothness(self, mask) -> float:
        found, outer = [], self.gradient(mask)
        for inner in (frozenset(each) for count in range(len(mask)) for each in combinations(mask, count)):
            moved, lower = sum(abs(float(self.theta[i])) for i in mask - inner), self.gradient(inner)
            found += [abs(outer[i] - lower[i]) / moved for i in mask]
        return max(found)


@st.composite
def steps(draw: st.DrawFn) -> tuple[tuple, int, int, int]:
    """Draw arguments of `tanh_network`, the mask c_t, how many weights stay and how many are exchanged."""
    widths = draw(st.sampled_from(WIDTHS))
    arguments = (widths, draw(st.integers(0, 10**6)), draw(st.integers(1, 8)), draw(st.sampled_from([0.5, 1, 2, 4])))
    full = 2 ** sum(a * b for a, b in pairwise(widths)) - 1
    before = draw(st.just(full) | st.integers(3, full).filter(lambda mask: mask.bit_count() >= 2))
    keep = draw(st.integers(1, before.bit_count() - 1))
    return arguments, before, keep, draw(st.integers(1, min(keep, before.bit_count() - keep, 3)))


@settings(max_examples=15)
@given(steps())
def test_everything_equals_the_slow_reference(case):
    arguments, before, keep, swaps = case
    landscape, slow = tanh_network(*arguments), Slow(*arguments)
    assert torch.equal(landscape.theta, slow.theta)
    close = lambda value: pytest.approx(value, rel=1e-7, abs=1e-10)
    after, old = landscape.step(before, keep), frozenset(members(before))
    new, scores = frozenset(members(after)), slow.scores(old)
    assert landscape.scores[before].tolist() == close(scores)
    assert (len(new), new <= old) == (keep, True)
    margin, gap = min(scores[i] for i in new) - max(scores[i] for i in old - new), slow.gap(old, new, swaps)
    assert margin >= -1e-12
    assert sum(scores[i] for i in members(landscape.step(before, keep, True))) == close(sum(sorted(scores)[-keep:]))
    assert float(landscape.totals[after]) == close(slow.total(new))
    assert landscape.gap(before, after, swaps) == close(gap)
    if len(old) <= 8:
        wider = max(slow.smoothness(new.union(more)) for more in combinations(old - new, swaps))
        first, factor = slow.smoothness(old), 2 * swaps * float(slow.theta.abs().max()) ** 2
        sharp = factor * (wider * (keep - swaps) + first * (len(old) - keep)) - margin * swaps
        assert landscape.bound(before, after, swaps) == close((sharp, factor * max(first, wider) * len(old)))
        assert gap - 1e-9 * (1 + sharp) <= sharp <= factor * max(first, wider) * len(old) + 1e-9


def test_the_bound_is_attained_and_does_not_hold_for_force():
    best, force = attained(), revived()
    assert (best.step(0b1111, 2), best.lambdas(0b1111, 0b0011, 1)) == (0b0011, (1, 1))
    assert best.gap(0b1111, 0b0011, 1) == best.bound(0b1111, 0b0011, 1)[0] == 6
    assert force.step(0b1100, 2, revive=True) == 0b0011
    assert max(force.smoothness(mask) for mask in range(1, 16)) == 1
    assert force.gap(0b1111, 0b0011, 1) == 7 > 2 * 1 * 1 * 2  # 2 lambda p |c_t|


def test_the_script_prints_the_numbers_of_the_page(capsys):
    main()
    printed, page = capsys.readouterr().out, Path(__file__).parents[2].joinpath("docs", "theory.md").read_text("utf-8")
    assert set(re.findall(r"^\|\d.*", page, re.MULTILINE)) == set(re.findall(r"^\|\d.*", printed, re.MULTILINE))
    for line in ("last line: gap 0.947, bound 0", "first term: gap 0.081, bound 0.067", "FORCE: gap 7, bound 4"):
        assert f"{line}\n" in printed
    assert set(re.findall(r"\d+\.\d+", printed)) <= set(re.findall(r"\d+\.\d+", page))
