"""Masks that move: each layer keeps exactly as many weights, and what grows begins at zero, without a past."""

import copy
import math
from collections import Counter
from unittest.mock import patch

import held
import pytest
import torch
from held import CASES, Lamb, by_hand, network, train
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn, optim

import barebones as bb
from barebones.evolution import by_sorting, chosen
from barebones.holding import ELEMENTWISE
from barebones.scope import matched

STEPS, EVERY = 12, 2


def moved(weight, gradient, mask, share, ablate=0.0, channels=(), among=None):
    """Return the next mask of a layer by sorting; the first of equals is dropped, and the first grows.

    With `ablate`, `channels` has the output channel of each weight. Growth is `among` these weights.
    """
    sizes, gains = (tensor.detach().abs().nan_to_num(0.0).flatten().tolist() for tensor in (weight, gradient))
    kept, pruned = ((mask.flatten() == stays).nonzero().flatten().tolist() for stays in (True, False))
    pruned = [index for index in pruned if among is None or among.flatten()[index]]
    count = min(math.floor(share * len(kept)), len(pruned))
    dropped = sorted(kept, key=lambda index: sizes[index])[:count]
    grown = sorted(pruned, key=lambda index: -gains[index])[:count]
    stays = {*kept, *grown} - {*dropped}
    if ablate and kept:
        bound = ablate * len(kept) / len({channels[index] for index in kept})
        salient, gone = Counter(channels[index] for index in stays), set()
        for channel in sorted({*channels}, key=lambda channel: (salient[channel], channel)):
            places = [i for i in {*kept, *pruned} - {*dropped} if channels[i] not in {*gone, channel}]
            if salient[channel] >= bound or len(places) < len(kept):
                break
            gone.add(channel)
        stays = {index for index in {*kept} - {*dropped} if channels[index] not in gone}
        grows = sorted((i for i in pruned if channels[i] not in gone), key=lambda index: -gains[index])
        stays |= {*grows[: len(kept) - len(stays)]}
    return torch.tensor([index in stays for index in range(mask.numel())]).view(mask.shape)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "options"), [case for case in CASES if case.values[0] in ELEMENTWISE])
def test_rigl_drops_the_smallest_and_grows_the_largest_gradients_with_every_optimizer(kind, options, masks):
    model, other = network(), network()
    optimizer, others = (kind(each.parameters(), **options) for each in (model, other))
    handle = bb.hold(model, masks, optimizer)
    bb.sam(optimizer)  # what it remembers is a part of the state
    bb.evolve(handle, STEPS, every=EVERY)
    by_hand(other, masks)
    grew = []
    for step in range(1, STEPS + 1):
        train(model, optimizer, 1)
        train(other, others, 1)
        gradients = {name: p.grad.clone() for name, p in other.named_parameters()}
        by_hand(other, masks, others)
        if step % EVERY == 0 and step < 9:
            share = 0.25 * (1 + math.cos(math.pi * step / 9))
            before, masks = masks, {n: moved(p, gradients[n], m, share) for n, p, m in matched(other, masks)}
            by_hand(other, masks, others)
            grew.append(False)
            for name, p, mask in matched(model, masks):
                grown = mask & ~before[name]
                same = [p] + [t for t in optimizer.state[p].values() if torch.is_tensor(t) and t.shape == p.shape]
                grew[-1] |= bool(grown.any())
                assert not any(tensor[grown].any() for tensor in same), name
        assert all(torch.equal(mask, masks[name]) for name, mask in handle.state_dict().items())
        bb.audit(model, masks)
        held.assert_same(model, other)
    assert grew == [True] * 4


VALUES = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, 1e-40, math.inf, -math.inf, math.nan])


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(["rigl", "set"]), st.floats(0, 1))
def test_counts_are_exact_whatever_weights_and_gradients_are(data, method, fraction):
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 2, bias=False))
    masks = {}
    for name, p in model.named_parameters():
        drawn = [data.draw(st.lists(each, min_size=p.numel(), max_size=p.numel())) for each in (VALUES, st.booleans())]
        p.data, masks[name] = (torch.tensor(values).view(p.shape) for values in drawn)
        p.grad = torch.tensor(data.draw(st.lists(VALUES, min_size=p.numel(), max_size=p.numel()))).view(p.shape)
    handle = bb.hold(model, masks, optim.SGD(model.parameters(), lr=0.0))
    share = fraction / 2 * (1 + math.cos(math.pi / 8))
    expected = {n: moved(p, p.grad, masks[n], share) for n, p in model.named_parameters()}
    assert bb.evolve(handle, 8, every=1, method=method, fraction=fraction, until=1.0).advance()
    for name, mask in handle.state_dict().items():
        assert mask.count_nonzero() == masks[name].count_nonzero()
        if method == "rigl":
            assert torch.equal(mask, expected[name])
    bb.audit(model, handle.state_dict())


