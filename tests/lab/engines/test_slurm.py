"""Sweeps on Slurm: through submitit's local executor, and the array that a real Slurm would get."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from engine_runs import check_each_is_done_once, counts, swept, troubled, until

from barebones.lab.run import lock
from barebones.lab.run.folder import CHECKPOINT, RESULT
from barebones.lab.run.metrics import METRICS, read
from barebones.lab.sweep.engines.task import Task
from barebones.running.processors import processors

submitit = pytest.importorskip("submitit", reason="needs submitit: pip install 'barebones[slurm]'")

from barebones.lab.sweep.engines import slurm  # noqa: E402 (it imports submitit)

LOCAL = dict(engine="slurm", engine_options={"cluster": "local"})


@pytest.fixture(autouse=True)
def soon(monkeypatch) -> None:
    """Do not wait for the results of killed jobs, which a slow file system could bring."""
    monkeypatch.setattr(submitit.LocalJob, "_results_timeout_s", 0)


@pytest.mark.slow
def test_killed_and_preempted_jobs_end_once_like_others(nets, options):
    experiments = [troubled(name) for name in ("killed", "preempted", "plain")]
    result, text = swept(experiments, options, jobs=2, **LOCAL)
    assert counts(result) == (3, 0, 0, 0), text
    check_each_is_done_once(experiments, options, text)
    assert (nets / "was preempted").exists()  # submitit has queued it again
    assert text.count("again ") == 1
    assert "alone: its Slurm job ended without a result (job " in text
    for each in experiments:
        assert [line["epoch"] for line in read(options.folder(each) / METRICS) if line["stage"] == "train"] == [1, 2, 3]


@pytest.mark.slow
def test_jobs_save_a_checkpoint_when_the_sweep_stops(nets, options):
    endless, queued = troubled("telling", epochs=100_000), troubled("plain")
    result, text = swept([endless, queued], options, jobs=1, stopping=lambda: (nets / "trains").exists(), **LOCAL)
    assert counts(result) == (0, 0, 2, 0), text
    assert (options.folder(endless) / CHECKPOINT).exists()
    assert not list(options.folder(endless).glob("lease-*"))
    assert not options.folder(queued).exists()
    assert not list(options.runs.glob(".tasks-*"))


@pytest.mark.slow
def test_jobs_outlive_a_killed_sweep_and_are_not_run_twice(nets, options, monkeypatch):
    experiment = troubled("waiting")
    (nets / "recipe.py").write_text(
        f"from barebones.lab.experiment.experiment import Experiment\ndef one(): return [{experiment!r}]"
    )
    words = f"sweep {nets / 'recipe.py'}:one --runs {options.runs} --save-every 0 --device cpu --engine slurm"
    with subprocess.Popen(
        [sys.executable, "-m", "barebones", *words.split(), "--engine-option", "cluster=local"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, start_new_session=True,
        stdout=subprocess.DEVNULL,
    ) as driver:  # fmt: skip
        try:
            until(lambda: (nets / "waits").exists())
        finally:
            driver.kill()
    monkeypatch.setattr(lock, "RENEWED_EVERY", 0.01)  # this side gives up soon
    result, text = swept([experiment], options, **LOCAL)
    assert counts(result) == (0, 0, 1, 0)
    assert f"another process is running in {options.folder(experiment)}; wait for it, or stop it first" in text
    (nets / "go").touch()
    until(lambda: (options.folder(experiment) / RESULT).exists())
    until(lambda: not list(options.folder(experiment).glob("lease-*")))
    assert counts(swept([experiment], options, **LOCAL)[0]) == (0, 0, 0, 1)


FAKE = """#!{python}
# The commands of Slurm, for jobs that are processes of this machine; the folder `jobs` has their scripts and processes.
import os, re, subprocess, sys
from pathlib import Path

name, words, jobs = Path(sys.argv[0]).name, sys.argv[1:], Path({jobs!r})
with open(jobs / "log", "a") as log:
    print(name, *words, file=log)

