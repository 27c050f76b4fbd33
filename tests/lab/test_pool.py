"""Pools: jobs share a device, what dies is tried again alone, and the table fits the terminal."""

import io
import json
from random import Random
from types import SimpleNamespace

import pytest
import torch
from fuzzing import cases
from rich.console import Console

from barebones.lab.experiment.experiment import Experiment
from barebones.lab.run.options import RunOptions
from barebones.lab.sweep import pool as module
from barebones.lab.sweep import progress, worker
from barebones.lab.sweep.pool import Job, Pool
from barebones.lab.sweep.sweep import _gpus
from barebones.lab.sweep.worker import Event


def job(seed: int = 0, device: str = "cpu") -> Job:
    return Job(Experiment("small-vgg", "digits", "random", 0.9, seed=seed, epochs=1).resolved(device))


class Fake(worker.Worker):
    """A worker without a process; the test says what it hears and how it ends."""

    ended: str | None = None

    def _start(self) -> None:
        self.process, self.ended, self.to_recv = self, None, []  # type: ignore[assignment]
        self.pipe = SimpleNamespace(poll=lambda: self.to_recv, recv=lambda: self.to_recv.pop(0), send=lambda _: None)

    def dead(self) -> str | None:
        return self.ended

    def output(self) -> str:
        return "its output"

    def close(self, patience: float = 0.0) -> None:
        self.process, self.folder, self.ended = None, "", None


@pytest.fixture
def fakes(monkeypatch) -> None:
    """Start no process."""
    monkeypatch.setattr(module, "Worker", Fake)
    monkeypatch.setattr(module, "wait", lambda pipes, seconds: None)


@pytest.fixture
def pool(tmp_path, fakes) -> Pool:
    """Four queued jobs for a GPU that runs two at a time; the first two are running."""
    pool = Pool([job(seed, "cuda") for seed in range(4)], RunOptions(tmp_path, device="cuda"), jobs=2)
    pool.assign()
    for each in list(pool.jobs.values())[:2]:
        hear(pool, "started", each)
    return pool


def hear(pool: Pool, kind: str, job: Job, ends: bool = False, **about) -> None:
    (one,) = (each for each in pool.workers if each.folder == job.folder)
    one.to_recv.append(Event(kind, about, ends))  # type: ignore[attr-defined]
    pool.attend(0)
    pool.assign()


def die(pool: Pool, job: Job, ending: str) -> None:
    (one,) = (each for each in pool.workers if each.folder == job.folder)
    one.ended = ending  # type: ignore[attr-defined]
    pool.attend(0)
    pool.assign()


def finish(pool: Pool, *jobs: Job) -> None:
    for each in jobs:
        hear(pool, "started", each)
        hear(pool, "done", each, top1=0.5)


def states(pool: Pool) -> str:
    return " ".join(job.state for job in pool.jobs.values())


def given(pool: Pool) -> set[str]:
    return {worker.folder for worker in pool.workers if worker.folder}


FAILURE = {"reason": "CUDA out of memory", "details": "…", "again": True}


def test_a_job_counts_as_queued_until_it_starts(tmp_path, fakes):
    pool = Pool([job(seed) for seed in range(4)], RunOptions(tmp_path), jobs=2)
    first, *_ = pool.jobs.values()
    pool.assign()
    assert len(pool.queue) == 2
    assert progress.status(pool) == "4 queued, 0 running, 0 done, 0 failed"
    hear(pool, "started", first)
    assert progress.status(pool) == "3 queued, 1 running, 0 done, 0 failed"


@pytest.mark.parametrize("reason", ["CUDA out of memory", "the process ended with exit code 70"])
def test_a_run_that_crashes_or_lacks_memory_beside_others_is_tried_again_alone(reason, pool):
    def fail(job: Job) -> None:
        hear(pool, "failed", job, **FAILURE) if reason == FAILURE["reason"] else die(pool, job, reason)

    first, second, third, fourth = pool.jobs.values()
    sentences = []
    pool.changed = lambda job: sentences.append(progress.sentence(job))
    fail(second)
    assert sentences == [f"again    {second.label}, alone: {reason}"]
    assert (second.alone, second.state) == (True, "queued")
    finish(pool, first, third)
    assert given(pool) == {fourth.folder}  # nothing may run beside the second
    finish(pool, fourth)
    assert given(pool) == {second.folder}
    fail(second)
    assert (second.state, second.reason) == ("failed", reason)
    assert json.loads((pool.options.runs / second.folder / "failure.json").read_text())["attempts"] == 2
    assert not pool.busy


def test_a_process_that_is_about_to_end_gets_no_other_run(pool):
    """The next run would be lost with it, and one that ran alone already would count as failed."""
    first, second, third, _ = pool.jobs.values()
    ending = next(each for each in pool.workers if each.folder == first.folder)
    closed = []
    ending.close = lambda patience: closed.append(ending.folder) or Fake.close(ending)
    hear(pool, "failed", first, ends=True, **FAILURE)
    assert closed == [""]  # it has no run any more, and a new process takes the next one
    assert given(pool) == {second.folder, third.folder}
    assert (first.alone, second.alone, third.alone) == (True, False, False)


