"""The crew of a sweep: its jobs, the worker processes that run them, and what happens when one fails or dies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from time import monotonic
from typing import Any

from ..running.processors import processors
from .experiment import Experiment
from .folder import FAILURE, write_json
from .lanes import Event
from .metrics import COUNTED
from .options import RunOptions
from .seal import Identity
from .worker import Worker

LANES = 4  # experiments at a time on one GPU
REFRESH = 0.5  # seconds to wait for events
QUEUED, RUNNING, DONE, FAILED, STOPPED, SKIPPED = "queued", "running", "done", "failed", "stopped", "skipped"


@dataclass
class Job:
    """An experiment of the sweep, its state and its progress."""

    experiment: Experiment
    state: str = QUEUED
    reason: str = ""  # why it failed, stopped or is tried again
    alone: bool = False  # it is tried a second time, and no other job may run beside it in its process
    accuracy: float | None = None  # on the test images when done, else the latest one
    warning: str = ""  # what is wrong with its masks
    short: str = ""  # the same in a few words
    line: dict[str, Any] = field(default_factory=dict)  # the latest line of metrics
    began: float = 0.0
    ended: float = 0.0

    @property
    def folder(self) -> str:
        """The name of its run folder."""
        return self.experiment.folder

    @property
    def label(self) -> str:
        """The name of its run folder without the hash."""
        return self.folder.rpartition("-")[0]

    @property
    def progress(self) -> str:
        """How many rounds or epochs of the stage are done, with the part of the current one, and how many there are."""
        if not self.line:
            return ""
        unit = COUNTED[self.line["stage"]]
        done = self.line[unit] - 1 + self.line.get("part", 1.0)
        return f"{done:.1f}".removesuffix(".0") + f" of {self.line[unit + 's']} {unit}s"

    def update(self, line: dict[str, Any]) -> None:
        """Update the job by a line of metrics, or by a warning."""
        if "warning" in line:
            self.warning, self.short = line["warning"], line["short"]
            return
        self.line = line
        latest = line.get("validation") or {"top1": line.get("accuracy")}
        self.accuracy = latest["top1"] if latest["top1"] is not None else self.accuracy


class Crew:
    """The jobs of a sweep, and the workers that run them. `changed` is called for each job that begins or ends."""

    def __init__(
        self,
        jobs: Sequence[Job],
        options: RunOptions,
        most: int | None = None,
        devices: Sequence[str] = (),
        changed: Callable[[Job], None] = lambda job: None,
    ) -> None:
        self.jobs, self.options, self.changed = {job.folder: job for job in jobs}, options, changed
        self.queue = [job for job in jobs if job.state == QUEUED]
        self.methods = {job.experiment.method for job in self.queue}
        self.workers: list[Worker] = []
        self.began = monotonic()
        self.stopping = False
        self.most_lanes = (most or LANES) if options.on_gpu else 1  # per worker
        self.places = list(devices) or [options.device]  # the device of each worker
        if options.device == "cpu":
            self.places *= most or processors()

    @property
    def busy(self) -> bool:
        """Whether any job is queued or running."""
        return bool(self.queue) or any(worker.lanes for worker in self.workers)

    def count(self, *states: str) -> int:
        """Return how many jobs are in these states."""
        return sum(job.state in states for job in self.jobs.values())

    def assign(self) -> None:
        """Start a worker on each device that has none, and give queued jobs to workers with room, idle ones first."""
        for place in (Counter(self.places) - Counter(worker.place for worker in self.workers)).elements():
            if self.count(QUEUED) > sum(not worker.lanes for worker in self.workers):
                self.workers.append(Worker(replace(self.options, device=place), self.methods))
        while pair := next(self._matches(), None):
            self._begin(*pair)

    def _matches(self) -> Iterator[tuple[Job, Worker]]:
        """Yield queued jobs with workers that can run them next; the worker with the fewest jobs first."""
        for worker in sorted(self.workers, key=lambda worker: len(worker.lanes)):
            if job := self._next_for(worker):
                yield job, worker

    def _next_for(self, worker: Worker) -> Job | None:
        """Return the queued job that this worker may run next, beside its running jobs; None if there is none."""
        if not worker.lanes:
            return self.queue[0] if self.queue else None
        full = len(worker.lanes) >= self.most_lanes or not worker.has_room()
        if full or any(self.jobs[folder].alone for folder in worker.lanes):
            return None
        return next((job for job in self.queue if not job.alone), None)

    def _begin(self, job: Job, worker: Worker) -> None:
        self.queue.remove(job)
        job.state, job.began, job.line, job.warning, job.short = RUNNING, monotonic(), {}, "", ""
        worker.begin(job.experiment)

    def attend(self, seconds: float = REFRESH) -> None:
        """Wait this long for events from the workers, handle them, and remove dead workers."""
        wait([worker.pipe for worker in self.workers], seconds)
        for worker in list(self.workers):
            ending = worker.dead()  # before its last events are read
            for event in worker.events():
                self._take(event, beside_others=bool(worker.lanes))
            if ending is not None:
                self._remove(worker, ending)

    def _take(self, event: Event, beside_others: bool) -> None:
        """Handle an event; `beside_others` says that other experiments are running in that process."""
        job, about = self.jobs[event.folder], event.about
        if event.kind == "line":
            job.update(about["line"])
            if "warning" in about["line"]:
                self.changed(job)
        elif event.kind == "started":
            job.began = monotonic()  # without the time that its process took to start
            self.changed(job)
        elif event.kind == "done":
            job.accuracy, job.reason = about["result"]["test"]["top1"], ""
            self._end(job, DONE)
        elif event.kind == "failed" and about["busy"]:
            job.reason = about["reason"]  # another process runs it
            self._end(job, STOPPED)
        elif event.kind == "failed" and about["others_may_be_the_cause"] and beside_others:
            self._queue_again(job, about["reason"])
        elif event.kind == "failed":
            self._fail(job, about["reason"], about["traceback"])
        elif event.kind == "stopped":
            self._lose(job, "the process was told to stop (SIGTERM)", "")

    def _remove(self, worker: Worker, ending: str) -> None:
        """Remove a dead worker; each job that it ran is tried once more, alone."""
        self.workers.remove(worker)
        lost, output = [self.jobs[folder] for folder in worker.lanes], worker.output()
        worker.close(0.0)
        for job in lost:
            self._lose(job, ending, output)

    def _lose(self, job: Job, reason: str, output: str) -> None:
        """Handle a job whose process ended: queue it again, or let it fail if it ran alone already.

        While the sweep stops, the job counts as stopped.
        """
        if self.stopping:
            self._end(job, STOPPED)
        elif job.alone:
            self._fail(job, reason, output)
        else:
            self._queue_again(job, reason)

    def _queue_again(self, job: Job, reason: str) -> None:
        """Put the job at the end of the queue, to run alone in its process."""
        job.alone, job.state, job.reason = True, QUEUED, reason
        self.queue.append(job)
        self.changed(job)

    def _fail(self, job: Job, reason: str, details: str) -> None:
        """Record the failure; a full disk does not end the sweep."""
        path = self.options.runs / job.folder / FAILURE
        job.reason = reason
        failure = {"experiment": job.experiment.to_dict(), "reason": reason, "traceback": details}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {**failure, "attempts": 1 + job.alone}, Identity(job.folder, None))
        except OSError as error:
            job.reason += f" (and {path} cannot be written: {error.strerror})"
        self._end(job, FAILED)

    def _end(self, job: Job, state: str) -> None:
        job.state, job.ended = state, monotonic()
        if state == DONE:
            with suppress(OSError):
                (self.options.runs / job.folder / FAILURE).unlink(missing_ok=True)
        self.changed(job)

    def dismiss(self, patience: float) -> None:
        """Tell every run to save and end; kill the workers after `patience` seconds or on a KeyboardInterrupt."""
        self.stopping = True
        until = monotonic() + patience
        try:
            for worker in self.workers:
                worker.stop()
            while any(worker.lanes for worker in self.workers) and monotonic() < until:
                self.attend()
            for worker in self.workers:
                worker.close(5.0 if not worker.lanes else 0.0)
        except KeyboardInterrupt:
            for worker in self.workers:
                with suppress(ValueError):  # it is closed already
                    worker.close(0.0)
        self.workers.clear()
        for job in self.jobs.values():
            if job.state == RUNNING:
                self._end(job, STOPPED)

    def left(self, now: float) -> float | None:
        """Estimate the seconds to the end of the sweep from the time per finished job; None before the first one."""
        done = self.count(DONE)
        return (now - self.began) / done * self.count(QUEUED, RUNNING) if done else None