def start(job, script, after=""):
    array, _, task = job.partition("_")
    settings = dict(SLURM_JOB_ID=job, SUBMITIT_EXECUTOR="slurm")
    settings |= dict(SLURM_ARRAY_JOB_ID=array, SLURM_ARRAY_TASK_ID=task) if task else dict()
    process = subprocess.Popen(
        ["bash", "-c", after + script], env=os.environ | settings, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    (jobs / job).write_text(str(process.pid) + " " + script)

def runs(job):
    try:
        return Path("/proc", (jobs / job).read_text().split()[0], "stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False

if name == "sbatch":
    script = Path(words[0]).read_text()
    last = re.search("--array=0-([0-9]+)", script)
    array = str(100 + len(list(jobs.iterdir())))
    for job in [array + "_" + str(task) for task in range(int(last[1]) + 1)] if last else [array]:
        start(job, script)
    print("Submitted batch job", array)
elif name == "srun":
    os.execv(sys.executable, words[words.index(sys.executable):])
elif name == "scontrol":
    start(words[-1], (jobs / words[-1]).read_text().partition(" ")[2], after="sleep 1;")
elif name == "sacct":
    print("JobID|State|NodeList")
    for path in jobs.iterdir():
        if path.name != "log":
            print(path.name + "|" + ("RUNNING" if runs(path.name) else "FAILED") + "|here")
"""


@pytest.fixture
def fake(tmp_path, monkeypatch) -> Path:
    """A Slurm of this machine; the file says how its commands were called."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "bin").mkdir()
    for name in ("sbatch", "srun", "scancel", "scontrol", "sacct"):
        path = tmp_path / "bin" / name
        path.write_text(FAKE.replace("{python}", sys.executable).replace("{jobs!r}", repr(str(tmp_path / "jobs"))))
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(submitit.SlurmJob, "_results_timeout_s", 0)
    return tmp_path / "jobs" / "log"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_an_array_whose_jobs_are_killed_and_preempted_ends_like_others(fake, nets, options):
    experiments = [troubled(name) for name in ("killed", "preempted")]
    result, text = swept(experiments, options, engine="slurm")
    assert counts(result) == (2, 0, 0, 0), text
    check_each_is_done_once(experiments, options, text)
    calls = fake.read_text()
    assert (calls.count("sbatch "), calls.count("scontrol requeue ")) == (2, 1)  # an array, and the killed one again
    assert "alone: its Slurm job ended without a result (job " in text


def test_tasks_that_come_together_are_one_array_with_the_options_of_the_user(fake, options, tmp_path):
    (tmp_path / "bin" / "srun").write_text("#!/bin/sh\n")  # nothing runs
    settings = {"partition": "gpu", "time": 120, "cpus": 3, "account": "me"}
    tasks = [Task(troubled("plain", seed), options, tmp_path / "note", tmp_path, (), ()) for seed in range(3)]
    with slurm.opened(options, 7, settings) as engine:
        assert len(engine.places()) == 7
        tickets = [engine.submit(task, alone=False) for task in tasks]
        engine.cancel(engine.submit(tasks[0], alone=False))  # before it was submitted
        engine.wait([], 0.0)
        (script,) = {path.read_text() for path in engine.folder.glob("*submission*.sh")}
        numbers = [ticket.job.job_id.split("_") for ticket in tickets]
        assert [task for _, task in numbers] == ["0", "1", "2"]
        engine.cancel(tickets[1])
        assert engine.ending(tickets[1]) == '[["stopped", {}]]'
    for words in ("array=0-2%3", "partition=gpu", "time=120", "cpus-per-task=3", "account=me", "job-name=barebones"):
        assert f"#SBATCH --{words}\n" in script
    assert "#SBATCH --signal=USR2@" in script
    assert fake.read_text().count("sbatch") == 1
    assert f"scancel {tickets[1].job.job_id}\n" in fake.read_text()


def test_a_checkpoint_is_the_same_call(options, tmp_path):
    task = Task(troubled("plain"), options, tmp_path / "note", tmp_path, (), ())
    again = task.checkpoint()
    assert (again.function, again.args, again.kwargs) == (task, (), {})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "there is no Slurm here, because there is no command srun"),
        ({"cluster": "local", "partitoin": "gpu"}, "submitit does not take these options .* 'partitoin'"),
        ({"cluster": "local", "time": "long"}, 'submitit does not take these options .* "timeout_min" expected type'),
    ],
)
def test_what_submitit_cannot_do_is_an_error_in_one_line(settings, words, nets, options, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ValueError, match=words):
        swept([troubled("plain")], options, engine="slurm", engine_options=settings)
    assert not list(options.runs.iterdir()) if settings else not options.runs.exists()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"nodes": 2}, "one process on one node; leave out --engine-option nodes"),
        ({"tasks_per_node": 2}, "one process on one node; leave out --engine-option tasks_per_node"),
        ({"time": 0}, "--engine-option time=0 .* at least 1"),
    ],
)
def test_what_no_experiment_can_use_is_refused_before_anything_is_written(setting, words, options):
    with pytest.raises(ValueError, match=words):
        slurm.Slurm(options, None, {"cluster": "local", **setting})
    assert not options.runs.exists()


def test_without_slurm_there_are_as_many_jobs_as_processors(options):
    assert len(slurm.Slurm(options, None, {"cluster": "local"}).places()) == processors()
    assert len(slurm.Slurm(options, 3, {"cluster": "local"}).places()) == 3


def test_jobs_that_slurm_refuses_end_the_sweep(fake, nets, options):
    (fake.parents[1] / "bin" / "sbatch").write_text("#!/bin/sh\necho 'invalid partition specified' >&2\nexit 1\n")
    with pytest.raises(ValueError, match=r"Slurm did not take the jobs: .*invalid partition"):
        swept([troubled("plain")], options, engine="slurm")
    assert not list(options.runs.iterdir())
