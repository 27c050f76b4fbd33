"""Counts by layer and by channel: exact, never growing, and what a plain implementation keeps."""

from fractions import Fraction

import hypothesis.strategies as st
import pytest
import references
import torch
from hypothesis import given, settings
from pruning_runs import BATCHES
from references import equal, of_round, ones, tiny, weights_of

from barebones.pruning.densities import LAWS, layer_counts
from barebones.pruning.prune import prune
from barebones.pruning.round import Round
from barebones.pruning.thickness import by_channels, from_channels, thickened

SHAPES = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4).map(tuple), min_size=1, max_size=6)


@settings(max_examples=100, deadline=None)
@given(SHAPES, st.data())
def test_erk_counts_add_up_and_follow_the_densities(shapes, data):
    named = {f"layer{i}": shape for i, shape in enumerate(shapes)}
    sizes = {name: torch.Size(shape).numel() for name, shape in named.items()}
    keep = data.draw(st.integers(0, sum(sizes.values())))
    (counts,), shares = layer_counts("erk", named, [keep]), references.erk_shares(named, keep)
    assert sum(counts.values()) == keep == sum(shares.values())
    for name, count in counts.items():
        assert 0 <= count <= sizes[name]
        assert abs(Fraction(count) - shares[name]) < 1


@settings(max_examples=150, deadline=None)
@given(SHAPES, st.sampled_from([*LAWS, "given"]), st.integers(0, 5), st.data())
def test_counts_never_grow_and_are_in_proportion_except_at_their_limits(shapes, law, at_least, data):
    named = {f"layer{i}": shape for i, shape in enumerate(shapes)}
    sizes = {name: torch.Size(shape).numel() for name, shape in named.items()}
    floors = {name: min(at_least, size) for name, size in sizes.items()}
    totals = sorted(data.draw(st.lists(st.integers(sum(floors.values()), sum(sizes.values())), min_size=1)))[::-1]
    parts = {name: LAWS[law](shape) if law in LAWS else 0.0 for name, shape in named.items()}
    if law == "given":
        shares = {name: data.draw(st.sampled_from([0.0, 0.25, 0.5, 1.0])) for name in sizes}
        parts = {name: share * sizes[name] or 1e-9 * sizes[name] for name, share in shares.items()}
        totals.append(round(sum(share * sizes[name] for name, share in shares.items())))
        if sum(floors.values()) > totals[-1] or totals[-1] > min(totals):
            return
    before = sizes
    found = layer_counts(law if law in LAWS else shares, named, totals, at_least)
    for total, counts in zip(totals, found, strict=True):
        assert sum(counts.values()) == total
        assert all(floors[name] <= counts[name] <= before[name] for name in counts)
        free = [name for name in counts if floors[name] < counts[name] < before[name]]
        for name in free:  # the units agree up to one weight
            for other in counts:
                most = (counts[name] + 1) / parts[name] * parts[other] + 1
                assert counts[other] <= most or counts[other] == floors[other]
        before = counts


def test_erk_draws_those_counts():
    model = tiny()
    shapes = {name: tuple(w.shape) for name, w in weights_of(model).items()}
    for sparsity in (0.1, 0.5, 0.9):
        result = prune(model, sparsity=sparsity, method="erk", example=BATCHES[0][0], on_collapse="ignore")
        assert [result.rounds[0].layers] == layer_counts("erk", shapes, [round((1 - sparsity) * 114)])


@pytest.mark.parametrize("method", ["force", "iter-snip", "hybrid"])
@pytest.mark.parametrize("least", [0, 3])
def test_each_round_keeps_the_best_of_each_layer_and_continues_from_its_file(method, least, tmp_path):
    model = tiny()
    masks = prune(model, BATCHES, 0.7, "snip").masks
    taken: list[Round] = []
    options = dict(sparsity=0.7, method=method, rounds=5, densities=masks, min_per_channel=least)
    result = prune(model, BATCHES, **options, on_round=taken.append, on_collapse="ignore")
    assert result.rounds[-1].layers == {name: int(mask.sum()) for name, mask in masks.items()}
    assert (result.about["densities"], result.about["min_per_channel"]) == ("given", least)
    before = ones(weights_of(model))
    revives = {"force": 5, "iter-snip": 0, "hybrid": 4}[method]
    for step in taken:
        scores = references.snip(model, before, of_round(BATCHES, step.index, 1))
        for name, score in scores.items():
            among = torch.ones_like(before[name]) if step.index < revives else before[name]
            count = step.record.layers[name]
            best = references.top({name: score.where(among, -torch.inf)}, count)[name]
            expected = best if name == list(scores)[-1] else plain_thickened(score, best, least, among)
            assert torch.equal(step.masks[name], expected)  # the last layer's channels are outputs
        before = step.masks
    taken[2].save(tmp_path / "round")
    resumed = prune(model, BATCHES, **options, after=Round.load(tmp_path / "round"), on_collapse="ignore")
    assert equal(resumed.masks, result.masks)
    for other in ({"densities": None}, {"min_per_channel": least + 1}):
        with pytest.raises(ValueError, match=next(iter(other))):
            prune(model, BATCHES, **options | other, after=Round.load(tmp_path / "round"))


def test_a_minimum_leaves_the_outputs_alone_also_where_their_biases_are_pruned():
    torch.manual_seed(0)
    alone = torch.nn.Linear(8, 3)
    deep = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 6))
    options = {"sparsity": 0.8, "method": "magnitude", "scope": lambda name, p: True, "on_collapse": "ignore"}
    for model, outputs in ((alone, "weight"), (deep, "2.weight")):
        plain, least = (prune(model, **options, min_per_channel=least).masks for least in (0, 4))
        assert torch.equal(plain[outputs], least[outputs])
        assert equal(plain, least) == (model is alone)


