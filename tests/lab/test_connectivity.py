"""Connectivity: masks that cut a network or leave layers empty are told, and can stop a run or skip its training."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import zoo
from lab_runs import ALWAYS, assert_same_run, interrupted, tensors, timeless

from barebones.files.masks import load_masks, masks_digest, save_masks
from barebones.lab.experiment.experiment import Experiment
from barebones.lab.figures.report.runs import _run
from barebones.lab.records import records
from barebones.lab.run import run as lab
from barebones.lab.run import training
from barebones.lab.run.folder import MASK, finished
from barebones.lab.run.metrics import read
from barebones.lab.run.network import Network
from barebones.lab.run.progress import run_folder, summary
from barebones.lab.run.run import RunOptions, run
from barebones.messages import plain_text

UNTRAINED = "Its training is skipped."
SILENT = "No signal reaches 6 of 10 outputs."
CUT = "No signal passes from input to output"


@pytest.fixture(scope="module")
def cut(networks) -> Experiment:
    """Two weights are left for three layers, so at least one is empty."""
    return Experiment(networks, "digits", "snip", 0.995, epochs=2, batch_size=256, warmup=1).resolved()


def test_a_collapse_is_told_between_pruning_and_training(cut, options):
    lines = []
    result = run(cut, options, lines.append)
    stages = [(line["stage"], "warning" in line) for line in lines]
    assert stages.index(("prune", True)) == stages.index(("train", False)) - 1
    warning = next(line for line in lines if "warning" in line)
    assert warning["warning"].startswith(f"{CUT}: ")
    assert f"{len(result['empty'])} of 3 layers keep" in warning["warning"]
    assert warning["short"] == f"collapsed, {len(result['empty'])} of 3 layers empty"
    masks = load_masks(options.folder(cut) / MASK)
    assert result["empty"] == [name for name, mask in masks.items() if not mask.any()] != []
    told = " ".join(summary(result, options.folder(cut)))
    assert CUT in told
    assert "of 3 layers keep" in told
    row = records.record(options.folder(cut), cut)
    assert (row["collapsed"], row["empty_layers"]) == (True, len(result["empty"]))
    table = plain_text(records.summary(records.arranged([row])))
    assert "collapsed" in table
    assert "empty layers" in table


def test_a_collapse_stops_a_run_before_the_first_epoch_if_asked(cut, options):
    strict, lines = replace(options, on_collapse="raise"), []
    for _ in range(2):  # the second time the masks are there already
        with pytest.raises(ValueError, match=f"{CUT}.*--on-collapse warn"):
            run(cut, strict, lines.append)
        with pytest.raises(ValueError, match=CUT):
            run(cut, strict, lines.append, until="prune")
    assert {line["stage"] for line in lines} == {"prune"}
    assert finished(options.folder(cut)) is None
    run(cut, options)  # the same experiment: its masks are taken
    assert finished(options.folder(cut)) is not None


def test_classes_that_no_signal_reaches_are_told_and_do_not_stop_a_run(short, options, tmp_path):
    masks = zoo.keep_all(Network(short, options, torch.device("cpu")).model)
    masks = {name: mask for name, mask in masks.items() if mask.dim() > 1}
    masks["8.weight"][4:] = False  # of the ten rows of the classifier
    save_masks(masks, path := tmp_path / "mask")
    settings = dict(method="file", mask=masks_digest(masks), rounds=None, batches_per_round=None, epochs=1)
    experiment, lines = replace(short, **settings, sparsity=60 / 414).resolved(), []
    result = run(experiment, replace(options, mask=path, on_collapse="raise"), lines.append)
    (warning,) = [line for line in lines if "warning" in line]
    assert (warning["warning"], warning["short"]) == (SILENT, "6 of 10 outputs disconnected")
    assert (result["collapsed"], result["empty"], result["disconnected_outputs"], result["outputs"]) == ([], [], 6, 10)
    assert SILENT in list(summary(result, options.folder(experiment)))
    row = records.record(options.folder(experiment), experiment)
    assert (row["collapsed"], row["disconnected_outputs"]) == (False, 6)
    assert "outputs, at most" in plain_text(records.summary(records.arranged([row])))


@pytest.fixture
def skip(options) -> RunOptions:
    return replace(options, on_collapse="skip")


@pytest.fixture
def trains_nothing(monkeypatch) -> Callable[[], None]:
    """Return a function after whose call everything that is done only for training fails."""

    def forbid() -> None:
        for place, name in ((training.Training, "_learn_from"), (training, "_compiled"), (lab, "to_train")):
            monkeypatch.setattr(place, name, lambda *args, **more: pytest.fail("this network is not to be trained"))

    return forbid


def test_a_cut_network_is_tested_as_it_is(cut, skip, trains_nothing):
    trains_nothing()
    lines = []
    result = run(cut, skip, lines.append)
    folder = skip.folder(cut)
    assert (result["experiment"]["epochs"], result["plan"]["epochs"], result["best_validation"]) == (2, 0, None)
    assert {line["stage"] for line in [*lines, *read(folder / "metrics.jsonl")]} == {"prune"}
    (warning,) = [line for line in lines if "warning" in line]
    assert f". {UNTRAINED} " in warning["warning"]
    assert warning["short"].startswith("collapsed, not trained, ")
    assert {path.name for path in folder.iterdir()} == ALWAYS
    assert f"{UNTRAINED} " in " ".join(summary(result, folder))
    assert "Test accuracy right after pruning: " in next(summary(result, folder))
    assert run_folder(folder)["state"] == "finished"
    (row,) = records.records(skip.runs)
    assert (row["status"], row["collapsed"], row["epochs"], row["train_seconds"]) == ("done", True, 2, 0.0)
    assert row["epochs_trained"] == 0
    assert (row["top1"], row["seeds"], row["best_validation"]) == (result["test"]["top1"], 1, None)
    gathered = _run(folder, "a", effective=False)
    assert (gathered["status"], gathered["problems"], gathered["series"]["train"]) == ("done", [], None)
    first = gathered["collapsed"][0].removesuffix(".weight")
    assert f"No signal passes from input to output: collapsed at {first}" in str(gathered["words"])
    assert UNTRAINED in str(gathered["words"])
    assert gathered["untrained"]


@pytest.mark.parametrize(
    "changes",
    [{}, {"control": "reinitialize"}, {"control": "shuffle"}, {"method": "magnitude", "pretrain": 1, "rewind": True}],
    ids=lambda changes: " ".join(map(str, changes.values())),
)
def test_the_tested_network_is_the_one_that_would_be_trained(changes, cut, skip, options):
    """It is that of the same experiment without epochs."""
    ends = []
    for epochs, how in ((2, skip), (0, options)):
        experiment = replace(cut, **changes, rounds=None, batches_per_round=None, epochs=epochs, warmup=0).resolved()
        result, folder = run(experiment, how), how.folder(experiment)
        assert result["collapsed"]
        assert (UNTRAINED in " ".join(summary(result, folder))) == bool(epochs)
        weights = {name: value.tolist() for name, value in tensors(folder / "weights.safetensors").items()}
        same = {name: result[name] for name in ("plan", "test", "collapsed", "weights", "found_for_these_weights")}
        ends.append((same, weights, timeless(read(folder / "metrics.jsonl"))))
    assert ends[0] == ends[1]


def test_what_was_trained_before_is_dropped(cut, options, tmp_path):
    experiment = replace(cut, shrink=True)
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
