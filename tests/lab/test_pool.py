"""Pools: jobs share a device while it has memory, what dies is tried again alone, and the table fits the terminal."""

import io
import json

import pytest
import torch
from rich.console import Console

from barebones.lab.experiment.experiment import Experiment
from barebones.lab.run.options import RunOptions
from barebones.lab.sweep import pool as module
from barebones.lab.sweep import progress, worker
from barebones.lab.sweep.lanes import Event
from barebones.lab.sweep.pool import Job, Pool
from barebones.lab.sweep.sweep import _gpus


def job(seed: int = 0, device: str = "cpu") -> Job:
    return Job(Experiment("small-vgg", "digits", "random", 0.9, seed=seed, epochs=1).resolved(device))


class Fake(worker.Worker):
    """A worker without a process; the test says what it hears and how it ends."""

    def __init__(self, options: RunOptions, most, methods, prepares, team) -> None:
        self.place, self.most, self.prepares, self.team = options.device, most, prepares, team
        self.lanes, self.share, self.free, self.networks, self.orders = {}, None, 0, set(), []
        self.ending = False
        team.append(self)
        self.pipe = None  # type: ignore[assignment]
        self.to_yield: list[Event] = []
        self.ended: str | None = None

    def _send(self, message) -> None:
        self.orders.append(message)

    def events(self):
        while self.to_yield:
            yield self._noted(self.to_yield.pop(0))

    def dead(self) -> str | None:
        return self.ended

    def output(self) -> str:
        return "its output"

    def close(self, patience: float) -> None:
        self.team.remove(self)


def made(listed: list[Job], options: RunOptions, **settings) -> Pool:
    return Pool(listed, options, **settings)


@pytest.fixture
def pool(tmp_path, monkeypatch) -> Pool:
    """Four queued jobs for a device with memory of 100 bytes, on which no second worker prepares them."""
    monkeypatch.setattr(module, "HELPED", ())
    monkeypatch.setattr(module, "Worker", Fake)
    monkeypatch.setattr(module, "wait", lambda pipes, seconds: None)
    return made([job(seed, "cuda") for seed in range(4)], RunOptions(tmp_path, device="cuda"))


def hear(pool: Pool, kind: str, job: Job, **about) -> None:
    pool.workers[0].to_yield.append(Event(kind, job.folder, about))  # type: ignore[attr-defined]
    pool.attend(0)
    pool.assign()


def states(pool: Pool) -> str:
    return " ".join(job.state for job in pool.jobs.values())


FAILURE = {"reason": "CUDA out of memory", "traceback": "…", "others_may_be_the_cause": True, "busy": False}
RESULT = {"test": {"top1": 0.5}}


def test_lanes_are_added_one_by_one_while_there_is_memory(pool):
    first, second, third, _ = pool.jobs.values()
    pool.assign()
    assert states(pool) == "running queued queued queued"
    hear(pool, "line", first, line={"stage": "train", "epoch": 0, "epochs": 2, "accuracy": 0.2, "validation": None})
    assert states(pool) == "running queued queued queued"
    hear(pool, "memory", first, share=25, free=75)
    assert states(pool) == "running running queued queued"  # its memory is not known yet
    hear(pool, "memory", second, share=40, free=35)
    assert states(pool) == "running running queued queued"  # 48 are needed
    hear(pool, "done", first, result=RESULT)
    assert states(pool) == "done running queued queued"
    hear(pool, "memory", first, share=0, free=60)
    assert states(pool) == "done running running queued"
    hear(pool, "memory", third, share=10, free=50)
    assert states(pool) == "done running running running"


def test_a_job_counts_as_queued_until_it_starts(pool):
    first, *_ = pool.jobs.values()
    pool.assign()
    assert progress.status(pool) == "4 queued, 0 running, 0 done, 0 failed"
    hear(pool, "started", first)
    assert progress.status(pool) == "3 queued, 1 running, 0 done, 0 failed"


def test_out_of_memory_beside_others_is_tried_again_alone(pool):
    first, second, third, fourth = pool.jobs.values()
    pool.assign()
    hear(pool, "memory", first, share=1, free=99)
    sentences = []
    pool.changed = lambda job: sentences.append(progress.sentence(job))
    hear(pool, "failed", second, **FAILURE)
    assert sentences == [f"again    {second.label}, alone: CUDA out of memory"]
    hear(pool, "memory", third, share=1, free=99)
    assert states(pool) == "running queued running running"
    for each in (first, third):
        hear(pool, "done", each, result=RESULT)
        assert second.state == "queued"
    hear(pool, "done", fourth, result=RESULT)
    assert states(pool) == "done running done done"
    hear(pool, "memory", second, share=1, free=99)
    hear(pool, "failed", second, **FAILURE)
    assert (second.state, second.reason) == ("failed", "CUDA out of memory")
    assert json.loads((pool.options.runs / second.folder / "failure.json").read_text())["attempts"] == 2
    assert not pool.busy


