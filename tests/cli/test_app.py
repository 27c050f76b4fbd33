"""The command line as a whole: help, completion, signals, and one line for every mistake."""

import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from barebones import __version__
from barebones.cli import app as cli
from barebones.cli import stopping as signals
from barebones.files.masks import save_masks
from barebones.lab.experiment import Experiment
from barebones.lab.run import Stopped

TINY = ["--model", "nets_for_cli:tiny", "--data", "digits", "--batch", "256", "--device", "cpu"]
FORCE = [*TINY, "--method", "force", "--sparsity", "0.8", "--rounds", "3", "--epochs", "1"]


def commands() -> dict[str, Any]:
    """Return every command, also those of a group, by its words."""
    found = {}
    for name, one in typer.main.get_command(cli.app).commands.items():
        found |= {f"{name} {inner}": it for inner, it in one.commands.items()} if hasattr(one, "commands") else {}
        found[name] = one
    return found


# help


@pytest.mark.parametrize("name", ["", *commands()])
def test_every_command_explains_itself(name, command):
    done = command(*name.split(), "--help")
    assert (done.code, done.err) == (0, "")
    assert "Usage" in done.out
    if name:
        subject = commands()[name]
        assert subject.help.splitlines()[0] in done.out
        for option in subject.params:
            assert option.name == "help" or option.help, f"{name} {option.name} has no help"
            assert option.param_type_name == "argument" or option.opts[0] in done.out
    else:
        assert all(word in done.out for word in ("--debug", "--version", *(name.split()[0] for name in commands())))


@pytest.mark.parametrize("name", ["prune", "train", "run"])
def test_every_field_of_an_experiment_is_an_option(name):
    options = {option.name: option for option in commands()[name].params}
    for field in fields(Experiment):
        if field.name != "mask":
            assert options[field.name].help == field.metadata["help"]
            assert options[field.name].opts == ["--" + field.name.replace("_", "-")]


def test_nothing_at_all_shows_the_help_and_version_shows_the_version(command):
    done = command()
    assert "Usage" in done.out + done.err
    assert "prune" in done.out + done.err
    assert command("--version") == (0, f"barebones {__version__}\n", "")


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("run --spar", ["--sparsity"]),
        ("run --method iter", ["iter-snip", "iter-grasp"]),
        ("run --method de", ["dense"]),
        ("run --model small", ["small-vgg", "small-resnet"]),
        ("prune --data tiny", ["tiny-imagenet"]),
        ("run --schedule lin", ["linear"]),
        ("run --init xav", ["xavier"]),
    ],
)
def test_the_shell_completes(typed, expected, command, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__package__", "", raising=False)  # as for an installed command
    monkeypatch.setenv("_BAREBONES_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"barebones {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))
    assert command().out.split() == expected


def test_the_script_for_completion_is_of_this_command(command, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__package__", "", raising=False)
    monkeypatch.setenv("_BAREBONES_COMPLETE", "source_bash")
    assert "complete -o default -F _barebones_completion barebones" in command().out


# mistakes


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", *TINY, "--method", "forse"], "there is no method 'forse'; did you mean 'force'?"),
        (["run", *TINY, "--data", "mnist"], "there is no data set 'mnist'"),
        (["run", *TINY, "--sparsity", "99"], "did you mean 0.99?"),
        (["run", *TINY, "--sparsity", "1"], "not a fraction of weights to remove"),
        (["run", *TINY, "--sparsity", "nan"], "not a fraction of weights to remove"),
        (["run", *TINY, "--sparsity", "0.999999"], "leaves none of the 594 prunable weights"),
        (["run", *TINY, "--method", "snip", "--rounds", "5"], "snip is one round by definition"),
        (["run", *TINY, "--method", "dense", "--rounds", "5"], "dense prunes nothing"),
        (["run", *TINY, "--method", "file"], "barebones train --mask FILE"),
        (["run", *TINY, "--rewind"], "--pretrain"),
        (["run", *TINY, "--lr", "-1"], "lr -1.0 must be 0 or more"),
        (["run", *TINY, "--epochs", "-1"], "epochs -1 is too small"),
        (["run", *TINY, "--batch", "1"], "batch 1 is too small"),
        (["run", *TINY, "--batch", "2000"], "2000"),
        (["run", *TINY, "--revive-until", "2"], "revive_until"),
        (["run", *TINY, "--at-least", "1000", "--rounds", "1"], "at_least=1000 asks for"),
        (["run", *TINY, "--schedule", "sudden"], "there is no schedule 'sudden'"),
        (["run", *TINY, "--init", "zeros"], "there is no initialization 'zeros'"),
        (["run", *TINY, "--precision", "fp8"], "there is no precision 'fp8'"),
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
@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
def test_a_gpu_that_is_not_there_is_a_mistake(device, command):
    done = command("run", *FORCE, "--device", device)
    assert done == (2, "", "error: there is no CUDA device here; use --device cpu\n")


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
        (["bench", "speed", "x", "--repeats", "0"], "repeats"),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(value),
)
def test_words_that_are_no_options_get_the_usage_and_code_2(words, expected, command):
    done = command(*words)
    assert done.code == 2
    assert expected in done.err
    assert "Traceback" not in done.err
    assert "Usage" in done.err


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "stopped"),
        (torch.OutOfMemoryError("CUDA out of memory"), 2, "error: the device has too little memory for this; use"),
        (FileExistsError(17, "File exists", "here"), 2, "error: File exists: here"),
        (OSError(28, "No space left on device"), 2, "error: No space left on device"),
        (ImportError("pip install it"), 2, "error: pip install it"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_what_a_command_raises_is_one_line(error, code, line, command, monkeypatch):
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    done = command("run")
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith(line)
    assert done.err.count("\n") == 1


def test_debug_shows_the_whole_error(monkeypatch, command):
    monkeypatch.setattr(sys, "argv", ["barebones", "--debug", "inspect", "nowhere"])
    with pytest.raises(ValueError, match="there is no nowhere"):
        cli.main()


def test_the_module_is_the_command(tmp_path):
    words = [sys.executable, "-m", "barebones", "inspect", "nowhere"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "error: there is no nowhere\n")


# brackets and signals


@pytest.mark.parametrize("name", ["[red]here", "[/]", "[bold"])
def test_brackets_in_a_path_are_shown_as_they_are(name, command, capsys):
    assert command("inspect", name) == (2, "", f"error: there is no {name}\n")
    with pytest.raises(typer.Exit), signals.stoppable(f"saved in {name}"):
        raise Stopped
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
