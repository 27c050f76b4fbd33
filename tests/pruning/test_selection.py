"""Exactly the k highest scores stay, for every input, by the same rule with every algorithm."""

import functools
import math
from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
import references
import torch
from hypothesis import given, settings
from references import equal
from torch import Tensor

from barebones import keep_top
from barebones.pruning import selection

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.int8, torch.bool)
EXTREMES = [0.0, -0.0, 1.0, -1.0, 1e38, -1e38, 3.4e38, 1e-45, 1.1754944e-38, 1e-40, -1e-45, 65504.0, -math.inf]
MANY = st.sampled_from([*EXTREMES, 2.0, 3.0, 4.0]) | st.floats(-10, 10, width=32)
SHAPES = [(1,), (), (7,), (1, 1), (3, 4), (2, 3, 2, 2), (5, 1), (0,), (0, 3)]


@st.composite
def layers(draw: st.DrawFn) -> dict[str, Tensor]:
    """Draw some layers of scores of any kind, type, shape and memory layout."""
    drawn = {}
    for number in range(draw(st.integers(1, 4))):
        shape = draw(st.sampled_from(SHAPES))
        count = math.prod(shape)
        kind = draw(st.sampled_from(["random", "tied", "zero", "extreme"]))
        if kind == "random":
            value = st.floats(-(2.0**100), 2.0**100, width=32)
        elif kind == "tied":
            value = st.sampled_from([0.0, 1.0, 2.0])
        elif kind == "zero":
            value = st.sampled_from([0.0, -0.0])
        else:
            value = st.sampled_from(EXTREMES)
        numbers = torch.tensor(draw(st.lists(value, min_size=count, max_size=count)), dtype=torch.float64)
        dtype = draw(st.sampled_from(DTYPES))
        if not dtype.is_floating_point:
            numbers = numbers.nan_to_num(neginf=-5).clamp(-100, 100)
        elif dtype != torch.float64:
            numbers = torch.where(
                numbers.isinf(), numbers, numbers.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max)
            )
        scores = numbers.to(dtype).view(shape)
        layout = draw(st.sampled_from(["plain", "transposed", "channels last", "strided"]))
        if layout == "transposed" and scores.dim() >= 2:
            scores = scores.transpose(0, 1).contiguous().transpose(0, 1)
        elif layout == "channels last" and scores.dim() == 4:
            scores = scores.contiguous(memory_format=torch.channels_last)
        elif layout == "strided":
            scores = torch.stack([scores, torch.ones_like(scores)], -1)[..., 0]
        drawn[f"layer{number}"] = scores
    return drawn


@st.composite
def problems(draw: st.DrawFn) -> tuple[dict[str, Tensor], int, dict[str, Tensor] | None]:
    scores = draw(layers())
    total = sum(s.numel() for s in scores.values())
    keep = draw(st.sampled_from([0, min(1, total), total, max(total - 1, 0)]) | st.integers(0, total))
    if draw(st.booleans()):
        return scores, keep, None
    bits = iter(draw(st.lists(st.booleans(), min_size=total, max_size=total)))
    prefer = {
        name: torch.tensor([next(bits) for _ in range(s.numel())], dtype=torch.bool).view(s.shape)
        for name, s in scores.items()
    }
    return scores, keep, prefer


def by_sort(
    scores: list[Tensor], keep: int, preferred: list[Tensor] | None, allowed: list[Tensor] | None
) -> list[Tensor]:
    """Select on the CPU as on an accelerator without kernels."""
    prefer, among = (None if masks is None else torch.cat(masks) for masks in (preferred, allowed))
    return list(selection._by_sort(torch.cat(scores), keep, prefer, among).split([s.numel() for s in scores]))


