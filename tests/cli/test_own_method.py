"""A method of one's own, from the page about it: pruning imports its code, and nothing else does."""

import base64
import gzip
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

import barebones as bb
from barebones.lab.experiment import styles
from barebones.lab.run.folder import recorded

PAGE = (Path(__file__).parents[2] / "docs" / "your-method.md").read_text(encoding="utf-8")
(CODE,) = re.findall(r"```python\n# taylor.py\n(.*?)```", PAGE, re.DOTALL)
LINES = [line.split()[1:] for line in PAGE.splitlines() if line.startswith("barebones run")]
NAME, LABEL, COLOR = "taylor.py:iterated", "Taylor²", "#12AB34"
QUICK = ("--sparsity", "0.9", "--epochs", "0", "--device", "cpu")


@pytest.fixture
def file(command, tmp_path, monkeypatch) -> Path:
    """Write the page's file into the working folder; it leaves a trace there when it is imported."""
    monkeypatch.setattr(styles, "LOOKS", dict(styles.LOOKS))
    for name in ("taylor.py:squared", NAME, "taylor:iterated"):
        monkeypatch.setitem(bb.METHODS, name, bb.METHODS["random"])  # so that it is removed again
    (path := tmp_path / "taylor.py").write_text(f"open('imported', 'w').close()\n{CODE}", encoding="utf-8")
    forget()
    return path


@pytest.fixture
def run(file, command) -> Path:
    """Return the folder of a finished run of the method, whose code is gone."""
    assert command(*LINES[1], *QUICK, "--rounds", "1").code == 0
    (folder,) = Path("runs").iterdir()
    shutil.copy(folder / "mask.safetensors", "mask")
    file.unlink()
    forget()
    return folder


def reported() -> dict:
    """Return the content of the page report.html."""
    packed = Path("report.html").read_text(encoding="utf-8").split('id="data">')[1].split("</script>")[0]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def forget() -> None:
    """Make the method unknown to this process."""
    for name in [name for name in bb.METHODS if "taylor.py:" in name or "taylor:" in name]:
        del bb.METHODS[name]
    for name in [name for name in sys.modules if name == "taylor" or name.startswith("barebones_file_taylor")]:
        del sys.modules[name]
    styles.LOOKS.pop(NAME, None)
    Path("imported").unlink(missing_ok=True)


def test_the_commands_of_the_page_prune_by_the_file_of_the_page(file, command):
    assert [line[2] for line in LINES] == ["taylor.py:squared", NAME]
    for line in (*LINES, [word.replace(".py", "") for word in LINES[1]]):
        done = command(*line, *QUICK)
        assert done.code == 0, done.err
    found = {settings["method"]: settings["rounds"] for settings, _ in map(recorded, Path("runs").iterdir())}
    assert found == {"taylor.py:squared": 5, NAME: 60, "taylor:iterated": 60}  # 60: the protocol of digits


COMMANDS = [
    "inspect RUN", "inspect mask", "shrink RUN", "shrink mask", "export RUN -o out.safetensors",
    "export RUN --to-hub-folder hub", "export mask --to-hub-folder hub --replace",
    "train --mask mask --epochs 0 --device cpu", "train --mask RUN/mask.safetensors --dry-run",
]  # fmt: skip


def test_a_finished_run_needs_no_code(run, command):
    for words in COMMANDS:
        done = command(*words.replace("RUN", str(run)).split())
        assert done.code == 0, (words, done.err)


def test_an_edited_method_is_another_one(file, command, mistake):
    words = (*LINES[1], *QUICK, "--rounds", "1")
    grid = f"model = 'small-vgg'\ndata = 'digits'\nmethod = '{NAME}'\nsparsity = 0.9\nrounds = 1\nepochs = 0\n"
    Path("grid.toml").write_text(grid)
    assert command(*words).code == 0
    assert command(*words).code == 0  # nothing has changed
    file.write_text(CODE.replace("square()", "abs()"), encoding="utf-8")
    forget()
    for each in (words, ("sweep", "grid.toml", "--method", NAME, "--device", "cpu")):
        mistake(f"{NAME} has changed since", *each)
    assert command(*words, "--overwrite").code == 0
    assert command(*words).code == 0


def test_it_looks_the_same_everywhere_without_its_code(run, command):
    command("train", "--mask", "mask", "--epochs", "0", "--device", "cpu", "--runs", "trained")
    for folder in ("runs", "trained"):
        styles.LOOKS.pop(NAME)
        command("figure", "accuracy", "--from", folder)
        drawing = Path("figures/accuracy.svg").read_text(encoding="utf-8")
        assert f"<!-- {LABEL}" in drawing
        assert COLOR.lower() in drawing
    command("report", "runs", "-o", "report.html")
    looks = reported()["looks"]
    assert (looks[NAME]["label"], looks[NAME]["light"], looks[NAME]["glyph"][0]) == (LABEL, COLOR, "★")
    command("export", run, "--to-hub-folder", "hub")
    card = Path("hub/README.md").read_text(encoding="utf-8")
    assert f"pruned at initialization ({LABEL})" in card
    assert f"--method {NAME} --sparsity 0.9" in card


@pytest.mark.parametrize("stored", [None, [], {"color": "red"}, {"marker": "</script>"}, {"rounds": 0}, {"x": 1}])
def test_what_a_file_says_about_looks_is_checked(stored, monkeypatch):
    monkeypatch.setattr(styles, "LOOKS", dict(styles.LOOKS))
    styles.remember("theirs", stored)
    assert styles.look("theirs") == styles.Look("theirs", "#888888", "o")


def test_the_workers_of_a_sweep_import_it(file, command, forkserver):
    Path("grid.toml").write_text(f"model = 'small-vgg'\ndata = 'digits'\nmethod = '{NAME}'\nrounds = 3\nepochs = 0\n")
    done = command("sweep", "grid.toml", "--method", NAME, "--device", "cpu", "--jobs", "1")
    assert done.code == 0, done
    assert "1 done" in done.out
    (stored,) = Path("runs").glob("*/experiment.json")  # a worker that has not pruned yet knows the method's look
    assert json.loads(stored.read_text())["look"] == {"label": LABEL, "color": COLOR, "marker": "*"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("taylor.py:sqared", "taylor.py has no 'sqared'; did you mean 'squared'?"),
        ("taylor.py:bb", "taylor.py:bb is not a function; name one that takes a probe and returns scores"),
        ("tailor.py:squared", "there is no file tailor.py for the method tailor.py:squared"),
        ("dens", "there is no method 'dens'; did you mean 'dense'?"),
    ],
)
def test_a_wrong_name_is_one_line(name, expected, file, mistake):
    mistake(expected, "run", "--method", name, "--data", "digits", "--model", "small-vgg", *QUICK)
    assert not Path("runs").exists()
