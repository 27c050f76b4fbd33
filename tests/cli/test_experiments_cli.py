"""The lab's command line: it explains itself, tries nothing in a dry run, and has one line for every mistake."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import typer

import barebones as bb
from barebones.cli import app as cli
from barebones.cli import stopping as signals
from barebones.data import DATA
from barebones.files.masks import load_masks, save_masks
from barebones.lab import run as lab
from barebones.lab.experiment import Experiment
from barebones.lab.network import cached_data

NETWORK = """
from torch import nn

def tiny():
    return nn.Sequential(nn.Conv2d(1, 6, 3, 2, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(),
                         nn.Linear(54, 10))

def other():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))

number = 3

def list_of_one():
    return [nn.Linear(1, 1)]

def for_larger_images():
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))

def for_fewer_classes():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
"""
TINY = ["--model", "nets_for_cli:tiny", "--data", "digits", "--batch", "256", "--device", "cpu"]
FORCE = [*TINY, "--method", "force", "--sparsity", "0.8", "--rounds", "3", "--epochs", "1"]


class Done(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Done]


@pytest.fixture
def command(monkeypatch, capsys, tmp_path) -> Command:
    """`barebones` with these words, in an empty folder; its exit code and what it said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("BAREBONES_DATA", str(tmp_path / "no data here"))

    def call(*words: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["barebones", *map(str, words)])
        with pytest.raises(SystemExit) as leaving:
            cli.main()
        return Done(leaving.value.code or 0, *capsys.readouterr())

    return call


@pytest.fixture
def tiny(command, tmp_path) -> Path:
    """A folder with a network of the user's own, which is where the command runs."""
    (tmp_path / "nets_for_cli.py").write_text(NETWORK)
    return tmp_path


def commands() -> dict[str, Any]:
    group = typer.main.get_command(cli.app)
    found = {}
    for name, one in group.commands.items():
        found |= {f"{name} {inner}": it for inner, it in one.commands.items()} if hasattr(one, "commands") else {}
        found[name] = one
    return found


def contents(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if "__pycache__" not in p.parts}


# help


@pytest.mark.parametrize("name", ["", *commands()])
def test_every_command_explains_itself(name, command):
    done = command(*name.split(), "--help")
    assert done.code == 0
    assert done.err == ""
    assert "Usage" in done.out
    if name:
        own = commands()[name]
        assert own.help is not None
        assert own.help.splitlines()[0] in done.out
        for option in own.params:
            assert option.name == "help" or option.help, f"{name} {option.name} has no help"
            assert option.param_type_name == "argument" or option.opts[0] in done.out
    else:
        assert {"prune", "train", "run", "sweep", "inspect"} <= set(commands())
        assert all(word in done.out for word in ("prune", "train", "run", "sweep", "inspect", "--debug", "--version"))


@pytest.mark.parametrize("name", ["prune", "train", "run"])
def test_every_field_of_an_experiment_is_an_option(name):
    options = {option.name: option for option in commands()[name].params}
    for field in fields(Experiment):
        if field.name != "mask":
            assert options[field.name].help == field.metadata["help"]
            assert options[field.name].opts == ["--" + field.name.replace("_", "-")]


def test_nothing_at_all_shows_the_help(command):
    done = command()
    assert "Usage" in done.out + done.err
    assert "prune" in done.out + done.err


def test_the_shell_completes():
    script = Path(sys.executable).with_name("barebones")
    if not script.exists():
        pytest.skip("the command is not installed beside this Python")
    code = f"{script} --show-completion; echo code $?"
    shown = subprocess.run(["bash", "-c", code], capture_output=True, text=True, env=os.environ)
    assert "complete -o default -F _barebones_completion barebones" in shown.stdout, shown.stderr
    assert shown.stdout.endswith("code 0\n")
    environment = {**os.environ, "_BAREBONES_COMPLETE": "complete_bash", "COMP_CWORD": "2"}
    done = subprocess.run(
        [script], env={**environment, "COMP_WORDS": "barebones run --spar"}, capture_output=True, text=True
    )
    assert done.stdout.split() == ["--sparsity"], done.stderr


