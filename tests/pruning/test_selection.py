"""Exactly the k highest scores stay, for every input, by the same rule with every algorithm."""

import functools
import itertools
import math
from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
import pytest
import references
import torch
from hypothesis import given, settings
from references import equal
from torch import Tensor

import barebones
from barebones.masks import Masks
from barebones.pruning import selection

Layers = dict[str, Tensor]
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.int8, torch.bool)
EXTREMES = [0.0, -0.0, 1.0, -1.0, 1e38, -1e38, 3.4e38, 1e-45, 1.1754944e-38, 1e-40, -1e-45, 65504.0]
VALUES = {
    "random": st.floats(-(2.0**100), 2.0**100, width=32),
    "tied": st.sampled_from([0.0, 1.0, 2.0]),
    "zero": st.sampled_from([0.0, -0.0]),
    "extreme": st.sampled_from(EXTREMES),
}
SHAPES = [(1,), (), (7,), (1, 1), (3, 4), (2, 3, 2, 2), (5, 1), (0,), (0, 3)]
LAYOUTS = {
    "plain": lambda scores: scores,
    "transposed": lambda scores: scores.mT.contiguous().mT if scores.dim() >= 2 else scores,
    "channels last": lambda scores: scores.to(memory_format=torch.channels_last) if scores.dim() == 4 else scores,
    "strided": lambda scores: torch.stack([scores, torch.ones_like(scores)], -1)[..., 0],
}


@st.composite
def layers(draw: st.DrawFn) -> Layers:
    """Draw some layers of scores of any kind, type, shape and memory layout."""
    drawn = {}
    for number in range(draw(st.integers(1, 4))):
        shape, values, dtype = (draw(st.sampled_from(choices)) for choices in (SHAPES, sorted(VALUES), DTYPES))
        count = math.prod(shape)
        numbers = torch.tensor(draw(st.lists(VALUES[values], min_size=count, max_size=count)), dtype=torch.float64)
        if not dtype.is_floating_point:
            numbers = numbers.clamp(-100, 100)
        elif dtype != torch.float64:
            numbers = numbers.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max)
        scores = numbers.to(dtype).view(shape)
        drawn[f"layer{number}"] = LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))](scores)
    return drawn


def marked(scores: Layers, bits: list[bool]) -> Layers:
    """Return masks of the shapes of the scores with these bits."""
    rows = torch.tensor(bits, dtype=torch.bool).split([s.numel() for s in scores.values()])
    return {name: row.view(s.shape) for (name, s), row in zip(scores.items(), rows, strict=True)}


@st.composite
def problems(draw: st.DrawFn) -> tuple[Layers, int, Layers | None]:
    scores = draw(layers())
    total = sum(s.numel() for s in scores.values())
    keep = draw(st.sampled_from([0, min(1, total), total, max(total - 1, 0)]) | st.integers(0, total))
    bits = draw(st.none() | st.lists(st.booleans(), min_size=total, max_size=total))
    return scores, keep, None if bits is None else marked(scores, bits)


def keep_top(scores: Layers, keep: int, **options: Any) -> Masks:
    """Return what both algorithms keep, which must be the same; that of accelerators also with short blocks."""
    masks = barebones.keep_top(scores, keep, **options)
    for block in (selection.BLOCK, 3):
        with patch.object(selection, "_by_bracket", lambda *_: None), patch.object(selection, "BLOCK", block):
            assert equal(masks, barebones.keep_top(scores, keep, **options))
    return masks


@settings(max_examples=180, deadline=None)
@given(problems(), st.integers(-4, 4).map(lambda floor: max(floor, 0)))
def test_keeps_what_a_full_sort_keeps_and_each_layer_its_floor(problem, floor):
    scores, keep, prefer = problem
    need = sum(min(floor, s.numel()) for s in scores.values())
    if need > keep:
        with pytest.raises(ValueError, match=f"at_least={floor} asks for {need}"):
            keep_top(scores, keep, prefer=prefer, at_least=floor)
        return
    before = {name: s.clone() for name, s in scores.items()}
    masks = keep_top(scores, keep, prefer=prefer, at_least=floor)
    assert equal(scores, before)
    assert equal(masks, references.top(scores, keep, prefer, at_least=floor))
    assert all(mask.dtype == torch.bool for mask in masks.values())


@settings(max_examples=60, deadline=None)
@given(problems(), st.data())
def test_weights_that_are_not_allowed_are_not_chosen_whatever_their_score(problem, data):
    scores, keep, prefer = problem
    total = sum(s.numel() for s in scores.values())
    forbidden = set(data.draw(st.lists(st.integers(0, max(total - 1, 0)), max_size=total - keep)))
    among = marked(scores, [index not in forbidden for index in range(total)])
    values = sorted({value for s in scores.values() for value in s.flatten().tolist()})
    ranks = {}  # finite numbers in the order of the scores, so that no score equals a forbidden one
    for name, s in scores.items():
        numbers = [values.index(value) for value in s.contiguous().flatten().tolist()]
        ranks[name] = torch.tensor(numbers, dtype=torch.float64).view(s.shape).where(among[name], -torch.inf)
    assert equal(keep_top(scores, keep, prefer=prefer, among=among), references.top(ranks, keep, prefer))


LARGE = [2**24, 2**24 + 1, 2**53 - 1, 2**53 - 2]  # single precision would make these equal