@pytest.fixture(scope="module", params=["bracket", "threshold", "sort"], autouse=True)
def algorithm(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the whole file with each algorithm of a machine without an NVIDIA GPU."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "bracket":
            patch.setattr(selection, "_by_bracket", by_sort if request.param == "sort" else lambda *_: None)
        yield request.param


@settings(max_examples=120, deadline=None)
@given(problems())
def test_keeps_what_a_full_sort_keeps(problem):
    scores, keep, prefer = problem
    masks = keep_top(scores, keep, prefer=prefer)
    assert equal(masks, references.top(scores, keep, prefer))
    assert all(mask.dtype == torch.bool for mask in masks.values())


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(1, 4))
def test_every_layer_keeps_its_floor_and_the_total_stays_exact(problem, floor):
    scores, keep, prefer = problem
    need = sum(min(floor, s.numel()) for s in scores.values())
    if need > keep:
        with pytest.raises(ValueError, match=f"at_least={floor} asks for {need}"):
            keep_top(scores, keep, prefer=prefer, at_least=floor)
        return
    expected = references.top(scores, keep, prefer, at_least=floor)
    assert equal(keep_top(scores, keep, prefer=prefer, at_least=floor), expected)


@settings(max_examples=60, deadline=None)
@given(problems(), st.data())
def test_weights_that_are_not_allowed_are_not_chosen_whatever_their_score(problem, data):
    scores, keep, prefer = problem
    total = sum(s.numel() for s in scores.values())
    forbidden = set(data.draw(st.lists(st.integers(0, max(total - 1, 0)), max_size=total - keep)))
    bits = iter([index not in forbidden for index in range(total)])
    among = {
        name: torch.tensor([next(bits) for _ in range(s.numel())], dtype=torch.bool).view(s.shape)
        for name, s in scores.items()
    }
    values = sorted({value for s in scores.values() for value in s.flatten().tolist()})
    ranks = {}  # finite numbers in the order of the scores, so that no score equals a forbidden one
    for name, s in scores.items():
        numbers = [values.index(value) for value in s.contiguous().flatten().tolist()]
        ranks[name] = torch.tensor(numbers, dtype=torch.float64).view(s.shape).where(among[name], -torch.inf)
    assert equal(keep_top(scores, keep, prefer=prefer, among=among), references.top(ranks, keep, prefer))


def test_the_floor_holds_against_infinite_scores():
    scores = {"a": torch.full((3,), torch.inf), "b": torch.tensor([1.0])}
    masks = keep_top(scores, 2, at_least=1)
    assert equal(masks, {"a": torch.tensor([True, False, False]), "b": torch.tensor([True])})


def test_a_layer_without_an_allowed_weight_has_no_floor():
    scores = {"a": torch.arange(4.0), "b": torch.arange(2.0)}
    among = {"a": torch.ones(4, dtype=torch.bool), "b": torch.zeros(2, dtype=torch.bool)}
    assert not keep_top(scores, 2, among=among, at_least=1)["b"].any()


def test_the_scores_are_left_alone():
    scores = {"a": torch.tensor([3.0, -0.0, 1.0]), "b": torch.tensor([[2.0, 2.0]])}
    before = {name: s.clone() for name, s in scores.items()}
    keep_top(scores, 3, at_least=1, among={name: s > 0 for name, s in scores.items()})
    assert equal(scores, before)


def test_counts_out_of_range_are_refused(algorithm):
    for keep in (-1, 4):
        with pytest.raises(ValueError, match=f"cannot keep {keep} of 3"):
            keep_top({"w": torch.ones(3)}, keep)
    if algorithm != "sort":  # an accelerator does not count, because that would wait
        with pytest.raises(ValueError, match="cannot keep 3 weights among 2"):
            keep_top({"w": torch.arange(4.0)}, 3, among={"w": torch.tensor([True, False, True, False])})


