"""Masks that move: each layer keeps exactly as many weights, and what grows begins at zero, without a past."""

import math

import held
import pytest
import torch
from held import CASES, Lamb, by_hand, network, train
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn, optim

import barebones as bb
from barebones.holding import ELEMENTWISE
from barebones.scope import matched

STEPS, EVERY = 12, 2


def moved(weight, gradient, mask, share):
    """Return the next mask of a layer by sorting; the first of equals is dropped, and the first grows."""
    sizes, gains = (tensor.detach().abs().nan_to_num(0.0).flatten().tolist() for tensor in (weight, gradient))
    kept, pruned = ((mask.flatten() == stays).nonzero().flatten().tolist() for stays in (True, False))
    count = min(math.floor(share * len(kept)), len(pruned))
    dropped = sorted(kept, key=lambda index: sizes[index])[:count]
    grown = sorted(pruned, key=lambda index: -gains[index])[:count]
    stays = {*kept, *grown} - {*dropped}
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
    expected = {
        n: moved(p, p.grad, masks[n], fraction / 2 * (1 + math.cos(math.pi / 8))) for n, p in model.named_parameters()
    }
    assert bb.evolve(handle, 8, every=1, method=method, fraction=fraction, until=1.0).advance()
    for name, mask in handle.state_dict().items():
        assert mask.count_nonzero() == masks[name].count_nonzero()
        if method == "rigl":
            assert torch.equal(mask, expected[name])
    bb.audit(model, handle.state_dict())


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
    clearing = bb.hold(model, masks, held.sgd(model), gradients=True)
    for holds, changes, match in (
        (masks, {}, "evolve moves the masks that hold holds, not a dict; pass what hold returns"),
        (clearing, {}, "with gradients=True, hold clears .* use method='set'"),
        (lamb, {}, "with this optimizer, hold clears .* use method='set'"),
        (handle, {"steps": 0}, "steps and every must be at least 1"),
        (handle, {"every": 0}, "steps and every must be at least 1"),
        (handle, {"fraction": 1.5}, "fraction and until from 0 to 1"),
        (handle, {"until": -1}, "fraction and until from 0 to 1"),
        (handle, {"method": "rigll"}, "there is no evolution 'rigll'; did you mean 'rigl'"),
    ):
        with pytest.raises(ValueError, match=match):
            bb.evolve(holds, **{"steps": 10} | changes)
