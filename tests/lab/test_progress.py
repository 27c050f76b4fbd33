"""Progress: a run says at once where it is, moves within epochs, and is never silent for long."""

import io
import time

import pytest
from lab_runs import interrupted, until
from rich.console import Console

from barebones.lab.run import heartbeat
from barebones.lab.run import run as lab
from barebones.lab.run.folder import progress
from barebones.lab.run.progress import watching
from barebones.lab.run.run import RunOptions, run


@pytest.fixture(scope="module")
def reported(short, tmp_path_factory) -> list[dict]:
    """All lines of a run of four rounds and two epochs of eleven steps."""
    lines: list[dict] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lab, "TICK", 0.0)
        run(short, RunOptions(tmp_path_factory.mktemp("runs")), lines.append)
    return lines


def test_a_stage_is_told_at_once_and_moves_within_epochs(reported):
    first, *_ = [line for line in reported if line["stage"] == "train"]
    assert first == {"stage": "train", "epoch": 1, "epochs": 2, "part": 0.0, "resumed": False}
    assert reported[0] == {"stage": "prune", "round": 1, "rounds": 4, "part": 0.0, "resumed": False}
    done = [line["epoch"] - 1 + line.get("part", 1.0) for line in reported if line["stage"] == "train"]
    assert done == sorted(done)
    assert len(set(done)) >= 22


def test_progress_within_an_epoch_is_told_seldom_enough(short, options, monkeypatch):
    monkeypatch.setattr(lab, "TICK", 1e9)
    lines: list[dict] = []
    run(short, options, lines.append)
    assert sum("part" in line for line in lines) == 2  # the beginnings of two stages


def shown(lines: list[dict], terminal: bool = False) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    with watching(console) as watch:
        for line in lines:
            watch(line)
    return console.file.getvalue()


def test_without_a_terminal_there_is_a_line_for_each_beginning_round_and_epoch(reported):
    text = shown(reported).splitlines()
    assert text[0] == "prune: round 1 of 4 begins"
    assert [line for line in text if line.endswith("begins")][1] == "train: epoch 1 of 2 begins"
    assert [line.partition(",")[0] for line in text if "loss" in line] == ["train: epoch 1 of 2", "train: epoch 2 of 2"]
    assert len(text) == 8


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(
    ("stop", "reached", "place"),
    [
        (2, "prune: 3 of 4 rounds", "prune: resuming at round 4 of 4"),
        (17, "pruned; trained 1 of 2 epochs", "resuming at epoch 2 of 2"),
    ],
)
def test_a_resumed_run_says_where(short, options, terminal, stop, reached, place):
    interrupted(short, options, stop)
    assert progress(options.folder(short)) == reached
    lines: list[dict] = []
    run(short, options, lines.append)
    assert place in (text := shown(lines, terminal))
    assert "train: epoch 2 of 2" in text


def test_silence_is_broken(monkeypatch):
    monkeypatch.setattr(heartbeat, "QUIET", 0.0)
    console = Console(file=io.StringIO(), width=100)
    with watching(console) as watch:
        until(lambda: "reading the data and building the network, 0:00 so far" in console.file.getvalue())
        watch({"stage": "train", "epoch": 3, "epochs": 40, "part": 0.25})
        until(lambda: "train: epoch 3 of 40, 25% of it, 0:00 so far" in console.file.getvalue())
    before = console.file.getvalue()
    time.sleep(0.05)
    assert console.file.getvalue() == before  # nothing comes after the end


@pytest.mark.parametrize("terminal", [False, True])
def test_a_warning_is_shown_as_it_comes(terminal):
    line = {"stage": "prune", "warning": "[b] keeps nothing.", "short": "1 of 2 layers empty"}
    assert "warning: [b] keeps nothing." in shown([line], terminal)
