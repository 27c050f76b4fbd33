"""The parent's side of a task: a worker that runs one experiment at a time somewhere in a cluster."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, Self

from ...experiment import recipes
from ...experiment.experiment import Experiment
from ...run import lock
from ...run.metrics import METRICS, Line, read
from ...run.options import RunOptions
from ..lanes import Event, failure
from .task import UNSHARED, Task

TAIL = 8_000  # characters of a lost task's output to keep
STOPPED = '[["stopped", {}]]'  # what a task returns that was stopped


class Lost(NamedTuple):
    """How a task ended that returned nothing: the reason in words, and what it printed."""

    reason: str
    output: str


class Cluster(ABC):
    """An engine whose workers are tasks on other machines. Their notes are in a hidden folder among the runs."""

    shares = False  # whether several tasks share a GPU

    def __init__(self, options: RunOptions) -> None:
        self.options = options
        self.folder = options.runs.absolute() / f".tasks-{secrets.token_hex(4)}"

    @abstractmethod
    def places(self) -> list[str]:
        """Return a name for each task that there may be at a time."""

    @abstractmethod
    def wait(self, workers: Sequence[Remote], seconds: float) -> None:
        """Wait this long, or until one of the tasks has ended."""

    @abstractmethod
    def submit(self, task: Task, alone: bool) -> Any:
        """Give a task to the cluster; return what stands for it."""

    @abstractmethod
    def ending(self, job: Any) -> str | Lost | None:
        """Return what the task has returned, or how it was lost; None while it waits or runs."""

    @abstractmethod
    def cancel(self, job: Any) -> None:
        """End a task at once, or forget it if it waits."""

    def helped(self) -> list[str]:
        """Return no place: a task prepares its experiment itself."""
        return []

    def hire(self, place: str, prepares: bool) -> Remote:
        """Return a worker; it takes no room in the cluster before it gets an experiment."""
        return Remote(place, self)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        """Delete the notes, which also stops tasks that still run."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Remote:
    """A worker that runs one experiment at a time, as a task of a cluster."""

    prepares = False

    def __init__(self, place: str, cluster: Cluster) -> None:
        self.place, self.cluster = place, cluster
        self.lanes: list[str] = []
        self.job: Any = None  # what stands for the task in the cluster
        self.lost: Lost | None = None

    def has_room(self) -> bool:
        """Return whether it is idle: a task has one experiment."""
        return not self.lanes

    def begin(self, experiment: Experiment, alone: bool) -> None:
        """Give the experiment to the cluster, as soon as no process owns its folder."""
        options, note = self.cluster.options, self.cluster.folder / secrets.token_hex(8)
        note.touch()
        modules = tuple(os.path.abspath(folder) for folder in sys.path)
        self.task = Task(experiment, options, note, Path.cwd(), modules, tuple(recipes.IMPORTED))
        self.lanes, self.alone, self.begun = [experiment.folder], alone, False
        self.ended: str | None = None  # what the task would have returned
        self.given_up_at = monotonic() + 1.1 * lock.MISSED * lock.RENEWED_EVERY
        self.lines = followed(options.folder(experiment) / METRICS)
        self._submit()

    def _submit(self) -> None:
        """Submit the task if its folder is free. If its owner has died on another node, that takes a while to see."""
        try:
            lock.check_free(self.cluster.options.folder(self.task.experiment))
            self.job = self.cluster.submit(self.task, self.alone)
        except lock.Busy as error:
            if monotonic() > self.given_up_at:
                self.ended = json.dumps([("failed", failure(error))])

    def events(self) -> Iterator[Event]:
        """Yield that the task has begun, its latest line of metrics, and how it ended."""
        if not self.lanes or self.lost:
            return
        if self.job is None and self.ended is None:
            self._submit()
        ending = self.ended or (self.cluster.ending(self.job) if self.job is not None else None)
        if isinstance(ending, Lost):
            self.lost = ending
            return
        folder, last = self.lanes[0], json.loads(ending) if ending else []
        if not self.begun and self._has_begun():
            self.begun = True
            yield Event("started", folder)
        for line in self.lines():
            yield Event("line", folder, {"line": line})
        if last:
            self.lanes, self.job = [], None
            self.task.note.unlink(missing_ok=True)
        for kind, about in last:
            if kind == UNSHARED:
                runs = self.cluster.options.runs.absolute()
                raise ValueError(
                    f"node {about['node']} does not see {runs}; name a folder with --runs that all nodes share"
                )
            if kind == "failed":
                about["others_may_be_the_cause"] &= self.cluster.shares and not self.alone
            yield Event(kind, folder, about)

    def _has_begun(self) -> bool:
        return self.task.note.exists() and self.task.note.stat().st_size > 0

    def dead(self) -> str | None:
        """Return how the task was lost."""
        return self.lost.reason if self.lost else None

    def output(self) -> str:
        """Return the end of what the lost task printed."""
        return self.lost.output[-TAIL:] if self.lost else ""

    def stop(self) -> None:
        """Tell the task to save and end; one that waits in the cluster is canceled."""
        if self.lanes and not self._has_begun():
            self._cancel()
            self.ended = self.ended or STOPPED
        if self.lanes:
            self.task.note.unlink(missing_ok=True)

    def _cancel(self) -> None:
        if self.job is not None:
            self.cluster.cancel(self.job)

    def close(self, patience: float) -> None:
        """End the task at once, if it still runs."""
        if self.lanes:
            self._cancel()
            self.task.note.unlink(missing_ok=True)


def followed(path: Path) -> Callable[[], Iterator[Line]]:
    """Return a function that yields the last line of a metrics file, if the file has changed since the last call."""
    seen = _stamp(path)

    def latest() -> Iterator[Line]:
        nonlocal seen
        if (stamp := _stamp(path)) == seen:
            return
        seen = stamp
        with suppress(ValueError):  # it is damaged, which the run itself will tell
            yield from read(path)[-1:]

    return latest


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        about = path.stat()
    except FileNotFoundError:
        return None
    return about.st_ino, about.st_mtime_ns, about.st_size
