"""A sweep: many experiments, several at once; what fails or is killed is recorded, and the others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import Any

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..data import load
from ..models import MODELS, build
from ..running.processors import processors
from . import records
from .experiment import Experiment
from .folder import write_json
from .options import RunOptions
from .worker import Event, Worker

LANES = 4  # experiments at once on one accelerator
PATIENCE = 60.0  # seconds that runs have to save themselves
REFRESH = 0.5  # seconds between looks of the table
LATEST = 5  # finished runs in the table
QUEUED, RUNNING, DONE, FAILED, STOPPED, SKIPPED = "queued", "running", "done", "failed", "stopped", "skipped"


@dataclass(frozen=True)
class SweepResult:
    """How many experiments ended how, and the tables of records that were written.

    `failed` includes those that had failed before and were not tried again; `stopped` are all that are unfinished.
    """

    done: int
    failed: int
    stopped: int
    skipped: int
    tables: list[Path]


@dataclass
class Job:
    """An experiment of the sweep and what is known of it."""

    experiment: Experiment
    state: str = QUEUED
    reason: str = ""  # why it failed
    alone: bool = False  # nothing may run beside it in its process
    deaths: int = 0  # of its process
    attempts: int = 0
    accuracy: float | None = None  # of the test images at the end, before that of the last epoch
    line: dict[str, Any] = field(default_factory=dict)
    began: float = 0.0
    ended: float = 0.0
    mark: tuple[str, float, int] = ("", 0.0, 0)  # a stage, when its first line came, and how much was over then

    @property
    def folder(self) -> str:
        return self.experiment.folder

    @property
    def label(self) -> str:
        """Its folder without the hash."""
        return self.folder.rpartition("-")[0]

    @property
    def kind(self) -> tuple[str, str]:
        """Jobs of the same kind take about the same time."""
        return self.experiment.model, self.experiment.data

    def heard(self, line: dict[str, Any], now: float) -> None:
        """Take in a line of metrics."""
        self.line = line
        if self.mark[0] != line["stage"]:
            self.mark = (line["stage"], now, self.progress[0])
        seen = line.get("validation") or {"top1": line.get("accuracy")}
        self.accuracy = seen["top1"] if seen["top1"] is not None else self.accuracy

    @property
    def progress(self) -> tuple[int, int]:
        """How many rounds or epochs of the stage are over, and of how many."""
        what = "round" if "rounds" in self.line else "epoch"
        return self.line.get(what, -1) + 1, self.line.get(what + "s", 0)

    def left(self, now: float) -> float | None:
        """Seconds to its end, from the pace of the epochs; None before the second one has ended."""
        over, of = self.progress
        stage, since, before = self.mark
        if stage != "train" or over <= before or not of:
            return None
        return max((now - since) / (over - before) * (of - over), 0.0)


def sweep(
    experiments: Sequence[Experiment],
    place: RunOptions,
    *,
    jobs: int | None = None,
    retry_failed: bool = False,
    console: Console,
    stopping: Callable[[], bool] = lambda: False,
    summarize: bool = True,
) -> SweepResult:
    """Run the experiments that are not finished, several at once, and write the records of all runs at this place.

    On the CPU there are `jobs` processes of one thread, by default one for each processor; on a CUDA device one
    process takes turns with up to `jobs` experiments (4), as many as fit its memory. Equal experiments run once.
    One that failed stays so, unless `retry_failed`. When `stopping()` turns true, or on a KeyboardInterrupt, the
    runs save themselves; a KeyboardInterrupt while they do kills them.
    Without `summarize` nothing is printed at the end.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs={jobs}: at least one experiment has to run at a time")
    listed = _listed(experiments, place, retry_failed)
    _check([job.experiment for job in listed if job.state == QUEUED], place)
    place.runs.mkdir(parents=True, exist_ok=True)
    crew = Crew(listed, place, jobs)
    with Display(console, crew) as display:
        try:
            while crew.busy and not stopping():
                crew.assign()
                display.show(crew.attend())
        except KeyboardInterrupt:
            pass
        except BaseException:
            crew.dismiss(10.0)
            raise
        crew.dismiss(PATIENCE, display.show)
    return _concluded(crew, place, console if summarize else Console(quiet=True))


