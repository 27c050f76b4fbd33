"""The commands for experiments: dry runs do nothing, and prune, train, run and inspect fit together."""

import json
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import barebones as bb
from barebones.data import DATA
from barebones.files.masks import load_masks, save_masks
from barebones.lab import demo
from barebones.lab.experiment import Experiment
from barebones.lab.network import cached_data

TINY = ["--model", "nets_for_cli:tiny", "--data", "digits", "--batch", "256", "--device", "cpu"]
FORCE = [*TINY, "--method", "force", "--sparsity", "0.8", "--rounds", "3", "--epochs", "1"]


def contents(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if "__pycache__" not in p.parts}


# dry runs


@pytest.fixture
def no_data(monkeypatch) -> None:
    """Let every attempt to read data fail."""

    def refuse(request):
        raise AssertionError("a dry run reads data")

    cached_data.cache_clear()
    for name in DATA:
        monkeypatch.setitem(DATA, name, replace(DATA[name], load=refuse))


@pytest.mark.usefixtures("no_data")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["run", *FORCE],
            [
                "594 prunable weights; 119 would be left",
                "Pruning: 3 rounds, each with 1 batch of 256 images",
                "Training: 1 epoch on cpu",
            ],
        ),
        (["prune", *FORCE], ["Pruning: 3 rounds"]),
        (["run", "--model", "vgg19", "--data", "cifar100", "--method", "snip-mb"], ["600", "350"]),
        (["train", *TINY], ["dense", "Training: 20 epochs"]),
        (["run", *TINY, "--method", "magnitude", "--pretrain", "1", "--rewind"], ["pretrain", "rewind"]),
        (["sweep", "smoke", "--device", "cpu"], ["not begun", "experiments in runs"]),
    ],
    ids=["run", "prune", "snip-mb", "train", "early", "sweep"],
)
def test_a_dry_run_says_what_would_happen_and_does_nothing(words, expected, command, tiny):
    done = command(*words, "--dry-run")
    assert (done.code, done.err) == (0, "")
    for text in expected:
        assert text in done.out
    assert "not begun" in done.out
    assert contents(tiny) == {"nets_for_cli.py"}


def test_a_dry_run_says_where_each_value_comes_from(command, tiny):
    out = command("run", *FORCE, "--dry-run").out
    rows = {line.split()[1]: line for line in out.splitlines() if len(line.split()) > 4}
    assert "you" in rows["sparsity"]
    assert "you" in rows["rounds"]
    assert "data set and method" in rows["weight_decay"]
    assert "default" in rows["momentum"]


def test_a_dry_run_names_the_folder_of_the_run_and_how_far_it_is(command, tiny):
    before = command("run", *FORCE, "--dry-run").out
    assert command("prune", *FORCE).code == 0
    (folder,) = (tiny / "runs").iterdir()
    assert f"runs/{folder.name}: not begun." in before
    assert f"runs/{folder.name}: pruned." in command("run", *FORCE, "--dry-run").out
    assert command("run", *FORCE).code == 0
    stamp = (folder / "result.json").stat().st_mtime_ns
    assert f"runs/{folder.name}: finished." in command("run", *FORCE, "--dry-run").out
    assert (folder / "result.json").stat().st_mtime_ns == stamp


# trouble


@pytest.mark.parametrize("file", ["runs", "folder"])
def test_a_file_in_the_way_is_one_line(file, command, tiny):
    folder = Path("runs") / command("run", *FORCE, "--dry-run").out.split("runs/")[1].split(":")[0]
    path = Path("runs") if file == "runs" else folder
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    done = command("run", *FORCE)
    assert done.code == 2
    assert str(path) in done.err
    assert done.err.count("\n") == 1


def test_a_full_disk_is_one_line(command, tiny, monkeypatch):
    usage = shutil.disk_usage(".")._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    done = command("run", *FORCE)
    assert done.code == 2
    assert "delete something first" in done.err
    assert done.err.count("\n") == 1


def test_a_loss_that_is_not_finite_is_one_line(command, tiny):
    done = command("run", *FORCE, "--lr", "1e30")
    assert done.code == 2
    assert done.err.splitlines()[-1] == (
        "error: epoch 0: the training loss is not finite; lower the learning rate, or use fp32"
    )
    assert not list(tiny.rglob("result.json"))


