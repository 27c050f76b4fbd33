"""The pool of a sweep: its jobs, the processes that run them, and what happens when one fails or dies."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from pathlib import Path
from time import monotonic
from typing import Any

from ...gpu import mps
from ...running.devices import processors
from ..experiment.experiment import Experiment
from ..records import records
from ..records.tables import Row
from ..run.folder import FAILURE, write_json
from ..run.lock import Busy, check_free
from ..run.metrics import COUNTED
from ..run.options import RunOptions
from .worker import ENDING, Worker

REFRESH = 0.5  # seconds to wait for events
AGAIN = 1.0  # seconds until the sweep comes back to a run that another process has
ON_A_GPU = 4  # experiments at a time
QUEUED, RUNNING, DONE, FAILED, STOPPED, SKIPPED = "queued", "running", "done", "failed", "stopped", "skipped"


@dataclass
class Job:
    """An experiment of the sweep, its state and its progress."""

    experiment: Experiment
    state: str = QUEUED  # also while a worker has it, but does not own its folder yet
    reason: str = ""  # why it failed, waits or is tried again
    not_before: float = 0.0  # another process has it; when to look again
    alone: bool = False  # it is tried a second time, and no other job may run beside it on its device
    accuracy: float | None = None  # on the test images when done, else the latest one
    warning: str = ""  # what is wrong with its masks
    short: str = ""  # the same in a few words
    line: dict[str, Any] = field(default_factory=dict)  # the latest line of metrics
    began: float = 0.0
    ended: float = 0.0

    @property
    def folder(self) -> str:
        return self.experiment.folder

    @property
    def label(self) -> str:
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
        if "warning" in line:
            self.warning, self.short = line["warning"], line["short"]
            return
        self.line = line
        latest = line.get("validation") or {"top1": line.get("accuracy")}
        self.accuracy = latest["top1"] if latest["top1"] is not None else self.accuracy


class Pool:
    """The jobs of a sweep, and the processes that run them. `changed` is called for each job that begins or ends."""

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
        self.most, self.devices = jobs, devices
        self.workers = [Worker(replace(options, device=place), methods) for place in self.places()]
        self.began = monotonic()
        self.stopping = False
        self.about = ""  # where the jobs run, if that is not obvious

    def places(self) -> list[str]:
        """Return the device of each worker, in the order in which they start: every GPU gets its first one first."""
        if self.options.on_gpu:
            return (list(self.devices) or [self.options.device]) * (self.most or ON_A_GPU)
        return [self.options.device] * (self.most or (processors() if self.options.device == "cpu" else 1))

    def sharing(self) -> AbstractContextManager[bool]:
        """Return a context that lets workers share a GPU; it says whether they can."""
        return mps.service() if self.options.on_gpu and self.most != 1 else nullcontext(True)

    @property
    def busy(self) -> bool:
        return bool(self.queue) or any(worker.folder for worker in self.workers)

    def count(self, *states: str) -> int:
        return sum(job.state in states for job in self.jobs.values())

    def assign(self) -> None:
        """Give queued jobs to idle workers; those that have no process come last, and start one."""
        for worker in sorted(self.workers, key=lambda worker: worker.process is None):
            if not worker.folder and (job := self._next_at(worker.place)) is not None:
                self.queue.remove(job)
                job.line = {}
                worker.begin(job.experiment)

    def _next_at(self, place: str) -> Job | None:
        """Return the next job of the queue for a device; one that is alone waits until all others have ended there."""
        running = [self.jobs[worker.folder] for worker in self.workers if worker.place == place and worker.folder]
        if any(job.alone for job in running):
            return None
        jobs = [job for job in self.queue if job.not_before <= monotonic() and not (job.alone and running)]
        return next(filter(self._is_free, sorted(jobs, key=lambda job: job.alone)), None)

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
        """Wait this long for events from the workers, and handle them; what a dead one ran is tried again, alone."""
        wait([worker.pipe for worker in self.workers if worker.process], seconds)
        for worker in self.workers:
            ending = worker.dead()  # before its last events are read
            for folder, event in worker.events():
                self._take(self.jobs[folder], event.kind, event.about)
            if ending is not None:
                folder, output = worker.folder, worker.output()
                worker.close()
                if folder:
                    self._lose(self.jobs[folder], ending, output, again=True)

    def _take(self, job: Job, kind: str, about: dict[str, Any]) -> None:
        if kind == "line":
            warned = job.warning
            job.update(about["line"])
            if job.warning != warned:
                self.changed(job)
        elif kind == "started":
            job.state, job.began = RUNNING, monotonic()  # without the time that its process took to start
            self.changed(job)
        elif kind == "done" and job.state == RUNNING:
            job.accuracy, job.reason = about["top1"], ""
            self._end(job, DONE)
        elif kind == "done":  # another process has finished it
            job.look(self.options.runs)
            self.changed(job)
        elif "busy" in about:
            self._wait(job, about["reason"])
        else:
            self._lose(job, **about)

    def _lose(self, job: Job, reason: str, details: str, again: bool) -> None:
        """Handle a job that failed, or whose process ended: queue it `again`, to run alone, or record the failure."""
        if again and self.stopping:
            self._end(job, STOPPED)
        elif again and not job.alone:
            job.alone, job.state, job.reason = True, QUEUED, reason
            self.queue.append(job)
            self.changed(job)
        else:
            path, job.reason = self.options.runs / job.folder / FAILURE, reason
            failure = {"experiment": job.experiment.to_dict(), "reason": reason, "traceback": details}
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_json(path, {**failure, "attempts": 1 + job.alone}, job.folder)
            except OSError as error:  # a full disk does not end the sweep
                job.reason += f" (and {path} cannot be written: {error.strerror})"
            self._end(job, FAILED)

    def _end(self, job: Job, state: str) -> None:
        job.state, job.ended = state, monotonic()
        self.changed(job)

    def dismiss(self, patience: float) -> None:
        """Tell every run to save and end; kill the workers after `patience` seconds or on a KeyboardInterrupt."""
        self.stopping, until = True, monotonic() + patience
        try:
            for worker in self.workers:
                worker.stop()
            while any(worker.folder for worker in self.workers) and monotonic() < until:
                self.attend()
            for worker in self.workers:
                worker.close(0.0 if worker.folder else ENDING)
        except KeyboardInterrupt:
            for worker in self.workers:
                worker.close()
        for job in self.jobs.values():
            if job.state == RUNNING:
                self._end(job, STOPPED)

    def left(self, now: float) -> float | None:
        """Estimate the seconds to the end of the sweep from the time per finished job; None before the first one."""
        done = self.count(DONE)
        return (now - self.began) / done * self.count(QUEUED, RUNNING) if done else None
