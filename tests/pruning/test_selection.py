"""Exactly the k highest scores stay, for every input, by the same rule on the host and on the device."""

import math

import hypothesis.strategies as st
import pytest
import references
import torch
from hypothesis import given, settings
from references import equal
from torch import Tensor

from barebones import keep_top
from barebones.pruning import selection
from barebones.pruning.selection import kth_largest, top_on_device

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.int8, torch.bool)
EXTREMES = [0.0, -0.0, 1.0, -1.0, 1e38, -1e38, 3.4e38, 1e-45, 1.1754944e-38, 1e-40, -1e-45, 65504.0, -math.inf]
MANY = st.sampled_from([*EXTREMES, 2.0, 3.0, 4.0]) | st.floats(-10, 10, width=32)
SHAPES = [(1,), (), (7,), (1, 1), (3, 4), (2, 3, 2, 2), (5, 1), (0,), (0, 3)]


@st.composite
def layers(draw: st.DrawFn) -> dict[str, Tensor]:
    """Some layers of scores: of any kind, type and shape, laid out in memory in any way."""
    found = {}
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
        found[f"layer{number}"] = scores
    return found


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


@settings(max_examples=300, deadline=None)
@given(problems())
def test_the_host_keeps_what_a_full_sort_keeps(problem):
    scores, keep, prefer = problem
    masks = keep_top(scores, keep, prefer=prefer)
    assert equal(masks, references.top(scores, keep, prefer))
    assert all(m.dtype == torch.bool for m in masks.values())


@settings(max_examples=200, deadline=None)
@given(problems())
def test_the_device_keeps_what_a_full_sort_keeps(problem):
    scores, keep, prefer = problem
    flat = torch.cat([s.reshape(-1).double() for s in scores.values()])
    if not 0 < keep < flat.numel():
        return
    wanted = None if prefer is None else torch.cat([p.reshape(-1) for p in prefer.values()])
    expected = torch.cat([m.reshape(-1) for m in references.top(scores, keep, prefer).values()])
    assert torch.equal(top_on_device(flat, keep, wanted), expected)
    narrow = flat.to(torch.float32)  # ties that rounding makes are ties of its own
    own = references.top({"w": narrow}, keep, None if wanted is None else {"w": wanted})["w"]
    assert torch.equal(top_on_device(narrow, keep, wanted), own)


@settings(max_examples=200, deadline=None)
@given(problems(), st.integers(1, 4))
def test_every_layer_keeps_its_floor_and_the_total_stays_exact(problem, floor):
    scores, keep, prefer = problem
    need = sum(min(floor, s.numel()) for s in scores.values())
    if need > keep:
        with pytest.raises(ValueError, match=f"at_least={floor} asks for {need}"):
            keep_top(scores, keep, prefer=prefer, at_least=floor)
        return
    assert equal(
        keep_top(scores, keep, prefer=prefer, at_least=floor), references.top(scores, keep, prefer, at_least=floor)
    )


@settings(max_examples=200, deadline=None)
@given(problems(), st.data())
def test_weights_out_of_question_are_not_chosen_whatever_their_score(problem, data):
    scores, keep, prefer = problem
    total = sum(s.numel() for s in scores.values())
    out = set(data.draw(st.lists(st.integers(0, max(total - 1, 0)), max_size=total - keep)))
    bits = iter([place not in out for place in range(total)])
    among = {
        n: torch.tensor([next(bits) for _ in range(s.numel())], dtype=torch.bool).view(s.shape)
        for n, s in scores.items()
    }
    found = keep_top(scores, keep, prefer=prefer, among=among)
    ranks = {n: torch.zeros(s.shape, dtype=torch.float64) for n, s in scores.items()}  # of finite numbers, so that
    values = sorted({v for s in scores.values() for v in s.flatten().tolist()})  # nothing equals what is forbidden
    for n, s in scores.items():
        places = [values.index(v) for v in s.contiguous().flatten().tolist()]
        ranks[n] = torch.tensor(places, dtype=torch.float64).view(s.shape).where(among[n], -torch.inf)
    assert equal(found, references.top(ranks, keep, prefer))


def test_the_floor_holds_against_infinite_scores():
    scores = {"a": torch.full((3,), torch.inf), "b": torch.tensor([1.0])}
    masks = keep_top(scores, 2, at_least=1)
    assert equal(masks, {"a": torch.tensor([True, False, False]), "b": torch.tensor([True])})


def test_the_scores_are_left_alone():
    scores = {"a": torch.tensor([3.0, -0.0, 1.0]), "b": torch.tensor([[2.0, 2.0]])}
    before = {name: s.clone() for name, s in scores.items()}
    keep_top(scores, 3, at_least=1)
    assert equal(scores, before)


