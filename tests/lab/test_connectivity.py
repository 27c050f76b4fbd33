"""Connectivity: masks that cut a network or leave layers empty are told right after pruning, and can stop a run."""

from dataclasses import replace
from io import StringIO

import pytest
import torch
import zoo
from rich.console import Console

from barebones.files.masks import load_masks, masks_digest, save_masks
from barebones.lab.experiment.experiment import Experiment
from barebones.lab.records import records
from barebones.lab.run.connectivity import findings
from barebones.lab.run.folder import MASK, finished
from barebones.lab.run.network import Network
from barebones.lab.run.progress import summary, watching
from barebones.lab.run.run import RunOptions, run
from barebones.lab.sweep.pool import RUNNING, Job
from barebones.lab.sweep.progress import sentence
from barebones.messages import plain_text

SILENT = "No signal reaches 6 of 10 outputs."
CUT = "No signal passes from input to output"


@pytest.fixture(scope="module")
def cut(networks) -> Experiment:
    """Two weights are left for three layers, so at least one is empty."""
    return Experiment(networks, "digits", "snip", 0.995, epochs=1, batch_size=256).resolved()


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


def test_a_healthy_mask_is_told_nothing_about(short, undisturbed):
    row = records.record(undisturbed(short), short)
    assert (row["collapsed"], row["empty_layers"]) == (False, 0)
    assert "empty" not in plain_text(records.summary(records.arranged([row])))


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


def test_masks_of_a_file_that_cut_the_network_stop_a_run_too(cut, options, tmp_path):
    run(cut, options, until="prune")
    masks = load_masks(options.folder(cut) / MASK)
    save_masks(masks, tmp_path / "mask")
    trained = replace(cut, method="file", mask=masks_digest(masks), rounds=None, batches_per_round=None).resolved()
    with pytest.raises(ValueError, match=CUT):
        run(trained, replace(options, on_collapse="raise", mask=tmp_path / "mask"))


@pytest.fixture
def silent(short, options, tmp_path) -> tuple[Experiment, RunOptions]:
    """An experiment whose masks, from a file, keep weights in 4 of the 10 rows of the classifier."""
    masks = zoo.keep_all(Network(short, options, torch.device("cpu")).model)
    masks = {name: mask for name, mask in masks.items() if mask.dim() > 1}
    masks["8.weight"][4:] = False
    save_masks(masks, path := tmp_path / "mask")
    settings = dict(method="file", mask=masks_digest(masks), rounds=None, batches_per_round=None, epochs=1)
    return replace(short, **settings, sparsity=60 / 414).resolved(), replace(options, mask=path)


def test_classes_that_no_signal_reaches_are_told_and_do_not_stop_a_run(silent):
    experiment, options = silent
    lines = []
    result = run(experiment, replace(options, on_collapse="raise"), lines.append)
    (warning,) = [line for line in lines if "warning" in line]
    assert (warning["warning"], warning["short"]) == (SILENT, "6 of 10 outputs disconnected")
    assert (result["collapsed"], result["empty"], result["disconnected_outputs"], result["outputs"]) == ([], [], 6, 10)
    assert SILENT in list(summary(result, options.folder(experiment)))
    row = records.record(options.folder(experiment), experiment)
    assert (row["collapsed"], row["disconnected_outputs"]) == (False, 6)
    assert "outputs, at most" in plain_text(records.summary(records.arranged([row])))


@pytest.mark.parametrize(
    ("about", "found"),
    [
        ({"collapsed": ["a"], "disconnected_outputs": 10, "outputs": 10}, [(f"{CUT}: collapsed at a.", "collapsed")]),
        ({"collapsed": ["a"], "kept": 10, "effective": 0}, [(f"{CUT}: collapsed at a.", "collapsed")]),
        (
            {"kept": 1000, "effective": 590},
            [("41% of the kept weights are on no path from input to output.", "41% of the weights on no path")],
        ),
        ({"kept": 1000, "effective": 801}, []),
        ({"kept": 10, "effective": None}, []),
        ({"kept": 0, "effective": 0}, []),
        ({}, []),
    ],
    ids=str,
)
def test_each_finding_is_told_once_and_in_short(about, found):
    assert list(findings(about)) == found


def test_what_to_do_at_a_collapse_is_no_part_of_the_experiment():
    assert "on_collapse" not in Experiment().to_dict()
    with pytest.raises(ValueError, match="choose warn, raise or skip"):
        RunOptions(on_collapse="wran")


@pytest.mark.parametrize("terminal", [False, True])
def test_a_warning_is_shown_as_it_comes(terminal):
    console = Console(force_terminal=terminal, width=60, record=True, file=StringIO())
    with watching(console) as report:
        report({"stage": "prune", "warning": "[b] keeps nothing.", "short": "1 of 2 layers empty"})
    assert "warning: [b] keeps nothing." in console.export_text()


def test_a_sweep_tells_it_beside_the_run(cut):
    job = Job(cut, RUNNING)
    job.update({"stage": "prune", "round": 1, "rounds": 1, "seconds": 1.0})
    job.update({"stage": "prune", "warning": "a. b.", "short": "collapsed"})
    assert sentence(job) == f"warning  {job.label}: a. b."
    assert job.progress == "1 of 1 rounds"
