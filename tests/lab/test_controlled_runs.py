"""Runs with a control: their names, masks and weights."""

from dataclasses import replace

import pytest
import torch
from lab_runs import tiny

import barebones as bb
from barebones.files.masks import load_masks
from barebones.lab.run.folder import finished
from barebones.lab.run.loading import experiment_for_mask, initial, known_inputs, load
from barebones.lab.run.network import Network
from barebones.lab.run.options import RunOptions
from barebones.names import CONTROLS
from barebones.pruning.prune import prune


def masks_of(folder):
    return load_masks(folder / "mask.safetensors")


def test_the_shuffle_of_a_run_shuffles(short, undisturbed):
    plain, other = (masks_of(undisturbed(replace(short, control=control))) for control in ("none", "shuffle"))
    assert {name: int(m.sum()) for name, m in plain.items()} == {name: int(m.sum()) for name, m in other.items()}
    assert all(torch.equal(mask, other[name]) for name, mask in bb.shuffled(plain, short.seed).items())
    assert float(bb.agreement(plain, other)) < 0.6


def test_the_inversion_of_a_run_keeps_the_counts_and_no_best_weight(undisturbed):
    once = tiny(method="magnitude", epochs=0)
    plain, other = (masks_of(undisturbed(replace(once, control=control))) for control in ("none", "invert"))
    weights = {name: weight.detach().abs() for name, weight in bb.prunable(initial(once, known_inputs(once))).items()}
    assert {name: int(m.sum()) for name, m in plain.items()} == {name: int(m.sum()) for name, m in other.items()}
    for name, mask in other.items():
        assert weights[name][mask].max() <= weights[name][~mask].min()


def test_a_reinitialized_run_has_the_same_masks_and_other_weights(short, undisturbed):
    untrained = replace(short, epochs=0)
    folders = [undisturbed(replace(untrained, control=control)) for control in ("none", "reinitialize")]
    plain, other = map(masks_of, folders)
    assert all(torch.equal(plain[name], other[name]) for name in plain)
    (_, a, masks), (_, b, _) = (load(folder, model=short.model) for folder in folders)
    weights = bb.prunable(b)
    for name, weight in bb.prunable(a).items():
        assert not (weight == weights[name])[masks[name]].any(), name
        assert not weights[name][~masks[name]].any()
    assert [finished(folder)["found_for_these_weights"] for folder in folders] == [True, False]


def test_masks_found_on_other_weights_are_those_of_the_reinitialized_network(short, undisturbed):
    other = replace(short, scoring_init="xavier", epochs=0)
    folder = undisturbed(other)
    network = Network(other, RunOptions(), torch.device("cpu"))
    fresh = bb.reinitialized(network.model, other.seed, "xavier")
    batches = network.data.train.scoring(other.plan().batch_size, other.seed)
    expected = prune(fresh, batches, other.sparsity, other.pruning(), other.loss, seed=other.seed)
    found = masks_of(folder)
    assert all(torch.equal(found[name], mask) for name, mask in expected.masks.items())
    assert float(bb.agreement(found, masks_of(undisturbed(replace(short, epochs=0))))) < 0.9
    _, trained, _ = load(folder, model=short.model)
    weights = bb.prunable(trained)
    for name, weight in bb.prunable(network.model).items():  # the initial weights are trained
        assert torch.equal(weights[name], weight * found[name])
    assert not finished(folder)["found_for_these_weights"]


def test_the_mask_file_of_a_control_is_trained_as_it_is(short, undisturbed):
    for control in set(CONTROLS) - {"none"}:
        folder = undisturbed(replace(short, control=control))
        again = experiment_for_mask(folder / "mask.safetensors", {"model": short.model})
        assert again.control == control
    with pytest.raises(ValueError, match="found already, so --control has no effect"):
        experiment_for_mask(folder / "mask.safetensors", {"model": short.model, "control": "shuffle"})