def test_a_channel_that_the_others_have_no_room_for_takes_from_them():
    score = torch.tensor([[9.0, 8, 7, 6], [5, 1, 1, 1], [2, 1, 1, 1]])
    assert thickened(score, score > 4, least=2, groups=None).sum(1).tolist() == [3, 2, 0]
    score[0] = torch.tensor([9.0, 8, 1, 1])
    among = torch.tensor([[True, True, False, False], [True, True, True, True], [False] * 4])
    assert thickened(score, score > 4, 2, None, among).sum(1).tolist() == [2, 1, 0]  # three weights are too few


@pytest.mark.parametrize("options", [{"min_per_channel": 2}, {"pattern": "block:2x2"}, {"pattern": "2:4"}])
@pytest.mark.parametrize("shape", [(0, 8), (8, 0)])
def test_a_layer_without_weights_keeps_none(options, shape):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
    model[0].register_parameter("none", torch.nn.Parameter(torch.empty(shape)))
    options |= {"scope": ["*.weight", "*.none"], "on_collapse": "ignore", "example": torch.ones(1, 8)}
    masks = prune(model, sparsity=0.5, method="magnitude", **options).masks
    assert sum(int(mask.sum()) for mask in masks.values()) == 48


def plain_thickened(score, mask, least, among):
    """Do what `thickened` says, one weight at a time."""
    rows, wide, keep = score.flatten(1).tolist(), score[0].numel(), int(mask.sum())
    kept = [{at for at, stays in enumerate(row) if stays} for row in mask.flatten(1).tolist()]
    may = [{at for at, is_free in enumerate(row) if is_free} for row in among.flatten(1).tolist()]
    least = min(least, wide, keep)
    while True:
        live = [channel for channel, indices in enumerate(kept) if indices]
        thin = [channel for channel in live if len(kept[channel]) < least]
        thin.sort(key=lambda channel: (len(kept[channel]), max(rows[channel][at] for at in kept[channel]), channel))
        gone: list[int] = []
        for channel in thin[: (len(thin) + 1) // 2]:
            if sum(len(may[other]) for other in live if other not in [*gone, channel]) < keep:
                break
            gone.append(channel)
        if not gone:
            first = {c: sorted(may[c], key=lambda at: (-rows[c][at], at))[:least] for c in live}
            if thin and sum(map(len, first.values())) <= keep:
                rest = [(c, at) for c in live for at in may[c] if at not in first[c]]
                rest.sort(key=lambda place: (-rows[place[0]][place[1]], place))
                chosen = [(c, at) for c in live for at in first[c]]
                chosen += rest[: keep - len(chosen)]
                kept = [{at for channel, at in chosen if channel == number} for number in range(len(rows))]
            result = torch.zeros_like(mask).flatten(1)
            for channel, indices in enumerate(kept):
                result[channel, list(indices)] = True
            return result.view(mask.shape)
        free = [(c, at) for c in live if c not in gone for at in may[c]]
        free.sort(key=lambda place: (-rows[place[0]][place[1]], place))
        kept = [{at for channel, at in free[:keep] if channel == number} for number in range(len(rows))]


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 9), st.integers(0, 10**6), st.data())
def test_thin_channels_give_their_weights_to_the_others(channels, inputs, least, seed, data):
    generator = torch.Generator().manual_seed(seed)
    score = torch.randint(data.draw(st.sampled_from([3, 1000])), (channels, inputs, 2), generator=generator).float()
    among = torch.rand(score.shape, generator=generator) < data.draw(st.sampled_from([0.5, 0.9, 1.1]))
    keep = data.draw(st.integers(0, int(among.sum())))
    mask = references.top({"": score.where(among, -1.0)}, keep)[""]
    result = thickened(score, mask, least, None, among)
    assert torch.equal(result, plain_thickened(score, mask, least, among))
    assert int(result.sum()) == keep
    assert not (result & ~among).any()
    counts, before = result.flatten(1).sum(1), mask.flatten(1).sum(1)
    assert not counts[before == 0].any()  # no channel comes to life
    thin = (counts > 0) & (counts < min(least, 2 * inputs))
    if among.all() and keep % (2 * inputs) == 0:  # whole channels always fit
        assert not thin.any() or int(counts[counts > 0].min()) == keep


@pytest.mark.parametrize(("shape", "groups"), [((6, 4, 3, 3), None), ((6, 4, 3), 1), ((6, 2, 3, 3), 3), ((5,), None)])
def test_rows_are_output_channels(shape, groups):
    tensor = torch.arange(torch.Size(shape).numel()).view(shape)
    rows = by_channels(tensor, groups)
    assert torch.equal(from_channels(rows, tensor, groups), tensor)
    if groups is not None:  # as torch's transposed convolution computes it: one output channel sees its row alone
        for channel, row in enumerate(rows):
            weight = torch.zeros(tensor.numel()).index_fill(0, row, 1.0).view(shape)
            out = torch.nn.functional.conv_transpose2d if len(shape) == 4 else torch.nn.functional.conv_transpose1d
            alive = out(torch.ones(1, shape[0], *[3] * (len(shape) - 2)), weight, groups=groups)
            assert alive.flatten(2).any(2).nonzero()[:, 1].tolist() == [channel]