def test_large_integers_are_told_apart():
    """Single precision would make these equal."""
    scores = {"w": torch.tensor([2**24, 2**24 + 1, 2**53 - 1, 2**53 - 2])}
    assert keep_top(scores, 1)["w"].tolist() == [False, False, True, False]
    assert keep_top(scores, 3)["w"].tolist() == [False, True, True, True]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a few thousand values as many as the bracket is made for."""
    monkeypatch.setattr(selection, "SAMPLE", 2048)  # large enough for a bracket to leave something out
    monkeypatch.setattr(selection, "CHUNK", 1000)


def adversaries() -> dict[str, Tensor]:
    """Return rows of 12,000 values that mislead a sample of every eleventh value."""
    normal = torch.randn(12000, generator=torch.Generator().manual_seed(0))
    few_above = torch.zeros(12000)
    few_above[[3, 77, 78, 2501]] = torch.tensor([1.0, 2.0, 2.0, 3.0])  # between the samples
    sampled = normal.clone()
    sampled[::11] = 9.0  # the sample sees nothing else
    unsampled = normal.clone()
    unsampled[::11] = -9.0
    spread = normal.clone()
    spread[::11] = torch.linspace(-9, 9, 1091)
    return {
        "normal": normal,
        "ascending": normal.sort().values,
        "descending": normal.sort(descending=True).values,
        "one value": torch.full((12000,), 2.5),
        "zeros of both signs": torch.tensor([0.0, -0.0] * 6000),
        "two values": (normal > 0).float(),
        "few above": few_above,
        "sampled high": sampled,
        "sampled low": unsampled,
        "sampled wide": spread,
        "infinite": torch.where(normal > 0.5, normal, -torch.inf),
        "all infinite": torch.full((12000,), -torch.inf),
        "tiny": normal * 1e-44,
        "huge": normal.clamp(-3, 3) * 1e38,
        "steps": torch.arange(12000.0).div(2400).floor(),
        "doubles": normal.double() + 1e-14 * torch.arange(12000.0).double(),
    }


@functools.cache
def expected_of(name: str, keep: int, preferring: bool) -> tuple[dict[str, Tensor], ...]:
    """Return scores, preferred weights and the right masks of one of the adversaries."""
    scores = dict(zip("abcd", adversaries()[name].split([5000, 1, 0, 6999]), strict=True))
    prefer = {layer: torch.arange(s.numel()) % 3 == 1 for layer, s in scores.items()}
    return scores, prefer, references.top(scores, keep, prefer if preferring else None)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", list(adversaries()))
def test_masks_are_exact_whatever_the_sample_shows(name):
    for keep, preferring in [(1, True), (7, False), (3100, True), (6000, False), (11998, True)]:
        scores, prefer, expected = expected_of(name, keep, preferring)
        options = dict(prefer=prefer if preferring else None)
        assert equal(keep_top(scores, keep, **options), expected)
        among = {layer: (torch.arange(s.numel()) % 5 < 4) | expected[layer] for layer, s in scores.items()}
        assert equal(keep_top(scores, keep, among=among, **options), expected)


@settings(max_examples=40, deadline=None)
@given(st.lists(MANY, min_size=1, max_size=30), st.integers(2049, 9000), st.integers(0, 9), st.data())
def test_any_values_at_a_size_that_is_sampled(values, count, seed, data):
    drawn = torch.randint(len(values), (count,), generator=torch.Generator().manual_seed(seed))
    scores = {"w": torch.tensor(values)[drawn]}
    keep = data.draw(st.integers(1, count))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "SAMPLE", 2048)
        patch.setattr(selection, "CHUNK", data.draw(st.sampled_from([504, 5000])))
        assert equal(keep_top(scores, keep), references.top(scores, keep))


def test_many_values_at_the_sizes_the_search_is_made_for():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(400_000, generator=generator).mul(50).round()  # many ties
    ranked = values.sort(descending=True, stable=True)
    for keep in (1, 1000, 200_000, 399_999):
        expected = torch.zeros(values.numel(), dtype=torch.bool)
        expected[ranked.indices[:keep]] = True
        masks = keep_top({"a": values[:150_000], "b": values[150_000:]}, keep)
        assert torch.equal(torch.cat([masks["a"], masks["b"]]), expected)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.2, 0.9])
@pytest.mark.parametrize("total", [70_001, 300_000])
def test_nearly_all_of_few_allowed_weights(total, share):
    """The sample sees about as many allowed weights as are to be kept, or fewer."""
    generator = torch.Generator().manual_seed(total)
    scores = {"a": torch.randn(total, generator=generator), "b": torch.randn(9, generator=generator)}
    among = {name: torch.rand(s.shape, generator=generator) < share for name, s in scores.items()}
    most = sum(int(mask.sum()) for mask in among.values())
    flat = torch.cat([s.where(among[name], -torch.inf) for name, s in scores.items()])
    order = flat.sort(descending=True, stable=True).indices
    for keep in {1, most // 2, most - 20, most - 1, most}:
        expected = torch.zeros(flat.numel(), dtype=torch.bool)
        expected[order[:keep]] = True
        assert torch.equal(torch.cat(list(keep_top(scores, keep, among=among).values())), expected)