def _listed(experiments: Sequence[Experiment], place: RunOptions, retry_failed: bool) -> list[Job]:
    """A job for each different experiment, with what its folder says of it."""
    listed = [Job(one) for one in dict.fromkeys(one.resolved(place.device) for one in experiments)]
    for job in listed:
        row = records.record(place.runs / job.folder)
        if row is None or (row["status"] == records.FAILED and retry_failed):
            continue
        job.state = SKIPPED if row["status"] == records.DONE else FAILED
        job.reason, job.accuracy = row["reason"] or "", row["top1"]
        if row["status"] == records.UNREADABLE:
            job.reason += f"; delete {place.runs / job.folder} to run it again"
    return listed


def _check(experiments: Sequence[Experiment], place: RunOptions) -> None:
    """Say before anything starts what would fail every run: no device, an unknown network, data that are not there."""
    if not experiments:
        return
    if place.device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here; use --device cpu")
    for model in dict.fromkeys(one.model for one in experiments):
        if ":" not in model and model not in MODELS:
            build(model, classes=10, size=32)  # says which there are
    for data in dict.fromkeys(one.data for one in experiments):
        load(data, place.data_root, download=place.download)  # once, not in each process


class Crew:
    """The jobs, and the workers at them."""

    def __init__(self, jobs: Sequence[Job], place: RunOptions, most: int | None = None) -> None:
        self.jobs, self.place = {job.folder: job for job in jobs}, place
        self.queue = [job for job in jobs if job.state == QUEUED]
        self.workers: list[Worker] = []
        self.began = monotonic()
        self.stopping = False
        self.lanes = (most or LANES) if place.device.startswith("cuda") else 1  # of a worker
        self.most = (most or processors()) if place.device == "cpu" else 1  # workers
        self.tables = Tables(place.runs)

    @property
    def busy(self) -> bool:
        """Whether anything is still to do."""
        return bool(self.queue) or any(worker.lanes for worker in self.workers)

    def assign(self) -> None:
        """Give queued jobs to the workers that have room, and to new ones."""
        for worker in self.workers:
            while job := self._next_for(worker):
                self._begin(job, worker)
        while self.queue and len(self.workers) < self.most:
            self.workers.append(Worker(self.place))
            self._begin(self.queue[0], self.workers[-1])

    def _next_for(self, worker: Worker) -> Job | None:
        """The job that this worker may begin beside what it does."""
        if not worker.lanes:
            return self.queue[0] if self.queue else None
        full = len(worker.lanes) >= self.lanes or not worker.roomy()
        if full or any(self.jobs[folder].alone for folder in worker.lanes):
            return None
        return next((job for job in self.queue if not job.alone), None)

    def _begin(self, job: Job, worker: Worker) -> None:
        self.queue.remove(job)
        job.state, job.began, job.line, job.mark = RUNNING, monotonic(), {}, ("", 0.0, 0)
        job.attempts += 1
        worker.begin(job.experiment)

    def attend(self, seconds: float = REFRESH) -> list[str]:
        """Wait for news, take them in, clear away dead workers; a line for each job that has begun or ended."""
        wait([worker.pipe for worker in self.workers], seconds)
        news: list[str] = []
        for worker in list(self.workers):
            ended = worker.dead()  # asked before the last events are read
            for event in worker.events():
                news += self._take(event, beside=bool(worker.lanes))
            if ended is not None:
                news += self._bury(worker, ended)
        return news

    def _take(self, event: Event, beside: bool) -> Iterator[str]:
        """Take in an event; `beside` says that other experiments are running in that process."""
        job, about = self.jobs[event.folder], event.about
        if event.kind == "line":
            job.heard(about["line"], monotonic())
        elif event.kind == "started":
            job.began = monotonic()  # before, its process had to start
            yield said(job)
        elif event.kind == "done":
            job.accuracy, job.reason = about["result"]["test"]["top1"], ""
            yield self._end(job, DONE)
        elif event.kind == "failed" and about.get("busy"):
            job.reason = about["reason"]  # it is in good hands
            yield self._end(job, STOPPED)
        elif event.kind == "failed" and (about["full"] or about["broken"]) and beside:
            yield self._again(job, about["reason"])  # perhaps not its own fault
        elif event.kind == "failed":
            yield self._fail(job, about["reason"], about["traceback"])
        elif event.kind == "stopped":
            yield self._lose(job, "the process was told to stop (SIGTERM)", "")

    def _bury(self, worker: Worker, ended: str) -> Iterator[str]:
        """Remove a dead worker; what it was at is tried once more, alone."""
        self.workers.remove(worker)
        lost, output = [self.jobs[folder] for folder in worker.lanes], worker.output()
        worker.close(0.0)
        for job in lost:
            yield self._lose(job, ended, output)

    def _lose(self, job: Job, why: str, output: str) -> str:
        if self.stopping:
            return self._end(job, STOPPED)
        job.deaths += 1
        return self._again(job, why) if job.deaths == 1 else self._fail(job, why, output)

    def _again(self, job: Job, why: str) -> str:
        """Back to the end of the queue, to be alone in its process."""
        job.alone, job.state, job.reason = True, QUEUED, why
        self.queue.append(job)
        return said(job)

    def _fail(self, job: Job, why: str, details: str) -> str:
        """Write down the failure; a full disk must not end the sweep."""
        path = self.place.runs / job.folder / records.FAILURE
        job.reason = why
        failure = {"experiment": job.experiment.to_dict(), "reason": why, "traceback": details}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, failure | {"attempts": _attempts(path) + job.attempts})
        except OSError as error:
            job.reason += f" (and {path} cannot be written: {error.strerror})"
        return self._end(job, FAILED)

    def _end(self, job: Job, state: str) -> str:
        job.state, job.ended = state, monotonic()
        if state == DONE:
            with suppress(OSError):
                (self.place.runs / job.folder / records.FAILURE).unlink(missing_ok=True)
        if state in (DONE, FAILED):
            self.tables.refresh()
        return said(job)

    def dismiss(self, patience: float, show: Callable[[Sequence[str]], None] = lambda news: None) -> None:
        """Let every run save itself and end, for so many seconds; then, or on a KeyboardInterrupt, kill the workers."""
        self.stopping = True
        until = monotonic() + patience
        try:
            if self.count(RUNNING):
                show([f"stopping {self.count(RUNNING)} runs, which save themselves; interrupt again to kill them"])
            for worker in self.workers:
                worker.stop()
            while any(worker.lanes for worker in self.workers) and monotonic() < until:
                show(self.attend())
            for worker in self.workers:
                worker.close(5.0 if not worker.lanes else 0.0)
        except KeyboardInterrupt:
            for worker in self.workers:
                with suppress(ValueError):  # closed already
                    worker.close(0.0)
        self.workers.clear()
        show([self._end(job, STOPPED) for job in self.jobs.values() if job.state == RUNNING])

    def count(self, *states: str) -> int:
        """How many jobs are in these states."""
        return sum(job.state in states for job in self.jobs.values())

    def left(self, now: float) -> float | None:
        """Seconds to the end of the sweep, from what ended runs took and the pace of those that run; None before."""
        running = [job for job in self.jobs.values() if job.state == RUNNING]
        took = [(job, job.ended - job.began) for job in self.jobs.values() if job.state == DONE]
        took += [(job, now - job.began + left) for job in running if (left := job.left(now)) is not None]
        if not took:
            return None

        def expected(job: Job) -> float:
            same = [seconds for other, seconds in took if other.kind == job.kind]
            return fmean(same or [seconds for _, seconds in took])

        lefts = []
        for job in running:
            left = job.left(now)
            lefts.append(max(expected(job) - (now - job.began), 0.0) if left is None else left)
        whole = sum(lefts) + sum(expected(job) for job in self.queue)
        return max([*lefts, whole / max(len(running), 1)])