LAYERS = {
    "linear": (nn.Linear(5, 6), torch.ones(1, 5)),
    "grouped": (nn.Conv2d(4, 6, (1, 3), groups=2), torch.ones(1, 4, 1, 3)),
    "transposed": (nn.ConvTranspose2d(4, 6, (1, 2), groups=2), torch.ones(1, 4, 1, 1)),
}


def channels_of(layer, x):
    """Return the output channel of each weight: the one that it alone makes something of."""
    found = []
    for weight in torch.eye(layer.weight.numel()).view(-1, *layer.weight.shape):
        output = torch.func.functional_call(layer, {"weight": weight, "bias": torch.zeros_like(layer.bias)}, (x,))
        found.append(output.flatten(2).sum((0, 2)).argmax().item() if output.dim() > 2 else output.argmax().item())
    return found


CHANNELS = {name: channels_of(*case) for name, case in LAYERS.items()}


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([*LAYERS]), st.sampled_from(["rigl", "set"]), st.integers(0, 9999), st.booleans(), st.booleans(),
    *(st.sampled_from([0.05, 0.3, 0.5, 0.9, 1.0]) for _ in range(3)),
)  # fmt: skip
def test_channels_with_few_salient_weights_give_them_to_the_others(
    name, method, seed, limited, together, density, fraction, ablate
):
    layer, channels = LAYERS[name][0], torch.tensor(CHANNELS[name])
    generator = torch.Generator().manual_seed(seed)
    uniform = [torch.rand(layer.weight.shape, generator=generator).round(decimals=1) for _ in range(4)]
    mask, values = uniform[0] < density, uniform[1]
    model = nn.ModuleList([layer, copy.deepcopy(layer)])
    for each in model:
        each.weight.grad, each.weight.data = uniform[2], values.clone()
    masks = {"1.weight": mask, "0.weight": mask}
    handle = bb.hold(model, masks, optim.SGD(model.parameters(), lr=0.0))
    places = {name: uniform[3] < 0.6 for name in masks if limited}
    evolution = bb.evolve(handle, 8, every=1, method=method, fraction=fraction, until=1.0, ablate=ablate, among=places)
    with patch("barebones.evolution.TOGETHER", 1 + 99 * together):
        evolution.advance()
    share = fraction / 2 * (1 + math.cos(math.pi / 8))
    ends = handle.state_dict()
    for weight, less in (("0.weight", ablate), ("1.weight", 0.0)):  # the last layer keeps its channels
        wanted = evolution._wanted(weight, model.get_parameter(weight))
        assert torch.equal(ends[weight], moved(values, wanted, mask, share, less, CHANNELS[name], places.get(weight)))
    after = ends["0.weight"]
    assert not limited or (places["0.weight"] | mask)[after].all()
    kept = int(mask.count_nonzero())
    assert after.count_nonzero() == kept
    bb.audit(model, ends)
    counts, live = (torch.bincount(channels, each.flatten().float()) for each in (after, mask))
    bound = ablate * kept / max(live.count_nonzero().item(), 1)
    if kept <= len(channels) / 12 and not limited:  # one channel has room for all
        assert all(count == 0 or count >= bound for count in counts.tolist()) or (counts > 0).sum() == 1


