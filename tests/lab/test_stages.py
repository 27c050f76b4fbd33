"""Stages: a run that was stopped, killed or signalled at any moment resumes and ends the same."""

import os
import signal
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from lab_runs import assert_same_run, interrupted, tensors, tiny, until

import barebones as bb
from barebones.files.masks import load_masks
from barebones.files.weights import load_weights
from barebones.lab.run import run as lab
from barebones.lab.run import training
from barebones.lab.run.metrics import read
from barebones.lab.run.network import Network
from barebones.lab.run.run import run
from barebones.lab.run.training import Training
from barebones.names import CONTROLS

EARLY: dict = {"method": "magnitude", "sparsity": 0.6, "epochs": 1, "pretrain": 1}
FORCE: dict = {"rounds": 4}
OWN = FORCE | {"epochs": 3, "optimizer": "adamw", "lr": 0.01, "lr_schedule": "one-cycle", "label_smoothing": 0.1}
THIN: dict = FORCE | {"ham": True, "sam": 0.05}
MOVING: dict = THIN | {"evolve": "rigl", "ablate": 0.3, "epochs": 3}


@pytest.mark.parametrize(
    ("settings", "stops"),
    [
        *((FORCE, stops) for stops in ((0,), (3, 0), (4,), (9, 4, 1), (15,), (26,), (1,) * 10)),
        *((EARLY, stops) for stops in ((0, 2), (11,))),
        *((EARLY | {"rewind": True}, stops) for stops in ((10, 0), (12,), (13, 1))),
        *((FORCE | {"control": name}, (stop,)) for name in CONTROLS if name != "none" for stop in (2, 8)),
        *((FORCE | {"scoring_init": "xavier"}, (stop,)) for stop in (2, 8)),
        *((settings, (6, 9, 2)) for settings in (OWN, THIN, MOVING, FORCE | {"evolve": "set"})),
    ],
    ids=str,
)
def test_a_run_that_was_stopped_ends_the_same(settings, stops, options, undisturbed, monkeypatch):
    monkeypatch.setattr(training, "MOVES", 8)  # so that it is also stopped between two moves
    experiment = tiny(**settings)
    for stop in stops:
        interrupted(experiment, options, stop)
        assert not (options.folder(experiment) / "result.json").exists()
    run(experiment, options)
    assert_same_run(options.folder(experiment), undisturbed(experiment))


def test_a_stop_in_the_last_round_keeps_the_masks(options):
    interrupted(tiny(method="snip"), options, 0)
    assert (options.folder(tiny(method="snip")) / "mask.safetensors").exists()


@pytest.mark.parametrize("rewind", [False, True])
def test_early_pruning_goes_on_from_the_weights_it_pruned_or_from_the_initial_ones(rewind, options):
    experiment = tiny(**EARLY | {"epochs": 0, "rewind": rewind})
    run(experiment, options)
    folder = options.folder(experiment)
    masks = load_masks(folder / "mask.safetensors")
    initial = dict(Network(experiment, options, torch.device("cpu")).model.state_dict())
    pretrained, start = tensors(folder / "pretrained.safetensors"), tensors(folder / "weights.safetensors")
    assert any(not torch.equal(initial[name], pretrained[name]) for name in masks)
    magnitudes = torch.cat([pretrained[name].abs().flatten() for name in masks])
    kept = torch.cat([masks[name].flatten() for name in masks])
    assert magnitudes[kept].min() >= magnitudes[~kept].max()  # the largest of the pretrained weights are kept
    expected = initial if rewind else pretrained
    for name, value in start.items():
        mask = masks.get(name, torch.ones_like(value, dtype=torch.bool))
        assert torch.equal(value, torch.where(mask, expected[name], torch.zeros_like(value)))
    lines = read(folder / "metrics.jsonl")
    assert [(line["stage"], line["lr"]) for line in lines if line["stage"] != "prune"] == [("pretrain", 0.1)]


