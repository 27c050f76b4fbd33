"""Patterns: N of M along the inputs, and blocks; exact counts, and the best that a plain search finds."""

from itertools import product

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from references import equal
from torch import nn

from barebones import METHODS
from barebones.masks import kept
from barebones.pruning.patterns import patterned
from barebones.pruning.prune import prune
from barebones.pruning.thickness import by_channels


def net() -> nn.Module:
    """A network all of whose layers have 4 or 8 inputs and outputs."""
    torch.manual_seed(0)
    convs = nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 8, 2, groups=2)
    return nn.Sequential(*convs, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


BATCHES = [(torch.randn(8, 4, 6, 6), torch.randint(4, (8,))) for _ in range(2)]


def cubes(masks):
    """Yield each layer's mask with a row for each output channel, and a column for each input."""
    for name, mask in masks.items():
        groups, inputs = (2, 4) if mask.shape[:2] == (8, 4) and mask.shape[2:] == (2, 2) else (None, mask.shape[1])
        yield name, by_channels(mask, groups).view(-1, inputs, mask[0, 0].numel())


@pytest.mark.parametrize(
    ("method", "sparsity"),
    [("force", 0.5), ("force", 0.8), ("snip", 0.5), ("hybrid", 0.9), ("magnitude", 0.5), ("random", 0.6),
     ("iter-snip", 0.5), ("hybrid", 0.5)],
)  # fmt: skip
def test_at_most_two_of_four_inputs_stay(method, sparsity):
    model = net()
    rounds = 5 if METHODS[method].rounds > 1 else None
    result = prune(model, BATCHES, sparsity, method, rounds=rounds, pattern="2:4", on_collapse="ignore")
    total = sum(m.numel() for m in result.masks.values())
    assert kept(result.masks) == round((1 - sparsity) * total)
    for _, cube in cubes(result.masks):
        counts = cube.unflatten(1, (-1, 4)).sum(2)
        assert int(counts.max()) <= 2
        assert sparsity != 0.5 or int(counts.min()) == 2


def test_layers_with_fewer_inputs_keep_their_best_weights():
    model, x = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1)), torch.randn(8, 3, 2, 2)
    masks = prune(model, [(x, torch.randint(4, (8, 2, 2)))], 8 / 28, "magnitude", pattern="2:4").masks
    assert (int(masks["0.weight"].sum()), int(masks["2.weight"].sum())) == (12, 8)


def test_pruned_weights_return_once_to_fill_the_groups_of_a_pattern_that_begins():
    taken = []
    options = dict(sparsity=0.7, method="iter-snip", rounds=6, pattern="2:4", on_collapse="ignore")
    result = prune(net(), BATCHES, **options, on_round=taken.append)
    begins = next(record.index for record in result.rounds if record.keep <= 224)
    assert 0 < begins < 4
    assert [record.recovered > 0 for record in result.rounds] == [index == begins for index in range(6)]
    for step in taken[:-1]:
        assert equal(prune(net(), BATCHES, **options, after=step).masks, result.masks)


@pytest.mark.parametrize("method", ["force", "iter-snip", "hybrid", "random"])
def test_blocks_stay_or_go(method):
    rounds = 5 if METHODS[method].rounds > 1 else None
    result = prune(net(), BATCHES, 0.7, method, rounds=rounds, pattern="block:2x4", on_collapse="ignore")
    total = sum(m.numel() for m in result.masks.values())
    assert kept(result.masks) == 8 * round(0.3 * total / 8)
    for _, cube in cubes(result.masks):
        blocks = cube.unflatten(0, (-1, 2)).unflatten(2, (-1, 4))
        assert torch.equal(blocks.all(3).all(1), blocks.any(3).any(1))
    assert all(record.keep % 8 == 0 for record in result.rounds)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([("1:2", 1, 2), ("2:3", 1, 3), ("block:2x1", 2, 1), ("block:1x3", 1, 3)]), st.data())
def test_the_best_in_the_pattern_stay(pattern, data):
    text, rows, columns = pattern
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))
    shape = 2 * rows, 2 * columns
    scores = {"a": torch.randint(5, shape, generator=generator).double()}
    scores["b"] = torch.rand(shape, generator=generator)
    flat = torch.cat([s.double().flatten() for s in scores.values()])
    size = rows * columns if "x" in text else 1
    most = flat.numel() if "x" in text else flat.numel() * int(text[0]) // columns
    keep = size * data.draw(st.integers(1, most // size))
    masks = patterned(text, scores, keep, None, None, 0, {})
    assert kept(masks) == keep
    total = float(flat[torch.cat([m.flatten() for m in masks.values()])].sum())
    assert total == pytest.approx(plain_best(text, rows, columns, flat)[keep], rel=1e-9)


def plain_best(text, rows, columns, flat):
    """Return the best sum of scores for each number of weights, of two layers of 2 x 2 groups or blocks."""
    width, size = 2 * columns, 4 * rows * columns
    best = {0: 0.0}
    for layer, top, left in product(range(2), range(2), range(2)):
        start = layer * size + top * rows * width + left * columns
        values = sorted((float(flat[start + i * width + j]) for i in range(rows) for j in range(columns)), reverse=True)
        counts = [0, len(values)] if "x" in text else range(int(text[0]) + 1)
        found: dict[int, float] = {}
        for count, (before, score) in product(counts, best.items()):
            found[before + count] = max(found.get(before + count, 0.0), score + sum(values[:count]))
        best = found
    return best