@given(st.data(), st.lists(st.integers(0, 6), min_size=1, max_size=4), st.booleans())
def test_all_layers_sorted_at_once_are_chosen_as_one_by_one(data, sizes, largest):
    parts = (st.sampled_from([0.0, -1.0, 2.0, 3e38, math.nan]), torch.float32), (st.booleans(), torch.bool)
    values, among = (
        [torch.tensor(data.draw(st.lists(each, min_size=n, max_size=n)), dtype=kind) for n in sizes]
        for each, kind in parts
    )
    many = torch.tensor([data.draw(st.integers(0, int(each.sum()))) for each in among])
    pairs = zip(*(each(values, among, many, largest) for each in (chosen, by_sorting)), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_set_grows_other_weights_with_another_seed_and_any_optimizer(masks):
    ends = []
    for seed in (0, 0, 1):
        model = network()
        optimizer = Lamb(model.parameters())
        handle = bb.hold(model, masks, optimizer, gradients=True)
        bb.evolve(handle, 8, every=3, method="set", seed=seed)
        train(model, optimizer, 5)
        ends.append(handle.state_dict()["3.weight"])
        bb.audit(model, handle.state_dict())
        assert (ends[-1] & ~masks["3.weight"]).count_nonzero() == int(0.25 * masks["3.weight"].count_nonzero()) > 0
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


@pytest.mark.parametrize("method", ["rigl", "set"])
@pytest.mark.parametrize("stop", range(1, 8))
def test_a_checkpoint_between_any_two_steps_changes_nothing(stop, method, masks):
    def start(masks):
        model = network()
        optimizer = optim.AdamW(model.parameters(), lr=0.01)
        handle = bb.hold(model, masks, optimizer)
        return model, optimizer, bb.evolve(handle, 10, every=3, method=method)

    whole, first, second = start(masks), start(masks), start({name: mask.flip(0) for name, mask in masks.items()})
    train(*whole[:2], 8)
    train(*first[:2], stop)
    for index in (0, 2, 1):  # the masks before the optimizer
        second[index].load_state_dict(first[index].state_dict())
    train(*second[:2], 8 - stop)
    held.assert_same(second[0], whole[0])
    assert second[2].step == 8


def test_what_cannot_move_gets_a_sentence(model, masks):
    handle, lamb = bb.hold(model, masks, held.sgd(model)), bb.hold(model, masks, Lamb(model.parameters()))
    clearing, removed = (bb.hold(model, masks, held.sgd(model), gradients=each) for each in (True, False))
    removed.remove()
    for holds, changes, match in (
        (masks, {}, "evolve moves the masks that hold holds, not a dict; pass what hold returns"),
        (clearing, {}, "with gradients=True, hold clears .* use method='set'"),
        (lamb, {}, "with this optimizer, hold clears .* use method='set'"),
        (handle, {"steps": 0}, "steps and every must be whole numbers of at least 1"),
        (handle, {"steps": 10.5}, "steps and every must be whole numbers of at least 1"),
        (handle, {"every": 0}, "steps and every must be whole numbers of at least 1"),
        (handle, {"fraction": 1.5}, "fraction, until and ablate from 0 to 1"),
        (handle, {"until": -1}, "fraction, until and ablate from 0 to 1"),
        (handle, {"ablate": 1.5}, "fraction, until and ablate from 0 to 1"),
        (handle, {"method": "rigll"}, "there is no evolution 'rigll'; did you mean 'rigl'"),
        (removed, {}, "not a Hold that was removed; pass what hold returns"),
    ):
        with pytest.raises(ValueError, match=match):
            bb.evolve(holds, **{"steps": 10, "every": 1} | changes)
    with pytest.warns(UserWarning, match="the masks never move: every=100 is not below 0.75 of 90 steps"):
        evolution = bb.evolve(handle, 90)
    with pytest.raises(ValueError, match=r"has masks and step; pass what its state_dict\(\) returned"):
        evolution.load_state_dict(handle.state_dict())


def test_masks_move_no_more_once_the_hold_has_ended(masks):
    model = network()
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    with bb.hold(model, masks, optimizer) as handle:
        evolution = bb.evolve(handle, 40, every=1)
        train(model, optimizer, 2)
    train(model, optimizer, 3)
    assert evolution.step == 2
    assert all(p.all() for p in model.parameters() if p.dim() > 1)


@pytest.mark.parametrize("method", ["rigl", "set"])
def test_what_grows_is_zero_even_if_pruned_weights_were_not(method, masks):
    model = network()
    handle = bb.hold(model, masks, held.sgd(model))
    evolution = bb.evolve(handle, 40, every=1, method=method)
    train(model, held.sgd(model), 1)  # another optimizer fills the pruned weights
    if method == "set":
        model.zero_grad()  # of which random growth needs none
    evolution.advance()
    assert (handle.state_dict()["3.weight"] & ~masks["3.weight"]).any()
    assert not any(p[~masks[name]].any() for name, p, _ in matched(model, masks))