def test_tensorboard_that_is_not_installed_is_named(command, tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    done = command("run", *FORCE, "--tensorboard")
    assert done == (2, "", "error: --tensorboard needs TensorBoard: pip install 'barebones[tensorboard]'\n")


@pytest.mark.parametrize("name", ["for_larger_images", "for_fewer_classes"])
@pytest.mark.parametrize("words", [["run", "--method", "force"], ["run", "--method", "magnitude"], ["train"]], ids=str)
def test_a_network_that_does_not_fit_the_data_is_one_line(words, name, command, tiny):
    done = command(*words, "--data", "digits", "--model", f"nets_for_cli:{name}", "--epochs", "1", "--device", "cpu")
    assert done.code == 2
    assert "Traceback" not in done.err
    assert name in done.err.splitlines()[-1]


# what the commands do


def test_prune_writes_the_masks_and_train_trains_them(command, tiny):
    done = command("prune", *FORCE, "-o", "mask.safetensors")
    assert done.code == 0
    assert "119 of 594 prunable weights are left: sparsity 79.966%" in done.out
    assert "The masks are in mask.safetensors" in done.out
    masks, about = load_masks("mask.safetensors")
    assert sum(int(mask.sum()) for mask in masks.values()) == 119
    assert about["experiment"]["method"] == "force"
    (folder,) = (tiny / "runs").iterdir()
    assert Path("mask.safetensors").read_bytes() == (folder / "mask.safetensors").read_bytes()

    trained = command("train", "--mask", "mask.safetensors", "--device", "cpu")
    assert trained.code == 0
    assert "Test accuracy after the last epoch" in trained.out
    assert "found for other initial weights" not in trained.out
    run = command("run", *FORCE)
    assert run.code == 0
    results = {p.parent.name: json.loads(p.read_text()) for p in tiny.rglob("result.json")}
    one, other = results.values()
    assert {one["experiment"]["method"], other["experiment"]["method"]} == {"force", "file"}
    assert one["weights"] == other["weights"]
    assert one["test"] == other["test"]

    seeded = command("train", "--mask", "mask.safetensors", "--seed", "5", "--epochs", "0", "--device", "cpu")
    assert seeded.code == 0
    assert "These masks were found for other initial weights than the ones trained here." in seeded.out


def test_the_masks_of_a_finished_run_are_there_to_be_had(command, tiny):
    assert command("run", *FORCE).code == 0
    done = command("prune", *FORCE, "-o", "mask")
    assert done.code == 0
    assert "119 of 594 prunable weights are left" in done.out
    (folder,) = (tiny / "runs").iterdir()
    assert Path("mask").read_bytes() == (folder / "mask.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--rounds", "3"], "the masks are found already, so --rounds means nothing here"),
        (["--sparsity", "0.5"], "the masks are found already, so --sparsity means nothing here"),
        (["--scoring-precision", "bf16"], "so --scoring-precision means nothing here"),
        (["--pretrain", "1"], "so --pretrain means nothing here"),
        (["--model", "nets_for_cli:other"], "does not match the model"),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(value),
)
def test_train_refuses_what_does_not_fit_its_masks(words, expected, command, tiny):
    assert command("prune", *FORCE, "-o", "mask").code == 0
    done = command("train", "--mask", "mask", *words, "--device", "cpu")
    assert done.code == 2
    assert expected in done.err
    assert done.err.count("\n") == 1


def test_masks_of_the_library_are_trained_once_it_is_said_on_what(command, tiny):
    sys.path.insert(0, str(tiny))
    import nets_for_cli

    bb.prune(nets_for_cli.tiny(), None, 0.5, "random", on_collapse="ignore").save("mask")
    done = command("train", "--mask", "mask", "--epochs", "0")
    assert done == (2, "", "error: mask does not say what it was made for; name --model and --data\n")
    done = command("train", "--mask", "mask", "--epochs", "0", *TINY)
    assert done.code == 0
    assert "297 of 594 prunable weights are left: sparsity 50.000%" in done.out
    assert "found for other initial weights" in done.out


def test_masks_found_after_pretraining_are_not_trained_by_mistake(command, tiny):
    assert command("prune", *TINY, "--method", "magnitude", "--pretrain", "1", "-o", "mask").code == 0
    done = command("train", "--mask", "mask")
    assert done == (
        2, "", "error: mask was found after pretraining; barebones run repeats that and goes on to train\n",
    )  # fmt: skip


