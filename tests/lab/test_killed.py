"""Runs in processes that are killed or signalled at any moment: they resume and end the same."""

import os
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from lab_runs import assert_same_run

from barebones.lab.run.metrics import read

pytestmark = pytest.mark.slow  # test_stages.py stops runs at every step without processes

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
    end = time.monotonic() + 90
    while not any(line["stage"] == stage for path in runs.glob("*/metrics.jsonl") for line in read(path)):
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)
    os.kill(process.pid, number)
    ending, printed = code(process), (tmp_path / "printed").read_text()
    assert ending == expected, printed
    (folder,) = runs.iterdir()
    assert "Traceback" not in printed
    assert printed.endswith(f"stopped and saved in {folder}; the same command resumes from there\n")
    assert (folder / f"{file}.safetensors").exists()
    assert not (folder / "result.json").exists()
