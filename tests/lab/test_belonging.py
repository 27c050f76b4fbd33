"""Files of other runs: a valid file in the wrong place is refused, with the run it belongs to and how to go on."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from lab_runs import assert_same_run, counts, interrupted, made_up_result, swept, write_file
from rich.console import Console

from barebones.lab.experiment.experiment import Experiment
from barebones.lab.figures.report import gather
from barebones.lab.figures.sources import FigureContext, Runs
from barebones.lab.records.records import record, records
from barebones.lab.run import loading
from barebones.lab.run.folder import progress, recorded
from barebones.lab.run.run import RunOptions, run

MASK, WEIGHTS, PRETRAINED = "mask.safetensors", "weights.safetensors", "pretrained.safetensors"
PRETRAINING, ROUND, CHECKPOINT = "pretraining.safetensors", "round.safetensors", "checkpoint.safetensors"


def resume(folder: Path) -> None:
    """Run the experiment of the folder's name, whatever is in the folder."""
    settings = json.loads((folder.parent.parent / "settings.json").read_text())
    run(Experiment.from_dict(settings), RunOptions(folder.parent, save_every=0))


export = lambda folder: loading.load(folder, trust=True)
shrink = lambda folder: loading.load(folder / MASK, trust=True)
train = lambda folder: loading.experiment_for_mask(folder / MASK, {}, trust=True)


def table(folder: Path) -> None:
    row = record(folder)
    assert row is not None
    if row["status"] == "unreadable":
        raise ValueError(row["reason"])


def report(folder: Path) -> None:
    [row] = gather(folder, effective=False)["runs"]
    if row["problems"]:
        raise ValueError(row["problems"][0])


@pytest.mark.parametrize(
    ("stage", "name", "use", "remedy"),
    [
        ("pretrain", PRETRAINING, resume, "delete it and run the experiment again, which pretrains from the start"),
        ("prune", PRETRAINED, resume, "delete its folder and run the experiment again"),
        ("prune", ROUND, resume, "delete it and run the experiment again, which prunes from the start"),
        ("prune", "metrics.jsonl", resume, "delete its folder and run the experiment again"),
        ("train", CHECKPOINT, resume, "delete it and run the experiment again, which trains from the start"),
        ("train", MASK, resume, "delete its folder and run the experiment again"),
        ("train", "experiment.json", resume, "move its folder away and run the experiment again"),
        ("train", MASK, shrink, "delete its folder and run the experiment again"),
        ("train", MASK, train, "delete its folder and run the experiment again"),
        ("train", "metrics.jsonl", progress, "delete its folder and run the experiment again"),
        ("train", MASK, report, "delete its folder and run the experiment again"),
        ("done", "result.json", resume, "delete it and run the experiment again, which trains from the start"),
        ("done", WEIGHTS, export, "delete the result.json beside it and run the experiment again"),
        ("done", MASK, export, "delete its folder and run the experiment again"),
        ("done", "result.json", export, "delete it and run the experiment again"),
        ("done", "result.json", table, "delete it and run the experiment again"),
        ("done", "result.json", report, "delete it and run the experiment again"),
        ("done", "metrics.jsonl", report, "delete its folder and run the experiment again"),
    ],
)
def test_a_file_of_another_run_is_refused(stage, name, use, remedy, staged, tmp_path):
    strangers = staged(seed=1)  # of the same shapes and counts
    there = next(f for f in (strangers[stage], *strangers.values()) if (f / name).exists())
    own = staged()[stage]
    (tmp_path / "settings.json").write_text(json.dumps(recorded(own)[0]))
    folder = Path(shutil.copytree(own, tmp_path / "runs" / own.name))
    shutil.copy(there / name, folder / name)
    with pytest.raises(ValueError, match=re.escape(remedy)) as refused:
        use(folder)
    assert f"{name} belongs to another run, {there.name};" in str(refused.value)


def test_a_sweep_does_not_take_the_result_of_another_run_for_its_own(short, tmp_path):
    other = replace(short, seed=9)
    folder = tmp_path / short.folder
    write_file(folder, other, "experiment.json", other.to_dict())
    write_file(folder, other, "result.json", made_up_result(other))
    result, text = swept([short], RunOptions(tmp_path), retry_failed=True)
    assert counts(result) == (0, 1, 0, 0)
    assert f"belongs to another run, {other.folder}; " in text
    assert "90.00" not in text
    figure = Runs(lambda scale: [short], list)
    with pytest.raises(ValueError, match="holds no finished run of the figure mine"):
        figure.compute("mine", "smoke", FigureContext(RunOptions(tmp_path), Console(quiet=True)))
    [row] = records(tmp_path)  # by itself it is the folder of the other run, under another name
    assert (row["status"], row["seed"]) == ("done", 9)


def test_the_files_of_two_executions_do_not_mix(short, options, tmp_path, undisturbed):
    """Also where both have the same settings: on another device they may have other masks and weights."""
    interrupted(short, options, 8)
    again = RunOptions(tmp_path / "again", save_every=0)
    interrupted(short, again, 8)
    for name in ("mask.safetensors", "checkpoint.safetensors"):
        shutil.copy(again.folder(short) / name, options.folder(short))
        with pytest.raises(ValueError, match=r"metrics.jsonl has other lines than those that the run had written"):
            run(short, options)
    shutil.copy(again.folder(short) / "metrics.jsonl", options.folder(short))  # now all are of one execution
    run(short, options)
    assert_same_run(options.folder(short), undisturbed(short))
