"""The jobs of a sweep, as its workers tell about them, and their display: a live table, or sentences."""

import json
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..experiment.experiment import Experiment
from ..records import records
from ..records.tables import Row
from ..run.heartbeat import clock
from ..run.metrics import COUNTED

BUSY = "another process runs it; this sweep comes back to it"
LATEST = 5  # finished runs in the table, and as many failed ones
QUEUED, RUNNING, DONE, FAILED, STOPPED, SKIPPED = "queued", "running", "done", "failed", "stopped", "skipped"


@dataclass
class Job:
    """An experiment of the sweep, its state and its progress."""

    experiment: Experiment
    state: str = QUEUED  # also while a worker has it, but does not own its folder yet
    reason: str = ""  # why it failed, waits or is tried again
    alone: bool = False  # it is tried a second time, alone on its device
    accuracy: float | None = None  # on the test images when done, else the latest one
    warning: str = ""  # what is wrong with its masks
    short: str = ""  # the same in a few words
    line: dict[str, Any] = field(default_factory=dict)  # the latest line of metrics
    source: Path | None = None  # what its worker tells
    began: float = 0.0
    ended: float = 0.0

    @property
    def label(self) -> str:
        return self.experiment.folder.rpartition("-")[0]

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
        row = records.record(runs / self.experiment.folder, self.experiment)
        if row is not None and not (self.state == DONE and row["status"] == records.DONE):
            self.state = SKIPPED if row["status"] == records.DONE else FAILED
            self.reason, self.accuracy = row["reason"] or "", row["top1"]
        return row

    def hear(self, source: Path, changes: dict[str, Any]) -> bool:
        """Take what a worker tells; return whether that is worth a sentence."""
        waits = changes.get("state") == QUEUED and not changes.get("alone")
        if waits and (self.reason == changes["reason"] or (self.state == RUNNING and self.source != source)):
            return False  # that is known, or another worker of this sweep has it
        vars(self).update(changes)
        if "line" in changes:
            latest = self.line.get("validation") or {"top1": self.line.get("accuracy")}
            self.accuracy = latest["top1"] if latest["top1"] is not None else self.accuracy
        self.source = source
        return "line" not in changes


class Jobs:
    """The jobs of a sweep, as its workers tell."""

    def __init__(self, listed: Iterable[Job], runs: Path) -> None:
        self.all, self.runs = {job.experiment.folder: job for job in listed}, runs
        self.heard: dict[Path, int] = {}  # bytes of each file
        self.over: list[Job] = []  # which a worker found ended; what its own worker told may be read after that
        self.began, self.stopping = monotonic(), False

    def count(self, *states: str) -> int:
        return sum(job.state in states for job in self.all.values())

    def read(self, folder: Path) -> Iterator[Job]:
        """Read what the workers have told since the last call; yield each job that begins or ends."""
        over, self.over = self.over, []
        for path in folder.glob("*/*.jsonl"):
            with path.open("rb") as file:
                file.seek(self.heard.get(path, 0))
                text = file.read().rpartition(b"\n")[0]
            self.heard[path] = self.heard.get(path, 0) + len(text) + bool(text)
            for line in text.splitlines():
                changes: dict[str, Any] = {}
                with suppress(ValueError):  # a full disk may have cut it
                    changes = json.loads(line)
                job = self.all.get(changes.pop("run", ""))
                if job is not None and changes.get("state") == SKIPPED:
                    self.over.append(job)
                elif job is not None and job.hear(path, changes):
                    yield job
        yield from (job for job in over if job.state in (QUEUED, RUNNING) and job.look(self.runs) is not None)

    def stop(self) -> Iterator[Job]:
        """Note that no job runs any more, and yield those that did."""
        for job in self.all.values():
            if job.state == RUNNING:
                job.state = STOPPED
                yield job

    def left(self, now: float) -> float | None:
        """Estimate the seconds to the end of the sweep from the time per finished job; None before the first one."""
        done = self.count(DONE)
        return (now - self.began) / done * self.count(QUEUED, RUNNING) if done else None


def live_table(jobs: Jobs, console: Console) -> AbstractContextManager[Any]:
    """Return a context in which a terminal shows the table of a sweep; elsewhere it does nothing."""
    if not console.is_terminal:
        return nullcontext()

    def draw() -> RenderableType:
        over = jobs.stopping and not jobs.count(RUNNING)
        return "" if over else table(jobs, monotonic())  # Rich cuts a table that is too high, and cannot erase it

    return Live(get_renderable=draw, console=console, refresh_per_second=2, transient=True)


def sentence(job: Job) -> str:
    if job.state == RUNNING and job.warning:
        return f"warning  {job.label}: {job.warning}"
    if job.state == RUNNING:
        return f"started  {job.label}"
    if job.state == DONE:
        return f"done     {job.label}: test accuracy {percent(job.accuracy)}, {clock(job.ended - job.began)}"
    if job.state == QUEUED:
        waits = f"busy     {job.label}" if job.reason == BUSY else f"again    {job.label}, alone"
        return f"{waits}: {job.reason}"
    if job.state == SKIPPED:
        return f"skipped  {job.label}: another process has finished it"
    return f"{job.state:<8} {job.label}" + (f": {job.reason}" if job.state == FAILED else "")


def status(jobs: Jobs) -> str:
    """Return in one line how many jobs are in which state, and how far the first jobs are."""
    running = [job for job in jobs.all.values() if job.state == RUNNING]
    told = [f"{job.label}: {job.line['stage']} {job.progress}" for job in running[:LATEST] if job.line]
    return "; ".join([_counts(jobs), *told])


def _counts(jobs: Jobs) -> str:
    return ", ".join(f"{jobs.count(state)} {state}" for state in (QUEUED, RUNNING, DONE, FAILED))


def table(jobs: Jobs, now: float) -> Group:
    """Return counts and times, then the running jobs and the latest that failed or finished."""
    before = f"; {skipped} done before" if (skipped := jobs.count(SKIPPED)) else ""
    left = jobs.left(now)
    times = f"{clock(now - jobs.began)} elapsed" + (f", about {clock(left)} left" if left is not None else "")
    rows = Table.grid(padding=(0, 2))
    for justify in ("left", "left", "left", "right", "right", "left"):
        rows.add_column(no_wrap=True, overflow="ellipsis", justify=justify)
    shown = {state: [job for job in jobs.all.values() if job.state == state] for state in (RUNNING, DONE, FAILED)}
    for job in shown[RUNNING]:
        stage = job.line.get("stage", "")
        rows.add_row("running", Text(job.label), stage, job.progress, percent(job.accuracy), _alarm(job))
    for job in sorted(shown[DONE], key=lambda job: -job.ended)[:LATEST]:
        cells = "done", Text(job.label), "", clock(job.ended - job.began), percent(job.accuracy), _alarm(job)
        rows.add_row(*cells, style="green")
    failed = [_one_line(sentence(job), "red") for job in sorted(shown[FAILED], key=lambda job: -job.ended)[:LATEST]]
    return Group(_one_line(_counts(jobs) + before, "bold"), _one_line(times, "bold"), *failed, rows)


def _alarm(job: Job) -> Text:
    return Text(job.short, "red" if job.short.startswith("collapsed") else "yellow")


def _one_line(text: str, style: str) -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def percent(accuracy: float | None) -> str:
    """Return an accuracy in percent; nothing if it is not known.

    >>> percent(0.9123), percent(None)
    ('91.23 %', '')
    """
    return "" if accuracy is None else f"{100 * accuracy:.2f} %"