# dry runs


@pytest.fixture
def no_data(monkeypatch) -> None:
    """Whoever reads data fails."""

    def refuse(request):
        raise AssertionError("a dry run reads data")

    cached_data.cache_clear()
    for name in DATA:
        monkeypatch.setitem(DATA, name, replace(DATA[name], load=refuse))


@pytest.mark.usefixtures("no_data")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", *FORCE], ["540 + 54", "Pruning: 3 rounds of 1 batches of 256", "Training: 1 epochs on cpu"]),
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
        if text == "540 + 54":
            assert "594 prunable weights; 119 would be left" in done.out
        else:
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


# mistakes


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", *TINY, "--method", "forse"], "method 'forse' is unknown; did you mean 'force'?"),
        (["run", *TINY, "--data", "mnist"], "data 'mnist' is unknown"),
        (["run", *TINY, "--sparsity", "99"], "did you mean 0.99?"),
        (["run", *TINY, "--sparsity", "1"], "no fraction to remove"),
        (["run", *TINY, "--sparsity", "nan"], "no fraction to remove"),
        (["run", *TINY, "--sparsity", "0.999999"], "leaves none of the 594 prunable weights"),
        (["run", *TINY, "--method", "snip", "--rounds", "5"], "snip is one round by definition"),
        (["run", *TINY, "--method", "dense", "--rounds", "5"], "dense prunes nothing"),
        (["run", *TINY, "--method", "file"], "barebones train --mask FILE"),
        (["run", *TINY, "--rewind"], "--pretrain"),
        (["run", *TINY, "--lr", "-1"], "lr -1.0 must be 0 or more"),
        (["run", *TINY, "--epochs", "-1"], "epochs -1 is too few"),
        (["run", *TINY, "--batch", "1"], "batch 1 is too few"),
        (["run", *TINY, "--batch", "2000"], "2000"),
        (["run", *TINY, "--revive-until", "2"], "revive_until"),
        (["run", *TINY, "--at-least", "1000", "--rounds", "1"], "at_least=1000 asks for"),
        (["run", *TINY, "--schedule", "sudden"], "schedule 'sudden' is unknown"),
        (["run", *TINY, "--init", "zeros"], "init 'zeros' is unknown"),
        (["run", *TINY, "--precision", "fp8"], "precision 'fp8' is unknown"),
        (["run", *TINY, "--device", "abacus"], "device 'abacus' is unknown; choose cpu, cuda, cuda:N or auto"),
        (["run", *TINY, "--device", "mps"], "device 'mps' is unknown"),
        (["run", "--data", "digits", "--model", "small-vgx"], "did you mean 'small-vgg'"),
        (["run", "--data", "digits", "--model", "vgg19"], "too small for this network"),
        (["run", "--data", "digits", "--model", "nowhere:net"], "the model nowhere:net cannot be imported"),
        (["run", "--data", "digits", "--model", "nets_for_cli:tinny"], "did you mean 'tiny'"),
        (["run", "--data", "digits", "--model", "nets_for_cli:number"], "name a function or a class"),
        (["run", "--data", "digits", "--model", "nets_for_cli:list_of_one"], "must return an nn.Module"),
        (["run", "--model", "vgg19", "--data", "cifar10", "--data-root", "nowhere"], "nowhere"),
        (["prune", *TINY, "--method", "dense"], "method dense prunes nothing"),
        (["prune", *FORCE, "-o", "no/where/mask"], "there is no folder no/where"),
        (["prune", *FORCE, "-o", "."], "folder"),
        (["train", *TINY, "--method", "force"], "--method means nothing here; use barebones run"),
        (["train", *TINY, "--rounds", "3"], "rounds"),
        (["train", *TINY, "--sparsity", "0.5"], "sparsity"),
        (["train", "--mask", "nowhere"], "nowhere"),
        (["train", "--mask", "nets_for_cli.py"], "nets_for_cli.py is not a safetensors file"),
        (["train", "--mask", "."], "folder"),
        (["inspect", "nowhere"], "there is no nowhere"),
        (["inspect", "nets_for_cli.py"], "nets_for_cli.py is not a safetensors file"),
        (["inspect", "."], "is not the folder of a run: it has no experiment.json"),
        (["sweep", "smok"], "smok"),
        (["sweep", "nowhere.toml"], "nowhere.toml"),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(w for w in value if w not in TINY),
)
def test_a_mistake_is_one_line_and_code_2(words, expected, command, tiny):
    done = command(*words)
    assert done.code == 2, done
    assert done.err.startswith("error: ")
    assert expected in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_a_mistake(command, tiny):
    for device in ("cuda", "cuda:3"):
        assert command("run", *FORCE, "--device", device) == (
            2, "", "error: there is no CUDA device here; use --device cpu\n",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "--rounds", "many"], "Invalid value for '--rounds'"),
        (["run", "--sparsity", "high"], "Invalid value for '--sparsity'"),
        (["run", "--sparsty", "0.5"], "No such option"),
        (["run", "--save-every", "-1"], "save-every"),
        (["run", "surplus"], "unexpected extra argument"),
        (["sweep"], "Missing argument"),
        (["sweep", "smoke", "--jobs", "0"], "jobs"),
        (["inspect"], "Missing argument"),
        (["trim"], "No such command"),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(value),
)
def test_words_that_are_no_options_get_the_usage_and_code_2(words, expected, command):
    done = command(*words)
    assert done.code == 2
    assert expected in done.err
    assert "Traceback" not in done.err
    assert "Usage" in done.err