def test_train_without_masks_trains_the_dense_network(command, tiny):
    done = command("train", *TINY, "--epochs", "1")
    assert done.code == 0
    assert "594 of 594 prunable weights are left: sparsity 0.000%" in done.out
    (result,) = (json.loads(p.read_text()) for p in tiny.rglob("result.json"))
    assert result["experiment"]["method"] == "dense"
    assert result["sparsity"] == 0


def test_run_tells_its_progress_and_its_end_and_does_nothing_twice(command, tiny):
    first = command("run", *FORCE)
    assert first.code == 0
    assert "prune: round 3 of 3, 119 weights left" in first.err
    assert "train: epoch 1 of 1, loss" in first.err
    assert "Best validation accuracy" in first.out
    (folder,) = (tiny / "runs").iterdir()
    assert f"Everything is in runs/{folder.name}" in first.out
    second = command("run", *FORCE)
    assert second == (0, first.out, "")


def test_inspect_shows_a_mask_file(command, tiny):
    command("prune", *FORCE, "-o", "mask")
    masks, about = load_masks("mask")
    shown = command("inspect", "mask")
    assert (shown.code, shown.err) == (0, "")
    for text in ("force", "0.weight", "4.weight", "6×1×3×3", "10×54", "119", "594"):
        assert text in shown.out
    plain = command("inspect", "mask", "--json")
    assert (plain.code, plain.err) == (0, "")
    found = json.loads(plain.out)
    assert found["about"] == about
    assert found["layers"] == {
        name: {"shape": list(mask.shape), "total": mask.numel(), "kept": int(mask.sum())}
        for name, mask in masks.items()
    }


def test_inspect_shows_an_empty_layer_and_masks_without_a_history(command):
    save_masks({"a": torch.zeros(2, 3, dtype=torch.bool), "b": torch.ones((), dtype=torch.bool)}, "mask")
    shown = command("inspect", "mask")
    assert shown.code == 0
    assert "0.0000%" in shown.out
    assert "100.0000%" in shown.out
    assert json.loads(command("inspect", "mask", "--json").out)["layers"]["a"]["kept"] == 0


def test_inspect_shows_a_run_at_every_stage(command, tiny):
    command("prune", *FORCE)
    (folder,) = (tiny / "runs").iterdir()
    before = json.loads(command("inspect", folder, "--json").out)
    assert (before["state"], before["result"]) == ("pruned", None)
    assert Experiment.from_dict(before["experiment"]).folder == folder.name
    assert "State: pruned." in command("inspect", folder).out
    command("run", *FORCE)
    after = json.loads(command("inspect", folder, "--json").out)
    assert after["state"] == "finished"
    assert after["result"] == json.loads((folder / "result.json").read_text())
    shown = command("inspect", folder)
    assert "State: finished." in shown.out
    assert "Test accuracy after the last epoch" in shown.out
    assert "nets_for_cli:tiny" in shown.out


@pytest.mark.parametrize("name", ["experiment.json", "result.json"])
def test_inspect_names_a_damaged_file_of_a_run(name, command, tmp_path):
    (tmp_path / "experiment.json").write_text("{}")
    (tmp_path / name).write_text("{")
    done = command("inspect", tmp_path)
    assert done.code == 2
    assert name in done.err
    assert done.err.count("\n") == 1


def test_inspect_of_a_truncated_mask_file_is_one_line(command):
    save_masks({"w": torch.eye(20) > 0}, "mask")
    Path("mask").write_bytes(Path("mask").read_bytes()[:-3])
    done = command("inspect", "mask")
    assert done.code == 2
    assert done.err.startswith("error: mask is truncated or damaged")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(("stopped", "code"), [(False, 0), (True, 143)])
def test_the_demo_takes_seeds_and_epochs_and_can_be_stopped(stopped, code, command, monkeypatch):
    calls = []

    def run(console, seeds, epochs, stopping):
        calls.append((seeds, epochs))
        if stopped:
            signal.raise_signal(signal.SIGTERM)
            assert stopping()

    monkeypatch.setattr(demo, "demo", run)
    assert command("demo", "--seeds", "2", "--epochs", "5").code == code
    assert command("demo").code == code
    assert calls == [(2, 5), (3, demo.EPOCHS)]
