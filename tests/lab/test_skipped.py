"""Skipping: with `--on-collapse skip`, a network that the masks cut is tested and recorded, but not trained."""

import io
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from lab_runs import ALWAYS, assert_same_run, interrupted, stamps, tensors, timeless
from rich.console import Console

from barebones.files.masks import load_masks, masks_digest, save_masks
from barebones.lab.experiment.experiment import Experiment
from barebones.lab.figures.report.runs import _run
from barebones.lab.records import records
from barebones.lab.run import stages, training
from barebones.lab.run.folder import finished
from barebones.lab.run.metrics import read
from barebones.lab.run.network import Network
from barebones.lab.run.progress import run_folder, summary
from barebones.lab.run.run import RunOptions, run
from barebones.lab.sweep.sweep import sweep

CUT = "No signal passes from input to output"
UNTRAINED = "Its training is skipped."


def words_of(gathered: dict) -> str:
    return " ".join(sentence for _, sentence in gathered["words"])


@pytest.fixture(scope="module")
def cut(networks) -> Experiment:
    """Two weights are left for three layers, so at least one is empty."""
    return Experiment(networks, "digits", "snip", 0.995, epochs=2, batch_size=256, warmup=1).resolved()


@pytest.fixture
def skip(options) -> RunOptions:
    return replace(options, on_collapse="skip")


@pytest.fixture
def trains_nothing(monkeypatch) -> Callable[[], None]:
    """Return a function after whose call everything that is done only for training fails."""

    def never(*args, **settings):
        raise AssertionError("this network is not to be trained")

    def forbid() -> None:
        monkeypatch.setattr(training.Training, "_learn_from", never)
        for module, name in ((training, "_compiled"), (stages, "cuts_to_train"), (stages, "images_per_second")):
            monkeypatch.setattr(module, name, never)

    return forbid


def test_a_cut_network_is_tested_as_it_is(cut, skip, trains_nothing):
    trains_nothing()
    lines = []
    result = run(cut, skip, lines.append)
    folder, network = skip.folder(cut), Network(cut, skip, torch.device("cpu"))
    assert (result["experiment"]["epochs"], result["plan"]["epochs"], result["best_validation"]) == (2, 0, None)
    assert {line["stage"] for line in [*lines, *read(folder / "metrics.jsonl")]} == {"prune"}
    assert {path.name for path in folder.iterdir()} == ALWAYS

    masks, weights = load_masks(folder / "mask.safetensors"), tensors(folder / "weights.safetensors")
    expected = {name: w * masks[name] if name in masks else w for name, w in network.model.state_dict().items()}
    assert all(torch.equal(weights[name], value) for name, value in expected.items())
    network.model.load_state_dict(weights)
    ((images, labels),) = network.data.test.epoch(len(network.data.test))
    outputs = network.model.eval()(images)
    assert (outputs == outputs[0]).all()
    (predicted,) = {*outputs.topk(5).indices[:, 0].tolist()}  # one class for all images; with zeros, any may be chosen
    assert result["test"]["top1"] == (labels == predicted).double().mean().item()

    assert f"{UNTRAINED} " in " ".join(summary(result, folder))
    assert "Test accuracy right after pruning: " in next(summary(result, folder))
    assert run_folder(folder)["state"] == "finished"


def test_a_skipped_run_is_a_row_of_the_tables_and_of_the_report(cut, skip):
    result = run(cut, skip)
    (row,) = records.records(skip.runs)
    assert (row["status"], row["collapsed"], row["epochs"], row["train_seconds"]) == ("done", True, 2, 0.0)
    assert row["epochs_trained"] == 0
    assert (row["top1"], row["seeds"], row["best_validation"]) == (result["test"]["top1"], 1, None)
    gathered = _run(skip.folder(cut), "a", effective=False)
    assert (gathered["status"], gathered["problems"], gathered["series"]["train"]) == ("done", [], None)
    first = gathered["collapsed"][0].removesuffix(".weight")
    assert f"No signal passes from input to output: collapsed at {first}" in words_of(gathered)
    assert UNTRAINED in words_of(gathered)
    assert gathered["untrained"]


def test_a_trained_network_is_not_said_to_be_untrained(cut, options):
    """Not if it is cut and trained all the same, and not if its experiment has no epochs."""
    for experiment in (replace(cut, epochs=2), replace(cut, epochs=0, warmup=0)):
        told = " ".join(summary(run(experiment, options), options.folder(experiment)))
        gathered = _run(options.folder(experiment), "a", effective=False)
        assert CUT in told
        assert UNTRAINED not in told + words_of(gathered)
        assert ("after the last epoch" if experiment.epochs else "right after pruning") in told
        assert not gathered["untrained"]


@pytest.mark.parametrize(
    "changes",
    [
        {"control": "reinitialize"},
        {"control": "shuffle"},
        {"method": "magnitude", "pretrain": 1},
        {"method": "magnitude", "pretrain": 1, "rewind": True},
    ],
    ids=lambda changes: " ".join(map(str, changes.values())),
)
def test_the_tested_network_is_the_one_that_would_be_trained(changes, cut, skip, options):
    """It is that of the same experiment without epochs."""
    ends = []
    for epochs, how in ((2, skip), (0, options)):
        experiment = replace(cut, **changes, rounds=None, batches_per_round=None, epochs=epochs, warmup=0).resolved()
        result, folder = run(experiment, how), how.folder(experiment)
        assert result["collapsed"]
        weights = {name: value.tolist() for name, value in tensors(folder / "weights.safetensors").items()}
        same = {name: result[name] for name in ("plan", "test", "collapsed", "weights", "found_for_these_weights")}
        ends.append((same, weights, timeless(read(folder / "metrics.jsonl"))))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("shrink", [False, True])