def _attempts(failure: Path) -> int:
    """How often it was tried before."""
    try:
        return int(records.read(failure)["attempts"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


class Tables:
    """The tables of records, kept up to date with at most a twentieth of the time."""

    def __init__(self, runs: Path) -> None:
        self.runs, self.due = runs, 0.0

    def refresh(self) -> None:
        """Write them, unless it is too soon; trouble with it is told when they are written for the last time."""
        began = monotonic()
        if began >= self.due:
            with suppress(OSError):
                records.write(records.records(self.runs), self.runs)
            self.due = monotonic() + 20 * (monotonic() - began)


def _concluded(crew: Crew, place: RunOptions, console: Console) -> SweepResult:
    """Write the tables for the last time and say what came of it all."""
    rows = records.records(place.runs)
    tables = records.write(rows, place.runs)

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    if own := [row for row in rows if row["folder"] in crew.jobs]:
        console.print(records.summary(own))
    outcome = SweepResult(
        done=crew.count(DONE),
        failed=crew.count(FAILED),
        stopped=crew.count(QUEUED, RUNNING, STOPPED),
        skipped=crew.count(SKIPPED),
        tables=tables,
    )
    for job in crew.jobs.values():
        if job.state == FAILED:
            say(f"failed: {place.runs / job.folder}: {job.reason}")
    before = f", {outcome.skipped} done before" if outcome.skipped else ""
    say(f"{outcome.done} done{before}, {outcome.failed} failed, in {clock(monotonic() - crew.began)}.")
    if outcome.failed:
        say("The tracebacks are in failure.json of their folders; --retry-failed runs them again.")
    say(f"Records: {', '.join(map(str, tables))}")
    if len(tables) == 1:
        say("For Parquet beside it: pip install 'barebones[lab]'")
    if outcome.stopped:
        say(f"{outcome.stopped} unfinished; the same command goes on where they stopped.")
    return outcome


class Display:
    """What the user sees: a live table in a terminal, else a line for each run that starts or ends."""

    def __init__(self, console: Console, crew: Crew) -> None:
        self.console, self.crew = console, crew
        self.live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self.drawn = 0.0

    def __enter__(self) -> Display:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def show(self, news: Sequence[str]) -> None:
        """The present state."""
        if self.live is None:
            for line in news:
                self.console.print(line, markup=False, highlight=False, soft_wrap=True)
        elif monotonic() - self.drawn >= REFRESH:
            self.drawn = monotonic()
            self.live.update(table(self.crew, self.drawn, self.console.size.height), refresh=True)


def said(job: Job) -> str:
    """The state of a job in one line."""
    if job.state == RUNNING:
        return f"started  {job.label}"
    if job.state == DONE:
        return f"done     {job.label}: test accuracy {percent(job.accuracy)}, {clock(job.ended - job.began)}"
    if job.state == QUEUED:
        return f"again    {job.label}, alone: {job.reason}"
    return f"{job.state:<8} {job.label}" + (f": {job.reason}" if job.state in (FAILED, STOPPED) and job.reason else "")


def table(crew: Crew, now: float, height: int) -> Group:
    """Counts and times; then what runs, what was finished last and what has failed, in fewer than `height` lines."""
    counts = ", ".join(f"{crew.count(state)} {state}" for state in (QUEUED, RUNNING, DONE, FAILED))
    before = f"; {n} done before" if (n := crew.count(SKIPPED)) else ""
    left = crew.left(now)
    times = f"{clock(now - crew.began)} elapsed" + (f", about {clock(left)} left" if left is not None else "")
    saving = crew.stopping and crew.count(RUNNING)
    note = "; stopping, the runs save themselves; Ctrl-C again kills them" if saving else ""

    room = max(height - 3, 3)
    of = {state: [job for job in crew.jobs.values() if job.state == state] for state in (RUNNING, DONE, FAILED)}
    running = of[RUNNING][: max(room // 2, 1)]
    ended = sorted(of[DONE], key=lambda job: -job.ended)[: min(LATEST, room // 4)]
    room -= len(running) + len(ended)
    hidden = len(of[FAILED]) - room + 1 if len(of[FAILED]) > room else 0
    failed = [f"failed   {job.label}: {job.reason}" for job in of[FAILED][: len(of[FAILED]) - hidden]]
    failed += [f"failed   … and {hidden} more"] if hidden else []

    rows = Table.grid(padding=(0, 2))
    for number in range(6):
        rows.add_column(no_wrap=True, overflow="ellipsis", justify="left" if number < 3 else "right")
    for job in running:
        over, whole = job.progress
        done = f"{over}/{whole}" if whole else ""
        own = job.left(now)
        eta = f"{clock(own)} left" if own is not None else ""
        rows.add_row("running", Text(job.label), job.line.get("stage", ""), done, percent(job.accuracy), eta)
    for job in ended:
        spent = clock(job.ended - job.began)
        rows.add_row("done", Text(job.label), "", "", percent(job.accuracy), spent, style="green")
    header = (_short(counts + before, "bold"), _short(times + note, "bold"))
    return Group(*header, rows, *(_short(line, "red") for line in failed))


def _short(line: str, style: str) -> Text:
    return Text(line, style, no_wrap=True, overflow="ellipsis")


def percent(accuracy: float | None) -> str:
    """
    >>> percent(0.9123), percent(None)
    ('91.23 %', '')
    """
    return "" if accuracy is None else f"{100 * accuracy:.2f} %"


def clock(seconds: float) -> str:
    """
    >>> clock(7), clock(3750)
    ('0:07', '1:02:30')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
