"""Runs with a control: their names, masks and weights."""

from dataclasses import replace

import pytest
import torch
from lab_runs import made_up_result, tiny, write_file

import barebones as bb
from barebones.files.masks import load_masks
from barebones.lab.experiment.experiment import Experiment
from barebones.lab.figures.report import gather
from barebones.lab.records.records import records, summary
from barebones.lab.run.folder import finished
from barebones.lab.run.loading import experiment_for_mask, initial, load
from barebones.lab.run.network import Network
from barebones.lab.run.options import RunOptions
from barebones.names import CONTROLS
from barebones.pruning.prune import prune

CHANGED = [control for control in CONTROLS if control != "none"]


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
    weights = {name: weight.detach().abs() for name, weight in bb.prunable(initial(once)).items()}
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
    for wrong in ({"pretrain": 1}, {"control": "reinitialize"}):
        with pytest.raises(ValueError, match="both change the weights; leave one of them out"):
            replace(other, **wrong).resolved()
    with pytest.raises(ValueError, match="no initialization 'xavir'; did you mean 'xavier'"):
        replace(short, scoring_init="xavir")


@pytest.mark.parametrize(
    ("setting", "argument"),
    [({"revive_empty": False}, {"revive_empty": False}), ({"scoring_bn": "eval"}, {"bn": "eval"})],
    ids=["no-revive-empty", "scoring-bn"],
)
def test_settings_of_scoring_are_those_of_prune(setting, argument, short, undisturbed):
    other = replace(short, **setting, model="small-resnet", sparsity=0.99, rounds=6, epochs=0)
    network = Network(other, RunOptions(), torch.device("cpu"))
    batches = network.data.train.scoring(other.plan().batch_size, other.seed)
    numbers = {"rounds": other.rounds, "seed": other.seed, "on_collapse": "ignore"}
    expected = prune(network.model, batches, 0.99, other.method, other.loss, **argument, **numbers).masks
    plain = prune(network.model, batches, 0.99, other.method, other.loss, **numbers).masks
    found = masks_of(undisturbed(other))
    assert all(torch.equal(found[name], mask) for name, mask in expected.items())
    assert not all(torch.equal(plain[name], mask) for name, mask in expected.items())


def test_the_mask_file_of_a_control_is_trained_as_it_is(short, undisturbed):
    for control in CHANGED:
        folder = undisturbed(replace(short, control=control))
        again = experiment_for_mask(folder / "mask.safetensors", {"model": short.model})
        assert again.control == control
    with pytest.raises(ValueError, match="found already, so --control has no effect"):
        experiment_for_mask(folder / "mask.safetensors", {"model": short.model, "control": "shuffle"})


def test_records_and_report_name_the_control(tmp_path):
    base = Experiment("small-vgg", "digits", "force", 0.9, epochs=1).resolved()
    for control in ("none", "shuffle"):
        experiment = replace(base, control=control)
        write_file(tmp_path / experiment.folder, experiment, "experiment.json", experiment.to_dict())
        write_file(tmp_path / experiment.folder, experiment, "result.json", made_up_result(experiment))
    rows = records(tmp_path)
    assert [(row["control"], row["seeds"]) for row in rows] == [("none", 1), ("shuffle", 1)]
    assert [str(cell) for cell in summary(rows).columns[0].cells] == ["force", "force, shuffled"]
    assert [group["variant"] for group in gather(tmp_path, effective=False)["groups"]] == ["", "shuffled"]
