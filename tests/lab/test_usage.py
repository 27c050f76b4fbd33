"""Usage: a sweep says how busy its GPUs are, if nvidia-smi tells it, and leaves no process behind."""

import io
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from barebones.lab.experiment.experiment import Experiment
from barebones.lab.run.options import RunOptions
from barebones.lab.sweep import progress
from barebones.lab.sweep import sweep as module
from barebones.lab.sweep.engines.local import Local
from barebones.lab.sweep.pool import Crew, Job
from barebones.lab.sweep.usage import watched

FAKE = """#!{python}
import os, sys, time
from pathlib import Path

here = Path(__file__).parent
(here / "called").write_text("\\n".join([str(os.getpid()), *sys.argv[1:]]))
for percent in (50, 100):
    print("0, GPU-aa11, 7", f"1, GPU-bb22, {{percent}}", "2, GPU-cc33, [N/A]", sep="\\n", flush=True)
(here / "told").touch()
time.sleep(60 if {stays} else 0)
sys.exit(9)
"""


def fake(folder: Path, monkeypatch, stays: bool = True) -> None:
    path = folder / "nvidia-smi"
    path.write_text(FAKE.format(python=sys.executable, stays=stays))
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def until(condition) -> None:
    end = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)


def runs(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("devices", "visible", "chosen", "expected"),
    [
        (["cuda:1"], None, "1", "gpu busy 75 %"),
        (["cuda"], "GPU-bb", "GPU-bb", "gpu busy 75 %"),
        (["cuda:0", "cuda:1"], "1, 0", "1,0", "gpu busy 75 % (cuda:0), 7 % (cuda:1)"),
        (["cuda:2"], None, "2", ""),  # a part of a GPU
    ],
)
def test_the_mean_of_the_samples_is_told_and_the_process_ends(
    devices, visible, chosen, expected, tmp_path, monkeypatch
):
    fake(tmp_path, monkeypatch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with watched(devices) as usage:
        until((tmp_path / "told").exists)
        until(lambda: usage() == expected)
        process, *arguments = (tmp_path / "called").read_text().split("\n")
        assert runs(process)
    assert not runs(process)
    assert f"--id={chosen}" in arguments
    assert usage() == expected


def test_nvidia_smi_may_end_by_itself(tmp_path, monkeypatch):
    fake(tmp_path, monkeypatch, stays=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with watched(["cuda:1"]) as usage:
        until(lambda: usage() == "gpu busy 75 %")


@pytest.mark.parametrize("devices", [["cuda"], ["cpu", "cpu"]])
def test_without_nvidia_smi_or_a_gpu_nothing_is_told(devices, tmp_path, monkeypatch):
    if devices == ["cuda"]:
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        fake(tmp_path, monkeypatch)
    with watched(devices) as usage:
        assert usage() == ""
    assert not (tmp_path / "called").exists()


def test_a_sweep_shows_it(tmp_path, monkeypatch):
    @contextmanager
    def busy(devices):
        yield lambda: "gpu busy 91 %"

    monkeypatch.setattr(module, "watched", busy)
    console = Console(file=io.StringIO(), width=200)
    module.sweep([], RunOptions(tmp_path / "runs"), console=console)
    assert "; gpu busy 91 %.\nRecords: " in console.file.getvalue()
    options = RunOptions(tmp_path)
    crew = Crew([Job(Experiment("small-vgg", "digits").resolved())], options, Local(options))
    assert progress.status(crew, "gpu busy 91 %") == "1 queued, 0 running, 0 done, 0 failed; gpu busy 91 %"
    console.print(progress.table(crew, crew.began + 60, "gpu busy 91 %"))
    assert "1:00 elapsed; gpu busy 91 %" in console.file.getvalue()