@pytest.mark.parametrize("case", range(cases(60)))
def test_whatever_happens_every_job_ends_once(case, tmp_path, monkeypatch, fakes):
    """Random events: runs end, fail, wait and lack memory, and workers die; one or two GPUs with up to three runs."""
    random, busy = Random(case), Event("failed", {"reason": "another process has it", "busy": True})
    monkeypatch.setattr(module, "AGAIN", 0.0005)
    monkeypatch.setattr(module, "write_json", lambda path, content, owner: None)
    ended: list[str] = []
    listed, options = [job(seed, "cuda") for seed in range(random.randint(1, 12))], RunOptions(tmp_path, device="cuda")
    most, devices = random.randint(1, 3), ["cuda:0", "cuda:1"][: random.randint(1, 2)]
    note = lambda job: ended.extend([job.folder] * (job.state in ("done", "failed")))
    pool = Pool(listed, options, note, most, devices)
    for _ in range(2000):
        if not pool.busy:
            break
        pool.assign()
        check(pool)
        one = random.choice(pool.workers)
        if random.random() < 0.1 and one.process:
            one.ended = "killed"
        elif one.folder:
            failure = Event("failed", FAILURE | {"again": random.random() < 0.5}, ends=random.random() < 0.3)
            one.to_recv += [Event("started"), random.choice([Event("done", {"top1": 0.5}), failure, busy])]
        pool.attend(0)
    assert not pool.busy
    assert sorted(ended) == sorted(pool.jobs)
    assert not set(states(pool).split()) - {"done", "failed"}


def check(pool: Pool) -> None:
    """Check that no job runs twice, and that one that is alone has its device for itself."""
    running = [worker.folder for worker in pool.workers if worker.folder]
    assert sorted([*running, *(job.folder for job in pool.queue)]) == sorted(
        job.folder for job in pool.jobs.values() if job.state in ("queued", "running")
    )
    for place in {*pool.places()}:
        folders = [worker.folder for worker in pool.workers if worker.place == place and worker.folder]
        assert len(folders) <= 1 or not any(pool.jobs[folder].alone for folder in folders)


def test_a_failure_that_cannot_be_written_does_not_end_the_sweep(pool, monkeypatch):
    def full(path, value, owner):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_json", full)
    first, second, *_ = pool.jobs.values()
    hear(pool, "failed", first, **FAILURE | {"again": False})
    assert "No space left" in first.reason
    assert (first.state, second.state) == ("failed", "running")


def test_a_second_interrupt_kills_the_workers(pool, monkeypatch):
    def interrupted(seconds=1.0):
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "attend", interrupted)
    pool.dismiss(60.0)
    assert not given(pool)
    assert states(pool) == "stopped stopped queued queued"


LINE = {"stage": "train", "epoch": 2, "epochs": 10, "accuracy": 0.6, "validation": {"top1": 0.7}}


def test_the_table_shows_counts_times_running_finished_and_failed_jobs(tmp_path):
    jobs = [job(seed) for seed in range(40)]
    for number, each in enumerate(jobs):
        each.state = ("queued", "running", "done", "failed")[number % 4]
        each.reason, each.began, each.ended = "too [bold]large[/bold]", 100.0, 200.0 + number
        if each.state == "running":
            each.update(LINE)
    pool = Pool(jobs, RunOptions(tmp_path))
    pool.began = 100.0
    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(progress.table(pool, 120.0))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    assert lines[:2] == ["10 queued, 10 running, 10 done, 10 failed", "0:20 elapsed, about 0:40 left"]
    assert [line.split()[0] for line in lines[2:]] == ["failed"] * 5 + ["running"] * 10 + ["done"] * 5
    assert lines[2] == f"failed   {jobs[39].label}: too [bold]large[/bold]"
    assert lines[7].split()[2:] == ["train", "2", "of", "10", "epochs", "70.00", "%"]
    assert lines[-5].split()[:3] == ["done", jobs[38].label, "2:18"]


def test_in_a_terminal_there_is_a_live_table_that_fits_it(tmp_path):
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=6)
    pool = Pool([job(seed) for seed in range(9)], RunOptions(tmp_path))
    for each in pool.jobs.values():
        each.state = "running"
    with progress.live_table(pool, console) as live:
        live.refresh()
        pool.stopping = True
        for each in pool.jobs.values():
            each.state = "stopped"  # the end of the sweep
    text = console.file.getvalue()
    assert "0 queued, 9 running" in text
    assert text.count("digits-small-vgg") == 3  # the screen has no room for nine


@pytest.mark.parametrize(
    ("jobs", "used"), [(5, ["cuda:0", "cuda:0", "cuda:2", "cuda:2"]), (2, ["cuda:0", "cuda:2"]), (1, ["cuda:0"])]
)
def test_every_gpu_gets_its_first_run_first_and_no_more_processes_start_than_there_are_jobs(
    jobs, used, tmp_path, fakes
):
    listed = [job(seed, "cuda") for seed in range(jobs)]
    pool = Pool(listed, RunOptions(tmp_path, device="cuda"), jobs=2, devices=["cuda:0", "cuda:2"])
    pool.assign()
    assert sorted(worker.place for worker in pool.workers if worker.process) == used
    finish(pool, listed[0])
    assert sorted(worker.place for worker in pool.workers if worker.process) == used


@pytest.mark.parametrize(
    ("numbers", "words"), [((3,), "from 0 to 1"), ((0, 0), "name each GPU once"), ((-1,), "0 to 1")]
)
def test_gpus_that_are_not_there_are_an_error(numbers, words, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match=words):
        _gpus(RunOptions(tmp_path, device="cuda"), numbers)
    with pytest.raises(ValueError, match="leave one of them out"):
        _gpus(RunOptions(tmp_path, device="cuda:1"), numbers)


def test_cuda_means_all_gpus(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert _gpus(RunOptions(tmp_path, device="cuda"), ()) == ["cuda:0", "cuda:1", "cuda:2"]
    assert _gpus(RunOptions(tmp_path, device="cuda"), (2, 0)) == ["cuda:2", "cuda:0"]
    assert _gpus(RunOptions(tmp_path, device="cuda:1"), ()) == _gpus(RunOptions(tmp_path), ()) == []