def test_debug_shows_the_whole_error(monkeypatch, command):
    monkeypatch.setattr(sys, "argv", ["barebones", "--debug", "inspect", "nowhere"])
    with pytest.raises(ValueError, match="there is no nowhere"):
        cli.main()


@pytest.mark.parametrize("file", ["runs", "folder"])
def test_a_file_in_the_way_is_one_line(file, command, tiny):
    folder = Path("runs") / command("run", *FORCE, "--dry-run").out.split("runs/")[1].split(":")[0]
    path = Path("runs") if file == "runs" else folder
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    done = command("run", *FORCE)
    assert done.code == 2
    assert "cannot make the run's folder" in done.err
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


@pytest.mark.parametrize("name", ["[red]here", "[/]", "[bold"])
def test_brackets_in_a_path_are_shown_as_they_are(name, command, capsys):
    assert command("inspect", name) == (2, "", f"error: there is no {name}\n")
    with pytest.raises(typer.Exit), signals.stoppable(f"saved in {name}"):
        raise lab.Stopped
    assert capsys.readouterr().err == f"saved in {name}\n"


@pytest.mark.parametrize("name", ["[red]here", "[/]", "[bold"])
def test_brackets_in_the_path_of_a_mask_file_are_shown_as_they_are(name, command):
    path = Path(name + ".mask")
    path.parent.mkdir(exist_ok=True)
    save_masks({"w": torch.eye(2) > 0}, path, made="by [red]me[/]")
    done = command("inspect", path)
    assert done.code == 0
    assert f"{name}.mask" in done.out
    assert "by [red]me[/]" in done.out


def test_the_first_signal_asks_and_the_second_insists(capfd):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with signals.stoppable("hint") as stopping:
        assert not stopping()
        signal.raise_signal(signal.SIGTERM)
        assert stopping()
        assert stopping.code == 143
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert "saving, then stopping; press Ctrl-C again to stop at once" in capfd.readouterr().err
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_signal_is_answered_without_what_it_may_have_interrupted(capfd, monkeypatch):
    # a signal comes also while rich is printing, or importing half of itself: the answer may not need it
    monkeypatch.setattr(
        signals, "Console", lambda *args, **options: pytest.fail("rich is used within a signal handler")
    )
    stopping = signals.Stopping()
    stopping.handle(signal.SIGTERM, None)
    assert stopping.code == 143
    assert "again to stop at once" in capfd.readouterr().err


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
    assert f"All of it is in runs/{folder.name}" in first.out
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
    assert done.err == "error: mask is truncated or damaged; its checksum does not match its content\n"
