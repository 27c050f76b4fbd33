"""Controls: shuffled masks are other masks of the same counts, reinitialized weights other weights of the same kind."""

import math

import pytest
import torch
from torch import nn

import barebones as bb
from barebones.masks import kept
from barebones.pruning.controls import CONTROLS

WIDE = {
    "a": torch.arange(40_000).view(200, 200) < 400,
    "b": torch.rand(64, 32, 3, 3, generator=torch.Generator().manual_seed(0)) < 0.3,
}


def counts(masks):
    return {name: int(mask.count_nonzero()) for name, mask in masks.items()}


def test_a_shuffle_keeps_every_count_and_shape():
    for seed in range(5):
        other = bb.shuffled(WIDE, seed)
        assert isinstance(other, bb.Masks)
        assert counts(other) == counts(WIDE)
        assert {name: (mask.shape, mask.dtype) for name, mask in other.items()} == {
            name: (mask.shape, mask.dtype) for name, mask in WIDE.items()
        }


@pytest.mark.parametrize("seed", range(5))
def test_a_shuffle_overlaps_with_the_original_as_much_as_chance(seed):
    other = bb.shuffled(WIDE, seed)
    for name, mask in WIDE.items():
        n, k = mask.numel(), int(mask.count_nonzero())
        expected, deviation = k * k / n, k * (n - k) / n / math.sqrt(n - 1)  # of the hypergeometric distribution
        assert abs(int((mask & other[name]).count_nonzero()) - expected) < 4.5 * deviation


def test_every_weight_is_as_likely_to_stay_after_a_shuffle():
    mask = {"w": torch.arange(20) < 5}
    times = sum(bb.shuffled(mask, seed)["w"].double() for seed in range(2000))
    assert ((times - 500).abs() < 4.5 * math.sqrt(2000 * 0.25 * 0.75)).all()


def test_a_shuffle_depends_on_the_seed_and_on_nothing_else():
    before = torch.get_rng_state()
    first, again, other = bb.shuffled(WIDE, 1), bb.shuffled(dict(reversed(WIDE.items())), 1), bb.shuffled(WIDE, 2)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in WIDE)
    assert not any(torch.equal(first[name], other[name]) for name in WIDE)
    twins = bb.shuffled({"a": WIDE["a"], "b": WIDE["a"]}, 1)
    assert not torch.equal(twins["a"], twins["b"])


def test_a_shuffle_does_not_change_its_masks_and_does_not_care_about_memory():
    mask = WIDE["b"].clone()
    other = bb.shuffled({"b": mask.contiguous(memory_format=torch.channels_last)}, 3)["b"]
    assert torch.equal(mask, WIDE["b"])
    assert torch.equal(other, bb.shuffled(WIDE, 3)["b"])


@pytest.mark.parametrize("value", [True, False])
def test_full_and_empty_layers_stay_as_they_are(value):
    masks = {"w": torch.full((3, 4), value), "none": torch.ones(0, 2, dtype=torch.bool)}
    assert {name: mask.tolist() for name, mask in bb.shuffled(masks).items()} == {
        name: mask.tolist() for name, mask in masks.items()
    }


@pytest.mark.parametrize("wrong", [None, [torch.ones(2) > 0], {"w": torch.ones(2)}, {"w": [True]}])
def test_what_is_no_mask_is_a_sentence(wrong):
    for control in (bb.shuffled, lambda masks: bb.inverted(masks, {})):
        with pytest.raises(ValueError, match="masks must be a dict"):
            control(wrong)


def test_inverted_masks_keep_the_lowest_scores_of_each_layer():
    generator = torch.Generator().manual_seed(1)
    scores = {name: torch.randn(mask.shape, generator=generator) for name, mask in WIDE.items()}
    masks = bb.keep_top(scores, kept(WIDE))
    lowest = bb.inverted(masks, scores)
    assert counts(lowest) == counts(masks)
    for name, mask in lowest.items():
        assert scores[name][mask].max() < scores[name][~mask].min()


@pytest.mark.parametrize("scores", [{}, {"a": torch.ones(3)}])
def test_masks_without_scores_cannot_be_inverted(scores):
    with pytest.raises(ValueError, match="a score for every weight of the masks; check a"):
        bb.inverted({"a": torch.ones(2, dtype=torch.bool)}, scores)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, 64),
        nn.MultiheadAttention(64, 4),
    )


@pytest.mark.parametrize("init", [None, "kaiming-fan-in", "xavier"])
def test_reinitialized_weights_are_others_and_everything_else_is_the_same(init):
    model = network()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fresh = bb.reinitialized(model, seed=1, init=init)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items()), "a trace is left"
    for name, tensor in fresh.state_dict().items():
        if name not in bb.prunable(model):
            assert torch.equal(tensor, state[name]), name
        else:
            assert not (tensor == state[name]).any(), name
            both = torch.stack([tensor.flatten(), state[name].flatten()])
            assert abs(float(torch.corrcoef(both)[0, 1])) < 4.5 / math.sqrt(tensor.numel()), name
    assert {name for name, p in fresh.named_parameters()} == {name for name, p in model.named_parameters()}


def test_reinitialized_weights_are_of_the_same_size_and_pruned_ones_do_not_count():
    model = network()
    masks = bb.shuffled({name: torch.rand(w.shape) < 0.3 for name, w in bb.prunable(model).items()})
    spread = {name: float(w.detach().std()) for name, w in bb.prunable(model).items()}
    for name, weight in bb.prunable(model).items():
        weight.data *= masks[name]
    for name, weight in bb.prunable(bb.reinitialized(model, seed=2)).items():
        weight = weight.detach()
        assert float(weight.std()) == pytest.approx(spread[name], rel=0.2), name
        assert abs(float(weight.mean())) < 0.2 * spread[name]


def test_a_scheme_draws_by_the_shape_alone():
    model = network()
    for weight in bb.prunable(model).values():
        weight.data.zero_()
    assert not any(w.any() for w in bb.prunable(bb.reinitialized(model)).values()), "zeros have no spread"
    drawn = bb.prunable(bb.reinitialized(model, init="kaiming-fan-in"))
    assert float(drawn["4.weight"].detach().std()) == pytest.approx(math.sqrt(2 / 32), rel=0.1)


def test_reinitializing_depends_on_the_seed_and_on_no_global_number():
    model, before = network(), torch.get_rng_state()
    a, b, other = (bb.reinitialized(model, seed)[0].weight for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, other)
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(ValueError, match="no initialization 'kaiming'; did you mean 'kaiming-fan-in'"):
        bb.reinitialized(model, init="kaiming")


def test_fresh_weights_train_under_the_same_masks():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    masks = bb.prune(model, sparsity=0.5, method="magnitude", example=torch.ones(1, 4), on_collapse="ignore").masks
    fresh = bb.reinitialized(model, seed=1)
    bb.hold(fresh, masks, torch.optim.SGD(fresh.parameters(), lr=0.1))
    for name, weight in bb.prunable(fresh).items():
        assert torch.equal(weight != 0, masks[name]), name


def test_every_control_has_a_word():
    assert list(CONTROLS) == ["none", "shuffle", "reinitialize", "invert"]
    assert [word for word in CONTROLS.values() if word] == ["shuffled", "reinitialized", "inverted"]
