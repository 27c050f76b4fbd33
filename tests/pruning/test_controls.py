"""Controls: shuffled masks are other masks of the same counts, reinitialized weights other weights of the same kind."""

import math

import pytest
import torch
from references import equal
from torch import nn

import barebones as bb

WIDE = {
    "a": torch.arange(40_000).view(200, 200) < 400,
    "b": torch.rand(64, 32, 3, 3, generator=torch.Generator().manual_seed(0)) < 0.3,
    "full": torch.ones(3, 4, dtype=torch.bool),
    "empty": torch.zeros(3, 4, dtype=torch.bool),
    "none": torch.ones(0, 2, dtype=torch.bool),
}


def counts(masks):
    return {name: (mask.shape, mask.dtype, int(mask.count_nonzero())) for name, mask in masks.items()}


@pytest.mark.parametrize("seed", range(5))
def test_a_shuffle_overlaps_with_the_original_as_much_as_chance(seed):
    other = bb.shuffled(WIDE, seed)
    assert isinstance(other, bb.Masks)
    assert counts(other) == counts(WIDE)
    for name in ("a", "b"):
        n, k = WIDE[name].numel(), int(WIDE[name].count_nonzero())
        expected, deviation = k * k / n, k * (n - k) / n / math.sqrt(n - 1)  # of the hypergeometric distribution
        assert abs(int((WIDE[name] & other[name]).count_nonzero()) - expected) < 4.5 * deviation


def test_a_shuffle_depends_on_the_seed_and_the_name_and_on_nothing_else():
    before, copies = torch.get_rng_state(), {name: mask.clone() for name, mask in WIDE.items()}
    first, other = bb.shuffled(WIDE, 1), bb.shuffled(WIDE, 2)
    turned = {n: m.contiguous(memory_format=torch.channels_last) if m.dim() == 4 else m for n, m in WIDE.items()}
    again = bb.shuffled(dict(reversed(turned.items())), 1)
    assert equal(first, {name: again[name] for name in first})
    assert torch.equal(torch.get_rng_state(), before)
    assert equal(WIDE, copies)
    assert not any(torch.equal(first[name], other[name]) for name in ("a", "b"))
    twins = bb.shuffled({"a": WIDE["a"], "b": WIDE["a"]}, 1)
    assert not torch.equal(twins["a"], twins["b"])


@pytest.mark.parametrize("wrong", [None, [torch.ones(2) > 0], {"w": torch.ones(2)}, {"w": [True]}])
def test_what_is_no_mask_is_a_sentence(wrong):
    for control in (bb.shuffled, lambda masks: bb.inverted(masks, {}), lambda masks: bb.save_masks(masks, "unwritten")):
        with pytest.raises(ValueError, match="masks must be a dict"):
            control(wrong)


def test_inverted_masks_keep_the_lowest_scores_of_each_layer():
    generator = torch.Generator().manual_seed(1)
    scores = {name: torch.randn(WIDE[name].shape, generator=generator) for name in ("a", "b")}
    masks = bb.keep_top(scores, 5000)
    lowest = bb.inverted(masks, scores)
    assert counts(lowest) == counts(masks)
    for name, mask in lowest.items():
        assert scores[name][mask].max() < scores[name][~mask].min()
    for wrong in ({}, {"a": torch.ones(3)}):
        with pytest.raises(ValueError, match="a score for every weight of the masks; check a"):
            bb.inverted({"a": torch.ones(2, dtype=torch.bool)}, wrong)


def network() -> nn.Module:
    torch.manual_seed(0)
    first = [nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*first, nn.Linear(32, 64), nn.MultiheadAttention(64, 4))


@pytest.mark.parametrize("init", [None, "kaiming-fan-in", "xavier"])
def test_reinitialized_weights_are_others_and_everything_else_is_the_same(init):
    model, before = network(), torch.get_rng_state()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fresh, again, other = (bb.reinitialized(model, seed, init=init) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert equal(model.state_dict(), state), "a trace is left"
    assert equal(fresh.state_dict(), again.state_dict())
    for name, tensor in fresh.state_dict().items():
        if name not in bb.prunable(model):
            assert torch.equal(tensor, state[name]), name
        else:
            assert not (tensor == state[name]).any(), name
            assert not torch.equal(tensor, other.state_dict()[name])
            both = torch.stack([tensor.flatten(), state[name].flatten()])
            assert abs(float(torch.corrcoef(both)[0, 1])) < 4.5 / math.sqrt(tensor.numel()), name


def test_reinitialized_weights_are_of_the_same_size_and_pruned_ones_do_not_count():
    model = network()
    masks = bb.shuffled({name: torch.rand(w.shape) < 0.3 for name, w in bb.prunable(model).items()})
    spread = {name: float(w.detach().std()) for name, w in bb.prunable(model).items()}
    for name, weight in bb.prunable(model).items():
        weight.data *= masks[name]
    for name, weight in bb.prunable(bb.reinitialized(model, seed=2)).items():
        assert float(weight.detach().std()) == pytest.approx(spread[name], rel=0.2), name
        assert abs(float(weight.detach().mean())) < 0.2 * spread[name]


def test_a_scheme_draws_by_the_shape_alone():
    model = network()
    for weight in bb.prunable(model).values():
        weight.data.zero_()
    assert not any(w.any() for w in bb.prunable(bb.reinitialized(model)).values()), "zeros have no spread"
    drawn = bb.prunable(bb.reinitialized(model, init="kaiming-fan-in"))
    assert float(drawn["4.weight"].detach().std()) == pytest.approx(math.sqrt(2 / 32), rel=0.1)
    with pytest.raises(ValueError, match="no initialization 'kaiming'; did you mean 'kaiming-fan-in'"):
        bb.reinitialized(model, init="kaiming")
