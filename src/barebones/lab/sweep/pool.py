"""The pool of a sweep: its jobs, the processes that run them, and what happens when one fails or dies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from pathlib import Path
from time import monotonic
from typing import Any

from ...running.processors import processors
from ..experiment.experiment import Experiment
from ..records import records
from ..records.tables import Row
from ..run.folder import FAILURE, write_json
from ..run.lock import Busy, check_free
from ..run.metrics import COUNTED
from ..run.options import RunOptions
from .lanes import Event
from .worker import Worker

REFRESH = 0.5  # seconds to wait for events
AGAIN = 1.0  # seconds until the sweep comes back to a run that another process has
LANES = 4  # experiments at a time on one GPU
HELPED = ("cuda",)  # kinds of devices on which a second process prepares experiments beside the one that trains
AHEAD = 4  # prepared jobs that may wait for one worker: its lanes may all end at once
QUEUED, RUNNING, DONE, FAILED, STOPPED, SKIPPED = "queued", "running", "done", "failed", "stopped", "skipped"


@dataclass
class Job:
    """An experiment of the sweep, its state and its progress."""

    experiment: Experiment
    state: str = QUEUED
    reason: str = ""  # why it failed, waits or is tried again
    not_before: float = 0.0  # another process has it; when to look again
    alone: bool = False  # it is tried a second time, and no other job may run beside it
    prepared: str = ""  # the place where it was prepared, so that its training can begin
    waits: bool = False  # a worker has it, but does not own its folder yet
    spent: float = 0.0  # seconds of its preparation
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

    def look(self, runs: Path) -> Row | None:
        """Return the record of its run, if the run has ended, and take the state that it shows."""
        row = records.record(runs / self.folder, self.experiment)
        if row is not None and not (self.state == DONE and row["status"] == records.DONE):
            self.state = SKIPPED if row["status"] == records.DONE else FAILED
            self.reason, self.accuracy = row["reason"] or "", row["top1"]
        return row

    def update(self, line: dict[str, Any]) -> None:
        """Update the job by a line of metrics, or by a warning."""
        if "warning" in line:
            self.warning, self.short = line["warning"], line["short"]
            return
        self.line = line
        latest = line.get("validation") or {"top1": line.get("accuracy")}
        self.accuracy = latest["top1"] if latest["top1"] is not None else self.accuracy


class Pool:
    """The jobs of a sweep, and the processes that run them. `changed` is called for each job that begins or ends.

    `jobs` and `devices` are those of `sweep`; workers get the rows of `methods`. On some devices, one worker trains,
    and another one prepares jobs for it: it prunes them, measures and compiles. So a run that begins does not take the
    turns of those that train. An idle worker prepares a job itself.
    """

    def __init__(
        self,
        listed: Sequence[Job],
        options: RunOptions,
        changed: Callable[[Job], None] = lambda job: None,
        jobs: int | None = None,
        devices: Sequence[str] = (),
        methods: Iterable[str] = (),
    ) -> None:
        self.jobs, self.options, self.changed = {job.folder: job for job in listed}, options, changed
        self.queue = [job for job in listed if job.state == QUEUED]
        self.most, self.devices, self.methods = jobs, devices, methods
        one = options.on_gpu and jobs == 1
        self.helped = [place for place in Pool.places(self) if place.partition(":")[0] in HELPED and not one]
        self.teams: dict[str, list[Worker]] = {place: [] for place in self.helped}  # the workers that share a device
        self.workers: list[Worker] = []
        self.began = monotonic()
        self.stopping = False
        self.about = ""  # where the jobs run, if that is not obvious

    def places(self) -> list[str]:
        """Return the device of each worker that trains."""
        if self.options.on_gpu:
            return list(self.devices) or [self.options.device]
        return [self.options.device] * (self.most or processors())

    def _hire(self, place: str, prepares: bool) -> Worker:
        lanes = (self.most or LANES) if self.options.on_gpu and not prepares else 1
        options = replace(self.options, device=place)
        return Worker(options, lanes, self.methods, prepares, self.teams.get(place, []))

    @property
    def busy(self) -> bool:
        """Whether any job is queued or running."""
        return bool(self.queue) or any(worker.lanes for worker in self.workers)

    def count(self, *states: str) -> int:
        """Return how many jobs are in these states."""
        return sum(job.state in states for job in self.jobs.values())

    def assign(self) -> None:
        """Start missing workers, give queued jobs to workers with room, and end those that have nothing to prepare."""
        next(filter(self._is_free, self._ready()), None)  # so that no worker starts for a run that another process has
        for places, prepares in ((self.places(), False), (self.helped, True)):
            for place in (Counter(places) - Counter(worker.place for worker in self._all(prepares))).elements():
                waiting = len(self._to_prepare(place) if prepares else self._ready())
                if waiting > sum(not worker.lanes for worker in self._all(prepares)):
                    self.workers.append(self._hire(place, prepares))
            while pair := next(self._matches(), None):
                self._begin(*pair)
        for worker in self._all(prepares=True):
            if not worker.lanes and not self._to_prepare(worker.place):
                worker.stop()  # it gives its memory back

    def _all(self, prepares: bool) -> list[Worker]:
        return [worker for worker in self.workers if worker.prepares == prepares]

    def _to_prepare(self, place: str) -> list[Job]:
        """Return the queued jobs that can be prepared at this place."""
        return [job for job in self._ready() if not (job.alone or job.prepared)] if place in self.helped else []

    def _ready(self) -> list[Job]:
        """Return the queued jobs without those that another process had a moment ago."""
        return [job for job in self.queue if job.not_before <= monotonic()]

    def _matches(self) -> Iterator[tuple[Job, Worker]]:
        """Yield queued jobs with workers that can run them next; the worker with the fewest jobs first."""
        for worker in sorted(self.workers, key=lambda worker: (worker.prepares, len(worker.lanes))):
            if job := self._next_for(worker):
                yield job, worker

    def _next_for(self, worker: Worker) -> Job | None:
        """Return the queued job that this worker may run next, beside those that run; None if there is none."""
        beside = [other for other in self._all(not worker.prepares) if other.place == worker.place]
        running = [self.jobs[folder] for each in (worker, *beside) for folder in each.lanes]
        if any(job.alone for job in running) or not worker.has_room():
            return None
        if worker.prepares:
            ahead = sum(job.prepared == worker.place for job in self.queue)
            return next(iter(self._to_prepare(worker.place)), None) if ahead < AHEAD else None
        itself = not worker.lanes or worker.place not in self.helped  # it may prepare a job itself
        company = running or beside  # an idle worker, too, takes some of the device's memory until it ends
        jobs = [job for job in self._ready() if not (job.alone and company) and (job.prepared or itself)]
        return min(jobs, key=lambda job: (job.alone, job.prepared != worker.place, not job.prepared), default=None)

    def _begin(self, job: Job, worker: Worker) -> None:
        if self._is_free(job):
            self.queue.remove(job)
            job.state, job.waits, job.began, job.line = RUNNING, True, monotonic(), {}
            worker.begin(job.experiment)

    def _is_free(self, job: Job) -> bool:
        """Return whether nobody has the run of a queued job, or has ended it; who has it is asked again later."""
        try:
            check_free(self.options.runs / job.folder)
        except Busy:
            self.queue.remove(job)
            self._wait(job, "another process runs it; this sweep comes back to it")
            return False
        except OSError:  # the run itself will tell
            pass
        if job.look(self.options.runs) is None:
            return True
        self.queue.remove(job)
        self.changed(job)
        return False

    def _wait(self, job: Job, reason: str) -> None:
        """Put a job that another process has at the end of the queue."""
        said, job.reason = job.reason == reason, reason
        job.state, job.not_before = QUEUED, monotonic() + AGAIN
        self.queue.append(job)
        if not said:
            self.changed(job)

    def attend(self, seconds: float = REFRESH) -> None:
        """Wait this long for events from the workers, handle them, and remove dead workers."""
        wait([worker.pipe for worker in self.workers], seconds)
        for worker in list(self.workers):
            ending = worker.dead()  # before its last events are read
            for event in worker.events():
                self._take(event, worker)
            if ending is not None:
                self._remove(worker, ending)

    def _take(self, event: Event, worker: Worker) -> None:
        job, about = self.jobs[event.folder], event.about
        if event.kind == "line":
            warned = job.warning
            job.update(about["line"])
            if job.warning != warned:
                self.changed(job)
        elif event.kind == "started":
            job.waits = False
            job.began = monotonic() - job.spent  # without the time that its process took to start
            if not job.prepared:
                self.changed(job)
        elif event.kind == "prepared":
            job.state, job.prepared, job.spent = QUEUED, worker.place, monotonic() - job.began
            self.queue.append(job)
        elif event.kind == "done":
            job.accuracy, job.reason = about["result"]["test"]["top1"], ""
            self._end(job, DONE)
        elif event.kind == "elsewhere":
            job.look(self.options.runs)
            self.changed(job)
        elif event.kind == "failed" and about["busy"]:
            self._wait(job, about["reason"])
        elif event.kind == "failed" and about["others_may_be_the_cause"]:
            self.helped = [place for place in self.helped if place != worker.place]  # one process less needs memory
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
            write_json(path, {**failure, "attempts": 1 + job.alone}, job.folder)
        except OSError as error:
            job.reason += f" (and {path} cannot be written: {error.strerror})"
        self._end(job, FAILED)

    def _end(self, job: Job, state: str) -> None:
        job.state, job.ended = state, monotonic()
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