@pytest.mark.parametrize(
    ("scores", "keep", "options", "expected"),
    [
        ([[torch.inf] * 3, [1.0]], 2, dict(at_least=1), [[True, False, False], [True]]),  # a floor against infinity
        ([[0.0, 1], [2.0]], 2, dict(at_least=1, among=[[True, True], [False]]), [[True, True], [False]]),
        ([LARGE], 1, {}, [[False, False, True, False]]),
        ([LARGE], 3, {}, [[False, True, True, True]]),
    ],
    ids=["infinite", "a layer without an allowed weight", "large integers", "three large integers"],
)
def test_small_examples(scores, keep, options, expected):
    named = lambda rows: {str(number): torch.tensor(row) for number, row in enumerate(rows)}
    options = {name: named(value) if name == "among" else value for name, value in options.items()}
    assert equal(keep_top(named(scores), keep, **options), named(expected))


@pytest.mark.parametrize("at_least", [0, 1])
@pytest.mark.parametrize("keep", [3, 4])
def test_what_may_not_be_chosen_does_not_fill_up(keep, at_least):
    allowed = torch.tensor([True, False, True, False])
    for scores in (torch.arange(4.0), torch.full((4,), -torch.inf)):
        with pytest.raises(ValueError, match=rf"cannot keep {keep} weights among [02]"):
            keep_top({"w": scores}, keep, among={"w": allowed}, at_least=at_least)
    with pytest.raises(ValueError, match=rf"cannot keep {keep} weights among 2"):
        keep_top({"w": torch.arange(4.0).where(allowed, -torch.inf)}, keep, at_least=at_least)
    with pytest.raises(ValueError, match=f"cannot keep {keep - 5} of 3"):
        keep_top({"w": torch.ones(3)}, keep - 5)
    with pytest.raises(ValueError, match=r"the scores of b are not numbers"):
        keep_top({"a": torch.ones(2), "b": torch.tensor([1.0, torch.nan, 3.0])}, keep, at_least=at_least)
    for option, wrong in itertools.product(("prefer", "among"), ({}, {"w": torch.ones(3)}, {"w": torch.ones(2) > 0})):
        with pytest.raises(ValueError, match="need a bool mask of each score's shape; check w"):
            keep_top({"w": torch.ones(3)}, 2, **{option: wrong})


@functools.cache
def adversaries() -> Layers:
    """Return rows of 12,000 values that mislead a sample of every eleventh value."""
    normal = torch.randn(12000, generator=torch.Generator().manual_seed(0))
    few_above = torch.zeros(12000)
    few_above[[3, 77, 78, 2501]] = torch.tensor([1.0, 2.0, 2.0, 3.0])  # between the samples
    sampled = torch.arange(12000) % 11 == 0
    return {
        "normal": normal,
        "ascending": normal.sort().values,
        "descending": normal.sort(descending=True).values,
        "one value": torch.full((12000,), 2.5),
        "zeros of both signs": torch.tensor([0.0, -0.0] * 6000),
        "two values": (normal > 0).float(),
        "few above": few_above,
        "sampled high": normal.masked_fill(sampled, 9.0),  # the sample sees nothing else
        "sampled low": normal.masked_fill(sampled, -9.0),
        "sampled wide": torch.where(sampled, torch.linspace(-9, 9, 12000), normal),
        "lowest": torch.where(normal > 0.5, normal, torch.finfo(torch.float32).min),
        "tiny": normal * 1e-44,
        "huge": normal.clamp(-3, 3) * 1e38,
        "steps": torch.arange(12000.0).div(2400).floor(),
        "doubles": normal.double() + 1e-14 * torch.arange(12000.0).double(),
    }


@pytest.mark.parametrize("name", list(adversaries()))
def test_masks_are_exact_whatever_the_sample_shows(name, monkeypatch):
    monkeypatch.setattr(selection, "SAMPLE", 2048)  # large enough for a bracket to leave something out
    scores = dict(zip("abcd", adversaries()[name].split([5000, 1, 0, 6999]), strict=True))
    preferred = {layer: torch.arange(s.numel()) % 3 == 1 for layer, s in scores.items()}
    for keep, prefer in [(1, preferred), (7, None), (3100, preferred), (6000, None), (11998, preferred)]:
        expected = references.top(scores, keep, prefer)
        assert equal(keep_top(scores, keep, prefer=prefer), expected)
        among = {layer: (torch.arange(s.numel()) % 5 < 4) | expected[layer] for layer, s in scores.items()}
        assert equal(keep_top(scores, keep, among=among, prefer=prefer), expected)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.2, 0.9, 1.0])
@pytest.mark.parametrize("total", [70_001, 150_000])
def test_nearly_all_of_few_allowed_weights(total, share):
    """The sample sees about as many allowed weights as are to be kept, or fewer; with all allowed, many are tied."""
    generator = torch.Generator().manual_seed(total)
    scores = {name: torch.randn(size, generator=generator) for name, size in {"a": total, "b": 9}.items()}
    among = {name: torch.rand(s.shape, generator=generator) < share for name, s in scores.items()}
    if share == 1:
        scores = {name: s.mul(50).round() for name, s in scores.items()}
    most = sum(int(mask.sum()) for mask in among.values())
    flat = torch.cat([s.where(among[name], -torch.inf) for name, s in scores.items()])
    order = flat.sort(descending=True, stable=True).indices
    for keep in {1, most // 2, most - 20, most - 1, most}:
        expected = torch.zeros(flat.numel(), dtype=torch.bool)
        expected[order[:keep]] = True
        assert torch.equal(torch.cat(list(keep_top(scores, keep, among=among).values())), expected)