def test_what_was_trained_before_is_dropped(shrink, cut, options, tmp_path):
    experiment = replace(cut, shrink=shrink)
    alone, skip = (RunOptions(tmp_path / name, save_every=0, on_collapse="skip") for name in ("alone", "runs"))
    run(experiment, alone)
    for after in (2, 8):  # in the first epoch, and in the second
        interrupted(experiment, options, after)
    folder = options.folder(experiment)
    assert (folder / "checkpoint.safetensors").exists()
    assert any(line["stage"] == "train" for line in read(folder / "metrics.jsonl"))
    assert skip.folder(experiment) == folder
    assert run(experiment, skip)["shrunk"] is None
    assert_same_run(alone.folder(experiment), folder)


def test_a_finished_run_stays_as_it_is(cut, options, skip):
    for first, second, epochs in ((options, skip, 2), (skip, options, 0)):
        assert run(cut, replace(first, overwrite=True))["plan"]["epochs"] == epochs
        before = stamps(options.folder(cut))
        assert run(cut, second)["plan"]["epochs"] == epochs
        assert stamps(options.folder(cut)) == before


def test_a_skipped_network_is_neither_shrunk_nor_compiled(networks, skip, options, trains_nothing):
    """It has no biases: without a signal, nothing would be left to train."""
    bare = Experiment(networks.replace("tiny", "bare"), "digits", "snip", 0.998, epochs=1, shrink=True).resolved()
    with pytest.raises(ValueError, match="nothing is left to train"):
        run(bare, options)
    trains_nothing()
    compiled = replace(skip, compiled=True)
    result = run(bare, compiled)
    assert (result["shrunk"], result["environment"]["compiled"], result["plan"]["epochs"]) == (None, False, 0)
    labels = torch.cat([labels for _, labels in Network(bare, skip, torch.device("cpu")).data.test.epoch(256)])
    assert result["test"]["top1"] in (labels.bincount().double() / len(labels)).tolist()  # all outputs are zero


def test_a_network_that_is_not_cut_is_trained(short, undisturbed, skip):
    run(short, skip)
    assert_same_run(undisturbed(short), skip.folder(short))


def test_a_network_whose_paths_are_not_known_is_trained(cut, networks, skip):
    """A signal may pass around its empty layers."""
    experiment, lines = replace(cut, model=networks.replace("tiny", "opaque")), []
    result = run(experiment, skip, lines.append)
    assert (result["collapsed"], bool(result["empty"]), result["effective"]) == ([], True, None)
    (warning,) = [line["warning"] for line in lines if "warning" in line]
    unknown = "Whether a signal passes from input to output is not known: "
    assert warning.startswith(unknown)
    assert f"{len(result['empty'])} of 3 layers keep" in warning
    assert any(sentence.startswith(unknown) for sentence in summary(result, skip.folder(experiment)))
    with pytest.raises(ValueError, match=f"^{unknown}.*--on-collapse warn"):
        run(experiment, replace(skip, on_collapse="raise"), until="prune")
    assert result["plan"]["epochs"] == 2
    assert [line["epoch"] for line in read(skip.folder(experiment) / "metrics.jsonl") if line["stage"] == "train"] == [
        1, 2
    ]  # fmt: skip


@pytest.mark.slow
def test_a_sweep_records_cut_networks_and_trains_the_others(cut, short, skip, forkserver):
    console = Console(file=io.StringIO(), width=200, record=True)
    result = sweep([cut, short], skip, jobs=2, console=console)
    text = console.export_text()
    assert (result.done, result.failed) == (2, 0), text
    assert f"{CUT}: " in text
    assert [finished(skip.folder(each))["plan"]["epochs"] for each in (cut, short)] == [0, 2]


@pytest.mark.parametrize("plan", ["mine", {"lr": 1}, {"epochs": 0}])
def test_a_plan_in_the_metadata_of_a_mask_file_is_the_users_own(plan, cut, options, tmp_path):
    run(cut, options, until="prune")
    masks = load_masks(options.folder(cut) / "mask.safetensors")
    save_masks(masks, path := tmp_path / "mask", plan=plan)
    trained = replace(cut, method="file", mask=masks_digest(masks), rounds=None, batches_per_round=None).resolved()
    lines = []
    result = run(trained, replace(options, mask=path), lines.append)
    (warning,) = [line for line in lines if "warning" in line]
    assert UNTRAINED not in warning["warning"]
    assert result["plan"]["epochs"] == 2


def test_the_skipping_is_told_right_after_pruning(cut, skip):
    lines = []
    run(cut, skip, lines.append)
    (warning,) = [line for line in lines if "warning" in line]
    assert f". {UNTRAINED} " in warning["warning"]
    assert warning["short"].startswith("collapsed, not trained, ")
