"""Run options: where and how to run experiments, and what a result says about that."""

import platform
import shlex
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...running.devices import processors
from ...version import __version__
from ..experiment.experiment import Experiment

WARN, RAISE, SKIP = ON_COLLAPSE = ("warn", "raise", "skip")
SMOKE = Path("smoke-runs")  # of smoke runs, which show nothing about the methods, instead of the default folder
COMPILED_FROM = 100  # epochs; on a GPU, training this long wins back the half minute that compiling takes
BESIDE_A_GPU = 2  # threads; with 16 in each of two processes on 16 processors, shrinking took minutes instead of 6 s


@dataclass(frozen=True)
class RunOptions:
    """Where and how to run; none of it is part of an experiment or changes its name."""

    runs: Path = Path("runs")  # holds one folder per run
    device: str = "cpu"
    data_root: Path | None = None
    download: bool = False
    compiled: bool | None = None  # None: on a GPU, if the training is long enough
    captured: bool = True  # on a GPU, replay gradients and training steps as CUDA graphs
    micro_batch: int | None = None  # images that go through the network at once; None: whole batches
    save_every: float = 30.0  # seconds between checkpoints
    track: list[str] | None = None  # the names of trackers, see `tracking`
    on_collapse: str = WARN  # if no signal passes from input to output: "raise" stops before training, "skip" tests
    overwrite: bool = False  # delete what an earlier run of the same experiment has left, and run anew
    mask: Path | None = None  # the mask file to train, for the method "file"

    def __post_init__(self) -> None:
        if self.on_collapse not in ON_COLLAPSE:
            raise ValueError(f"on-collapse {self.on_collapse!r} is unknown; choose {WARN}, {RAISE} or {SKIP}")
        if self.micro_batch is not None and self.micro_batch < 1:
            raise ValueError(f"micro-batch {self.micro_batch} must be at least 1")

    def folder(self, experiment: Experiment) -> Path:
        return self.runs / experiment.folder

    def for_smoke(self) -> "RunOptions":
        """Return the options with a folder for smoke runs, unless the user has named one."""
        return replace(self, runs=SMOKE) if self.runs == RunOptions.runs else self

    def compiles(self, epochs: int) -> bool:
        return self.on_gpu and epochs >= COMPILED_FROM if self.compiled is None else self.compiled and epochs > 0

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def threads(self) -> int:
        """How many threads each process of a sweep uses; a sweep on CPUs has a process for each of them."""
        return min(processors(), BESIDE_A_GPU) if self.on_gpu else 1


def environment(options: RunOptions, epochs: int) -> dict[str, Any]:
    """Return versions, device and modes, on which the bits of a result may depend."""
    import torch

    device, processor = torch.device(options.device), platform.machine()
    if device.type not in ("cpu", "cuda"):
        processor = f"{device.type} of {processor}"
    return {
        "barebones": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor,
        "threads": torch.get_num_threads(),
        "compiled": options.compiles(epochs),
        "captured": options.captured and device.type == "cuda",
        "micro_batch": options.micro_batch,
    }


def made() -> dict[str, Any]:
    """Return when, where and by which command a result was made, and the commit of the working folder, if any."""
    commit, script = None, Path(sys.argv[0]).name
    with suppress(OSError, subprocess.SubprocessError):
        git = ["git", "rev-parse", "HEAD"]
        commit = subprocess.run(git, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    return {
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["barebones" if script == "__main__.py" else script, *sys.argv[1:]]),
        "host": platform.node(),
        "commit": commit,
    }
