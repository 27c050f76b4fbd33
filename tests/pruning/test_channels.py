"""Whole channels: coupled groups stay or go, as a plain implementation chooses them, and shrunk networks are dense."""

from functools import partial
from itertools import pairwise

import hypothesis.strategies as st
import pytest
import references
import torch
import zoo
from hypothesis import given, settings
from pruning_runs import BATCHES, run, same
from references import equal, few, of_round, tiny
from torch import nn

from barebones import METHODS, Method, Probe, Round, account, linear, prune, saliency, shrink
from barebones.masks import kept
from barebones.pruning.channels import Channels, find_channels

CHANNELS = dict(unit="channel")
# Of `tiny`, by hand: the channels that each weight's rows and columns belong to, and how many positions use a weight.
SIDES = {"0.weight": ([1, 2, 3], [0]), "3.weight": ([4, 5], [1, 2, 3]),
         "7.weight": ([6, 7, 8], [4] * 4 + [5] * 4), "9.weight": ([0] * 3, [6, 7, 8])}  # fmt: skip
COSTS = {"weights": dict.fromkeys(SIDES, 1), "flops": dict(zip(SIDES, (16, 4, 1, 1), strict=True))}


def plain_masks(sides, shapes, stays, reads_only=False):
    masks = {name: torch.zeros(shape, dtype=torch.bool) for name, shape in shapes.items()}
    for name, (rows, columns) in sides.items():
        for r, c in ((r, c) for r in range(len(rows)) for c in range(len(columns))):
            masks[name][r, c] = (reads_only or rows[r] in stays) and columns[c] in stays
    return masks


def plain_selected(sides, scores, share, now, may, costs):
    """Return the groups that stay: those with the highest scores per cost, up to the count that is nearest."""
    shapes = {name: score.shape for name, score in scores.items()}
    sums, paid = dict.fromkeys(may, 0.0), dict.fromkeys(may, 0)
    for name, (rows, columns) in sides.items():
        for r, row in enumerate(rows):
            for c, column in enumerate(columns):
                for group, other in {row: column, column: row}.items():  # one if they are the same
                    if other in now and group in sums:
                        sums[group] += float(scores[name][r, c].double().sum())
                        paid[group] += costs[name] * scores[name][r, c].numel()
    order = sorted(may - {0}, key=lambda group: (-sums[group] / max(paid[group], 1), group not in now, group))
    layers = [set(side) for pair in sides.values() for side in pair if 0 not in side]
    first = {next(group for group in order if group in layer) for layer in layers}
    order = sorted(order, key=lambda group: group not in first)
    wanted = share * sum(costs[name] * shape.numel() for name, shape in shapes.items())

    def off(count):
        masks = plain_masks(sides, shapes, {0, *order[:count]})
        return abs(sum(costs[name] * int(mask.sum()) for name, mask in masks.items()) - wanted)

    return {0, *order[: min(range(len(first), len(order) + 1), key=off)]}


@pytest.mark.parametrize("target", ["weights", "flops"])
@pytest.mark.parametrize(("method", "revives"), [("force", 6), ("iter-snip", 0), ("hybrid", 5)])
def test_each_round_keeps_what_a_plain_implementation_keeps(method, revives, target):
    model, stays = tiny(), set(range(9))
    shapes = {name: w.shape for name, w in references.weights_of(model).items()}
    steps: list[Round] = []
    options = CHANNELS | dict(rounds=6, target=target, schedule=linear, on_collapse="ignore", on_round=steps.append)
    prune(model, BATCHES, 0.6, method, **options)
    for step, count in zip(steps, linear(114, 46, 6), strict=True):
        before = plain_masks(SIDES, shapes, stays, reads_only=step.index < revives)
        scores = references.snip(model, before, of_round(BATCHES, step.index, 1))
        may = set(range(9)) if step.index < revives else stays
        stays = plain_selected(SIDES, scores, count / 114, stays, may, COSTS[target])
        assert equal(step.masks, plain_masks(SIDES, shapes, stays))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["within", "mobile", "conv1d"]), st.integers(0, 10**6), st.floats(0, 1), st.booleans())
def test_ties_and_groups_that_left(name, seed, share, revives):
    within = nn.Sequential(nn.Linear(2, 4), zoo.Residual(nn.Linear(4, 4)), nn.Linear(4, 2)), torch.ones(1, 2)
    (model, x), generator = within if name == "within" else zoo.build(name), torch.Generator().manual_seed(seed)
    channels = find_channels(probe := Probe(model, example=x), "weights", 0.9)
    shapes, sides = probe.shapes, {name: tuple(side.tolist() for side in pair) for name, pair in channels.sides.items()}
    scores = {name: torch.randint(-1, 2, shape, generator=generator).float() for name, shape in shapes.items()}
    stays = torch.rand(channels.size, generator=generator) < 0.6
    stays[[side[0] for pair in sides.values() for side in pair]] = True  # one of each layer
    before, now = channels.masks(stays), set(stays.nonzero().flatten().tolist())
    assert equal(before, plain_masks(sides, shapes, now))
    may = set(range(channels.size)) if revives else now
    expected = plain_selected(sides, scores, share, now, may, dict.fromkeys(sides, 1))
    assert equal(channels.selected(scores, share, before, revives), plain_masks(sides, shapes, expected))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.densities is None])
