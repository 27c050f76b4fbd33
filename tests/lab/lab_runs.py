"""What several tests of the lab do with runs: interrupt them, and compare their folders."""

import io
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from barebones.cli.app import main
from barebones.files.masks import load_masks
from barebones.files.weights import load_weights
from barebones.lab.experiment.experiment import Experiment
from barebones.lab.run.folder import finished, write_json
from barebones.lab.run.metrics import read
from barebones.lab.run.run import RunOptions, Stopped, run
from barebones.lab.sweep.sweep import SweepResult, sweep

ALWAYS = {"experiment.json", "metrics.jsonl", "mask.safetensors", "weights.safetensors", "result.json"}
CLOCK = ("seconds", "elapsed", "images_per_second")
UNLIKE = {"made": None, "seconds": 0, "metrics": 0}  # what differs between runs because of the clock
NETWORK = """
import torch
from torch import nn

def tiny():
    return nn.Sequential(nn.Conv2d(1, 6, 3, 2, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.1),
                         nn.Conv2d(6, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6, 10))

def wide():
    return nn.Sequential(nn.Conv2d(1, 24, 3, 2, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
                         nn.Conv2d(24, 24, 3, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
                         nn.Flatten(), nn.Linear(24, 10))

def plain():
    return nn.Sequential(nn.Conv2d(1, 6, 3, 2), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.ReLU(),
                         nn.Flatten(), nn.Linear(8, 10))

def bare():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6, bias=False), nn.ReLU(), nn.Linear(6, 8, bias=False), nn.ReLU(),
                         nn.Linear(8, 10, bias=False))

class Hidden(nn.Module):
    def forward(self, x):
        with torch.inference_mode():
            x = x * 2
        return x.clone()

def opaque():
    return nn.Sequential(Hidden(), *tiny())
"""


def tiny(model: str = "tiny", **changes: Any) -> Experiment:
    """A short experiment with a network of the module above."""
    settings: dict[str, Any] = {"data": "digits", "method": "force", "sparsity": 0.7, "seed": 1}
    return Experiment(f"nets_for_runs:{model}", **settings | {"epochs": 2, "batch_size": 128} | changes).resolved()


def interrupted(experiment: Experiment, options: RunOptions, after: int) -> None:
    """Run until the run has asked `after` times whether to stop, and stop it."""
    counter = iter(range(100_000))
    with pytest.raises(Stopped):
        run(experiment, options, stopping=lambda: next(counter) >= after)


def command(argv: list[str], printed: Path, die: tuple[int, bool] | None = None) -> None:
    """Run `barebones`; with `die` its process kills itself before or after the n-th file that it puts in place."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # a sweep starts the fork server with Ctrl-C blocked
    for number in (1, 2):
        os.dup2(os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    count, after = die or (0, False)
    real = os.replace

    def replace(source, target):
        nonlocal count
        count -= 1
        if count == 0 and after:
            real(source, target)
        if count == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        real(source, target)

    os.replace = replace
    sys.argv = ["barebones", *argv]
    main()


def until(true: Callable[[], object], seconds: float = 90.0) -> None:
    """Wait for it."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)


def swept(experiments: Sequence[Experiment], options: RunOptions, **settings) -> tuple[SweepResult, str]:
    """Run a sweep; return its result and what it printed."""
    console = Console(file=io.StringIO(), width=500)
    result = sweep(experiments, options, console=console, **settings)
    return result, console.file.getvalue()


def counts(result: SweepResult) -> tuple[int, int, int, int]:
    return result.done, result.failed, result.stopped, result.skipped


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def tensors(path: Path) -> dict[str, Tensor]:
    return load_weights(path).state


def timeless(lines: list[dict]) -> list[dict]:
    return [{name: value for name, value in line.items() if name not in CLOCK} for line in lines]


def assert_same_run(expected: Path, other: Path) -> None:
    """Check that two run folders agree in all that does not depend on the clock."""
    a, b = (load_masks(folder / "mask.safetensors") for folder in (expected, other))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert {**a.about, **UNLIKE} == {**b.about, **UNLIKE}
    a, b = tensors(expected / "weights.safetensors"), tensors(other / "weights.safetensors")
    assert a.keys() == b.keys()
    assert not [name for name in a if a[name].dtype != b[name].dtype or not torch.equal(a[name], b[name])]
    assert timeless(read(expected / "metrics.jsonl")) == timeless(read(other / "metrics.jsonl"))
    assert {**finished(expected), **UNLIKE} == {**finished(other), **UNLIKE}
    assert {p.name for p in expected.iterdir()} == {p.name for p in other.iterdir()}


def stamps(folder: Path) -> dict[str, tuple[int, int, int]]:
    return {p.name: (s.st_ino, s.st_mtime_ns, s.st_size) for p in folder.iterdir() for s in [p.stat()]}


def made_up_result(experiment: Experiment, top1: float = 0.9, **changes) -> dict:
    """A result as a finished run writes it."""
    return {
        "experiment": experiment.to_dict(),
        "test": {"top1": top1, "top5": None, "loss": 0.3},
        "best_validation": {"epoch": 12, "validation": 0.92, "test": 0.89},
        "prunable": 1000, "kept": 100, "effective": 50, "sparsity": 0.9, "effective_sparsity": 0.95,
        "flops_dense": 2000, "flops_effective": 300, "shrunk": None, "disconnected_outputs": 0, "outputs": 10,
        "collapsed": [], "empty": [], "layers": 3, "plan": {"epochs": experiment.epochs},
        "found_for_these_weights": True, "seconds": {"pretrain": 0, "prune": 1.5, "train": 20.0},
        "weights": "0" * 16, "metrics": None, "environment": {},
    } | changes  # fmt: skip


def write_file(folder: Path, experiment: Experiment, name: str, content: dict) -> Path:
    """Write a JSON file of the experiment's run into a folder, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {"experiment": content, "initial": ""} if name == "experiment.json" else content
    write_json(folder / name, whole, experiment.folder)
    return folder / name