def test_counts_out_of_range_are_refused():
    for keep in (-1, 4):
        with pytest.raises(ValueError, match=f"cannot keep {keep} of 3"):
            keep_top({"w": torch.ones(3)}, keep)


def test_large_integers_are_told_apart():
    """Single precision would make these equal."""
    scores = {"w": torch.tensor([2**24, 2**24 + 1, 2**53 - 1, 2**53 - 2])}
    assert keep_top(scores, 1)["w"].tolist() == [False, False, True, False]
    assert keep_top(scores, 3)["w"].tolist() == [False, True, True, True]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A threshold search that has to narrow down, in pieces, a few thousand values."""
    monkeypatch.setattr(selection, "SAMPLE", 2048)  # large enough for a bracket to leave something out
    monkeypatch.setattr(selection, "CHUNK", 1000)


def adversaries() -> dict[str, Tensor]:
    """Each of 12,000 values, of which a sample is every eleventh."""
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


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", list(adversaries()))
def test_the_threshold_is_exact_whatever_the_sample_shows(name):
    values = adversaries()[name]
    ranked = values.sort(descending=True).values.tolist()
    parts = list(values.split([5000, 1, 0, 6999]))
    for k in [*range(1, 12), *range(12, len(ranked), 1009), *range(len(ranked) - 9, len(ranked) + 1)]:
        assert kth_largest(parts, k) == ranked[k - 1], k


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", list(adversaries()))
@pytest.mark.parametrize("preferring", [False, True])
def test_masks_are_exact_whatever_the_sample_shows(name, preferring):
    values = adversaries()[name]
    scores = dict(zip("abcd", values.split([5000, 1, 0, 6999]), strict=True))
    prefer = {n: torch.arange(s.numel()) % 3 == 1 for n, s in scores.items()} if preferring else None
    for keep in (1, 6000, 11998):
        expected = references.top(scores, keep, prefer)
        assert equal(keep_top(scores, keep, prefer=prefer), expected)
        among = {n: (torch.arange(s.numel()) % 5 < 4) | expected[n] for n, s in scores.items()}
        assert equal(keep_top(scores, keep, prefer=prefer, among=among), expected)
        wanted = None if prefer is None else torch.cat(list(prefer.values()))
        assert torch.equal(top_on_device(values, keep, wanted), torch.cat(list(expected.values())))


@settings(max_examples=60, deadline=None)
@given(st.lists(MANY, min_size=1, max_size=30), st.integers(2049, 9000), st.integers(0, 9), st.data())
def test_the_threshold_of_anything(values, count, seed, data):
    chosen = torch.randint(len(values), (count,), generator=torch.Generator().manual_seed(seed))
    found = torch.tensor(values)[chosen]
    k = data.draw(st.integers(1, count))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "SAMPLE", 2048)
        patch.setattr(selection, "CHUNK", data.draw(st.sampled_from([504, 5000])))
        assert kth_largest([found], k) == found.sort(descending=True).values[k - 1]


def test_many_values_at_the_sizes_the_search_is_made_for():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(400_000, generator=generator).mul(50).round()  # many ties
    ranked = values.sort(descending=True, stable=True)
    for keep in (1, 1000, 200_000, 399_999):
        expected = torch.zeros(values.numel(), dtype=torch.bool)
        expected[ranked.indices[:keep]] = True
        masks = keep_top({"a": values[:150_000], "b": values[150_000:]}, keep)
        assert torch.equal(torch.cat([masks["a"], masks["b"]]), expected)
        assert torch.equal(top_on_device(values, keep), expected)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.2, 0.9])
@pytest.mark.parametrize("total", [70_001, 100_000, 300_000])
def test_nearly_all_of_few_allowed_weights(total, share):
    """The sample sees about as many allowed weights as are to be kept, or fewer."""
    generator = torch.Generator().manual_seed(total)
    scores = {"a": torch.randn(total, generator=generator), "b": torch.randn(9, generator=generator)}
    among = {n: torch.rand(s.shape, generator=generator) < share for n, s in scores.items()}
    most = sum(int(m.sum()) for m in among.values())
    flat = torch.cat([s.where(among[n], -torch.inf) for n, s in scores.items()])
    for keep in {1, most // 2, most - 20, most - 1, most}:
        chosen = torch.zeros(flat.numel(), dtype=torch.bool)
        chosen[flat.sort(descending=True, stable=True).indices[:keep]] = True
        found = keep_top(scores, keep, among=among)
        assert torch.equal(torch.cat(list(found.values())), chosen)
