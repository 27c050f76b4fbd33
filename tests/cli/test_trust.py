"""Code that a file names runs only if the user names it, too, or trusts the file."""

import shutil
import sys
from pathlib import Path

import pytest

from barebones.lab.experiment import recipes
from barebones.lab.run import loading

CODE = """
from pathlib import Path
from torch import nn

Path("imported").touch()

def net(classes):
    Path("called").touch()
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, classes))
"""
NAME = "code_of_a_stranger:net"
WAYS = f"asks to import and run {NAME}; if you trust that code, pass --model {NAME}, or --trust to run whatever"


@pytest.fixture
def run(command, tmp_path) -> Path:
    """Return the folder of a finished run whose network is a stranger's code, which leaves a trace when it runs."""
    (tmp_path / "code_of_a_stranger.py").write_text(CODE)
    words = ["--model", NAME, "--data", "digits", "--method", "random", "--sparsity", "0.5", "--epochs", "0"]
    done = command("run", *words, "--device", "cpu", "--runs", "theirs")
    assert done.code == 0, done.err
    (folder,) = (path for path in Path("theirs").iterdir() if path.is_dir())
    shutil.copy(folder / "mask.safetensors", "mask")
    Path("grid.toml").write_text(f"model = ['small-vgg', '{NAME}']\ndata = 'digits'\nmethod = 'random'\nepochs = 0\n")
    forget()
    return folder


def forget() -> None:
    """Make the stranger's code unknown to this process again, and remove its traces."""
    sys.modules.pop("code_of_a_stranger", None)
    sys.path[:] = [folder for folder in sys.path if folder != str(Path.cwd())]
    for trace in ("imported", "called"):
        Path(trace).unlink(missing_ok=True)


def ran() -> bool:
    return Path("imported").exists() or Path("called").exists()


COMMANDS = [
    "shrink mask", "shrink RUN --json", "export mask -o out.safetensors", "export RUN -o out.safetensors",
    "train --mask mask --dry-run --device cpu", "train --mask mask --epochs 0 --device cpu",
    "sweep grid.toml --dry-run --device cpu",
]  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_imports_nothing_that_only_a_file_names(words, run, command, mistake):
    words = words.replace("RUN", str(run)).split()
    for more in ([], ["--model", "small-vgg"] if words[0] == "sweep" else []):
        mistake(WAYS, *words, *more)
        assert not ran()
        assert str(Path.cwd()) not in sys.path  # nor could any other import find a file beside the stranger's
    for way in (["--trust"], ["--model", NAME]):
        done = command(*words, *way)
        assert done.code == 0, done.err
        assert ran() == (words[0] != "sweep")  # whose dry run builds no network
        forget()
        shutil.rmtree("runs", ignore_errors=True)


@pytest.mark.parametrize(
    "words", ["inspect mask", "inspect RUN", "report theirs", "report RUN", "figure layers --from RUN"]
)
def test_commands_that_only_show_files_run_no_code(words, run, command):
    command(*words.replace("RUN", str(run)).split())
    assert not ran()
    assert "code_of_a_stranger" not in sys.modules


def test_another_network_than_that_of_the_run_is_refused(run, mistake):
    mistake(f"{run} is a run of {NAME} on digits", "shrink", run, "--model", "small-vgg")
    assert not ran()


def test_the_library_asks_too(run):
    for source in (run, Path("mask")):
        with pytest.raises(ValueError, match=WAYS):
            loading.load(source)
    for setting, ours in {"model": "vgg19", "data": "digits", "method": "snip"}.items():
        Path("grid.toml").write_text(f"{setting} = ['{ours}', '{NAME}']\n")
        for named in ([], ["code_of_a_stranger:other"]):
            with pytest.raises(ValueError, match=WAYS.replace("--model", f"--{setting}")):
                recipes.experiments("grid.toml", named)
