"""Networks that trouble the process they run in, and sweeps of them."""

import io
import time
from collections.abc import Callable, Sequence

from rich.console import Console

from barebones.lab.experiment.experiment import Experiment
from barebones.lab.records import records
from barebones.lab.run.options import RunOptions
from barebones.lab.sweep.sweep import SweepResult, sweep

NETWORKS = """
import os, signal, time
from pathlib import Path
from torch import nn

HERE = Path(__file__).parent

class Net(nn.Sequential):
    def __init__(self, trouble=lambda: None):
        super().__init__(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
        self.trouble, self.steps = trouble, 0

    def forward(self, x):
        self.steps += self.training
        if self.steps == 20:  # in the second epoch
            self.trouble()
        return super().forward(x)

def once(flag, number):
    if not (HERE / flag).exists():
        (HERE / flag).touch()
        os.kill(os.getpid(), number)

def waits():
    (HERE / "waits").touch()
    while not (HERE / "go").exists():
        time.sleep(0.02)

def plain():
    return Net()

def killed():
    return Net(lambda: once("was killed", signal.SIGKILL))

def preempted():
    return Net(lambda: once("was preempted", signal.SIGUSR2))

def stopped():
    return Net(lambda: (HERE / "note").unlink())

def telling():
    return Net(lambda: (HERE / "trains").touch())

def waiting():
    return Net(waits)
"""


def troubled(name: str, seed: int = 0, epochs: int = 3) -> Experiment:
    settings: dict = dict(sparsity=0.5, epochs=epochs, batch=128)
    return Experiment(f"troubled_nets:{name}", "digits", "random", seed=seed, **settings).resolved()


def swept(experiments: Sequence[Experiment], options: RunOptions, **settings) -> tuple[SweepResult, str]:
    """Run a sweep; return its result and what it printed."""
    console = Console(file=io.StringIO(), width=300)
    result = sweep(experiments, options, console=console, **settings)
    return result, console.file.getvalue()


def counts(result: SweepResult) -> tuple[int, int, int, int]:
    return result.done, result.failed, result.stopped, result.skipped


def check_each_is_done_once(experiments: Sequence[Experiment], options: RunOptions, text: str) -> None:
    """Check that every experiment has ended exactly once, and that nothing but the runs is left."""
    rows = records.records(options.runs)
    assert sorted(row["folder"] for row in rows) == sorted(each.folder for each in experiments)
    assert {row["status"] for row in rows} == {"done"}
    for each in experiments:
        assert text.count(f"done     {each.folder.rpartition('-')[0]}:") == 1, text
        assert not list(options.folder(each).glob("lease-*"))
    assert not list(options.runs.glob(".tasks-*"))


def until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)