def test_a_process_that_is_about_to_end_gets_no_other_run(pool):
    """The next run would be lost with it, and one that ran alone already would count as failed."""
    first, second, third, fourth = pool.jobs.values()
    for each in (third, fourth):
        each.alone = True
    pool.assign()
    hear(pool, "memory", first, share=1, free=99)
    hear(pool, "memory", second, share=1, free=99)
    hear(pool, "failed", first, **FAILURE, process_ends=True)
    pool.workers[0].ended = "the process ended with exit code 70"  # type: ignore[attr-defined]
    pool.attend(0)
    assert [each.alone for each in pool.jobs.values()] == [True] * 4
    for each in (third, fourth, first, second):
        pool.assign()
        assert each.state == "running"
        hear(pool, "failed", each, **FAILURE, process_ends=True)
        assert each.state == "failed"
        assert not any(other.state == "running" for other in pool.jobs.values())
        pool.workers[0].ended = "the process ended with exit code 70"  # type: ignore[attr-defined]
        pool.attend(0)
    assert not pool.busy


def test_after_a_crash_every_run_of_the_process_is_alone(pool):
    first, second, *_ = pool.jobs.values()
    pool.assign()
    hear(pool, "memory", first, share=1, free=99)
    pool.workers[0].ended = "the process ended with exit code 70"  # type: ignore[attr-defined]
    pool.attend(0)
    assert not pool.workers
    assert (first.alone, second.alone, first.state) == (True, True, "queued")
    for _ in range(2):  # those that were not there come first, side by side
        pool.assign()
        running = next(each for each in pool.jobs.values() if each.state == "running")
        hear(pool, "done", running, result=RESULT)
    pool.assign()
    assert states(pool) == "running queued done done"
    hear(pool, "memory", first, share=1, free=99)
    assert second.state == "queued"
    pool.workers[0].ended = "the process ended with exit code 70"  # type: ignore[attr-defined]
    pool.attend(0)
    assert (first.state, first.reason) == ("failed", "the process ended with exit code 70")
    pool.assign()
    assert states(pool) == "failed running done done"
    hear(pool, "stopped", second)  # by a signal that this sweep did not send
    assert (second.state, second.reason) == ("failed", "the process was told to stop (SIGTERM)")


def test_a_failure_that_cannot_be_written_does_not_end_the_sweep(pool, monkeypatch):
    def full(path, value, owner):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_json", full)
    first, second, *_ = pool.jobs.values()
    pool.assign()
    hear(pool, "failed", first, **FAILURE)
    assert "No space left" in first.reason
    assert (first.state, second.state) == ("failed", "running")


def test_a_second_interrupt_kills_the_workers(pool, monkeypatch):
    closed = []

    def interrupted(seconds=1.0):
        raise KeyboardInterrupt

    pool.assign()
    monkeypatch.setattr(pool, "attend", interrupted)
    monkeypatch.setattr(pool.workers[0], "close", closed.append)
    pool.dismiss(60.0)
    assert closed == [0.0]
    assert states(pool) == "stopped queued queued queued"


LINE = {"stage": "train", "epoch": 2, "epochs": 10, "accuracy": 0.6, "validation": {"top1": 0.7}}


def test_the_table_shows_counts_times_running_finished_and_failed_jobs(tmp_path):
    jobs = [job(seed) for seed in range(40)]
    for number, each in enumerate(jobs):
        each.state = ("queued", "running", "done", "failed")[number % 4]
        each.reason, each.began, each.ended = "too [bold]large[/bold]", 100.0, 200.0 + number
        if each.state == "running":
            each.update(LINE)
    pool = made(jobs, RunOptions(tmp_path))
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
    pool = made([job(seed) for seed in range(9)], RunOptions(tmp_path))
    for each in pool.jobs.values():
        each.state = "running"
    with progress.live_table(pool, console) as live:
        live.refresh()
        pool.stopping = True  # the end of the sweep
    text = console.file.getvalue()
    assert "0 queued, 9 running" in text
    assert text.count("digits-small-vgg") == 3  # the screen has no room for nine


def test_every_gpu_has_a_worker_and_idle_ones_get_jobs_first(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "HELPED", ())
    monkeypatch.setattr(module, "Worker", Fake)
    monkeypatch.setattr(module, "wait", lambda pipes, seconds: None)
    jobs = [job(seed, "cuda") for seed in range(5)]
    pool = made(jobs, RunOptions(tmp_path, device="cuda"), devices=["cuda:0", "cuda:2"])
    pool.assign()
    assert [(worker.place, len(worker.lanes)) for worker in pool.workers] == [("cuda:0", 1), ("cuda:2", 1)]
    for one, running in zip(pool.workers, jobs, strict=False):
        one.to_yield.append(Event("memory", running.folder, {"share": 1, "free": 99}))
    pool.attend(0)
    pool.assign()
    assert [len(worker.lanes) for worker in pool.workers] == [2, 2]
    pool.workers[0].ended = "killed"
    pool.attend(0)
    pool.assign()
    assert sorted(worker.place for worker in pool.workers) == ["cuda:0", "cuda:2"]


def test_no_more_workers_start_than_there_are_jobs(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "Worker", Fake)
    pool = made([job()], RunOptions(tmp_path), jobs=3)
    pool.assign()
    assert len(pool.workers) == 1


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