def test_every_method_keeps_whole_groups_and_resumes_from_every_round(name, tmp_path):
    steps, model = run(name, 50, changes=CHANNELS), tiny()
    channels = find_channels(Probe(model, BATCHES), "weights", 0.4)
    for before, step in pairwise([None, *steps]):
        assert equal(step.masks, channels.masks(channels.staying(step.masks)))
        assert step.index < few(name).revive_until * few(name).rounds or step.recovered == 0
        assert abs(step.keep - few(name).schedule(114, 50, few(name).rounds)[step.index]) <= 27 / 2 + 9
        assert before is None or (step.pruned, step.recovered) == references.changes(before.masks, step.masks)[:2]
    for step in steps[:-1]:
        step.save(tmp_path / "round")
        assert same(run(name, 50, after=Round.load(tmp_path / "round"), changes=CHANNELS), steps[step.index + 1 :])
    assert_dense(model, steps[-1].masks, BATCHES[0][0])


def assert_dense(model, masks, x):
    small = shrink(model, masks, x)
    for one, other in zip(zoo.outputs(small.module, x), zoo.outputs(zoo.masked(model, masks), x), strict=True):
        assert torch.allclose(one, other, atol=1e-6)
    assert all(mask.all() for mask in small.masks.values())


def grouped():
    body = *zoo.conv(2, 8), *zoo.conv(8, 12, groups=2), zoo.Residual(*zoo.conv(12, 12)), nn.Flatten()
    return nn.Sequential(*body, nn.Linear(12 * 64, 3)), torch.randn(zoo.IMAGE)


def gated():
    """A parameter without a layer has a value for each channel."""
    gate = zoo.Net(lambda net, x: x * net.gate, gate=nn.Parameter(torch.rand(8, 1, 1) + 0.1))
    body = *zoo.conv(2, 8), gate, *zoo.conv(8, 6), nn.Flatten()
    return nn.Sequential(*body, nn.Linear(6 * 64, 3)), torch.randn(zoo.IMAGE)


NETWORKS = {name: partial(zoo.build, name) for name in ("mlp", "vgg", "resnet", "mobile", "unet", "conv1d", "separate")}
NETWORKS |= {"around": partial(zoo.build, "around"), "grouped": grouped, "gated": gated}


@pytest.mark.slow
@pytest.mark.parametrize(("target", "scope"), [("weights", "all"), ("flops", None)])
@pytest.mark.parametrize("name", NETWORKS)
def test_shrunk_networks_are_dense(name, target, scope):
    model, x = NETWORKS[name]()
    method = Method(lambda probe: {n: w.square() for n, w in probe.weights.items()}, rounds=3)
    result = prune(model, None, 0.6, method, **CHANNELS, target=target, scope=scope, example=x)
    assert_dense(model, result.masks, x)
    counts = account(model, result.masks, x)
    flops = sum(layer.flops_dense for layer in counts.layers), sum(layer.flops_kept for layer in counts.layers)
    whole, left = flops if target == "flops" else (counts.total, counts.kept)
    assert left / whole == pytest.approx(0.4, abs=0.1)  # groups of small networks are large
    assert result.rounds[-1].keep == counts.kept == counts.effective
    assert (result.about["unit"], result.about["target"]) == ("channel", target)


def test_pruned_groups_have_a_gradient_only_if_they_are_computed():
    model, batches = zoo.build("mlp")[0], [(torch.randn(32, 4), torch.randint(3, (32,)))]
    nn.init.zeros_(model[0].bias)
    channels, stays = find_channels(Probe(model, batches), "weights", 0.5), torch.arange(7) != 2
    both = channels.masks(stays), channels.masks(stays, reads_only=True)
    dead, alive = (channels.per_cost(references.snip(model, masks, batches), stays)[2] for masks in both)
    assert dead == 0 < alive
    assert saliency(model, both[0], batches) == pytest.approx(saliency(model, both[1], batches))


def test_every_layer_keeps_a_channel_and_layers_that_are_not_pruned_keep_all_of_theirs():
    model, x = zoo.build("resnet")
    result = prune(model, None, 0.97, "magnitude", **CHANNELS, example=x)
    assert (result.collapsed, result.empty, result.effective) == ([], [], kept(result.masks))
    model, x = zoo.build("vgg")
    masks = prune(model, None, 0.6, "magnitude", **CHANNELS, example=x, exclude="features.3.weight").masks
    assert masks["features.0.weight"].all()  # the excluded layer reads its output


def test_large_counts_are_exact():
    rank = torch.arange(n := 4097)  # n * n is no float32
    assert Channels(None, {"w": (rank, rank)}, {"w": n * n}, n).amounts(rank)[-1] == n * n