def test_early_pruning_trains_with_a_fresh_optimizer_and_the_full_schedule(options):
    experiment = tiny(**EARLY | {"epochs": 4, "batch_size": 256, "seed": 0})
    run(experiment, options)
    folder = options.folder(experiment)
    lines = [line for line in read(folder / "metrics.jsonl") if line["stage"] == "train"]
    assert [line["lr"] for line in lines] == pytest.approx([0.1, 0.1, 0.01, 0.001])
    network = Network(experiment, options, torch.device("cpu"))
    load_weights(folder / "pretrained.safetensors", network.model)
    masks = load_masks(folder / "mask.safetensors")
    for _ in Training(network.model, network.data, experiment.plan(), masks).steps():
        pass
    weights = tensors(folder / "weights.safetensors")
    assert all(torch.equal(weights[name], value) for name, value in network.model.state_dict().items())


def test_a_round_is_not_saved_before_its_lines_are_written(short, options, monkeypatch):
    """As on an accelerator, where lines wait: a checkpoint past a line would lose it for ever."""
    saved = []

    def save(self, path, **about):
        lines = read(options.folder(short) / "metrics.jsonl")
        saved.append((self.index, [line["round"] for line in lines]))

    monkeypatch.setattr(lab, "FLUSH", {"cpu": 1e9})
    monkeypatch.setattr(bb.Round, "save", save)
    run(short, replace(options, save_every=0))
    assert saved
    assert all(lines == list(range(1, index + 2)) for index, lines in saved)


KINDS = {
    "force": "--method force --rounds 6 --epochs 2",
    "rewound": "--method iter-snip --rounds 3 --pretrain 1 --rewind --epochs 1",
    "endless": "--pretrain 1 --rounds 2 --epochs 100000",
}


def words(runs: Path, kind: str, save_every: int = 0) -> list[str]:
    common = "--model nets_for_runs:tiny --data digits --sparsity 0.7 --seed 1 --batch-size 128 --device cpu"
    return ["run", *common.split(), *KINDS[kind].split(), "--save-every", str(save_every), "--runs", str(runs)]


def code(process: BaseProcess) -> int:
    process.join(120)
    return process.exitcode


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["force", "rewound"])
def test_a_run_that_is_killed_at_every_file_it_writes_ends_the_same(kind, start, tmp_path):
    (tmp_path / "undisturbed").mkdir()
    assert code(start(words(tmp_path / "undisturbed", kind))) == 0, (tmp_path / "printed").read_text()
    argv, killed = words(tmp_path / "runs", kind), 0
    for count in range(2, 200):
        ending = code(start(argv, die=(count // 2, count % 2 > 0)))
        if ending == 0:
            break
        assert ending == -signal.SIGKILL, (tmp_path / "printed").read_text()
        killed += 1
    assert killed >= 8
    (folder,), (expected,) = (tmp_path / "runs").iterdir(), (tmp_path / "undisturbed").iterdir()
    assert_same_run(folder, expected)


@pytest.mark.parametrize(
    ("number", "expected", "stage", "file"),
    [
        (signal.SIGINT, 130, "pretrain", "pretraining"),
        (signal.SIGTERM, 143, "prune", "round"),
        (signal.SIGINT, 130, "train", "checkpoint"),
    ],
)
def test_a_signal_saves_says_how_to_resume_and_leaves_with_its_code(number, expected, stage, file, start, tmp_path):
    runs = tmp_path / "runs"
    argv = words(runs, "endless", save_every=1000)  # so that it is the signal that saves
    argv += {"pretrain": ["--pretrain", "100000"], "prune": ["--rounds", "100000"], "train": []}[stage]
    process = start(argv)
    until(lambda: any(line["stage"] == stage for path in runs.glob("*/metrics.jsonl") for line in read(path)))
    os.kill(process.pid, number)
    ending, printed = code(process), (tmp_path / "printed").read_text()
    assert ending == expected, printed
    (folder,) = runs.iterdir()
    assert "Traceback" not in printed
    assert printed.endswith(f"stopped and saved in {folder}; the same command resumes from there\n")
    assert (folder / f"{file}.safetensors").exists()
    assert not (folder / "result.json").exists()
