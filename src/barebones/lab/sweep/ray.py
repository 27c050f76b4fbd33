"""Sweeps on a Ray cluster: one task per GPU or node. They share the folder of the runs, which is the queue."""

import logging
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

from ...messages import first_line
from ..experiment import recipes
from ..experiment.experiment import Experiment
from ..run import metrics
from ..run.lock import Busy, check_free
from ..run.options import RunOptions
from .pool import DONE, QUEUED, REFRESH, RUNNING, SKIPPED, Job, Pool

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would tell its makers about a cluster that it starts
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^")  # Ray would print 20 lines of its own about a node that dies
try:
    import ray
    from ray import exceptions
except ImportError:
    raise ImportError("--engine ray needs Ray: pip install 'barebones[ray]'") from None

RETRIES = 20  # how often Ray starts a task anew whose process or node has died
SAVING = 60.0  # seconds that the runs of a task have to save
PATIENCE = 10.0  # seconds to wait for an address to answer
LOOK = 5.0  # seconds between looks at the cluster, and at the runs
LOST = 20.0  # seconds without the head of the cluster; Ray aborts us after 60


def work(experiments: list[Experiment], options: RunOptions, jobs: int | None, note: Path, *here: Any) -> None:
    """Run in a task: take runs that nobody has, until all have ended, or until the note among them is gone.

    `here` is the working folder of the sweep, its `sys.path`, and the recipes that it has imported.
    """
    folder, path, sources = here
    if not note.exists():
        node, runs = socket.gethostname(), options.runs
        raise ValueError(f"node {node} does not see {runs}; name a folder with --runs that all nodes share")
    os.chdir(folder)
    sys.path[:] = [*path, *(each for each in sys.path if each not in path)]
    for source in sources:
        recipes.imported(source)
    pool = Pool([Job(each) for each in experiments], options, jobs=jobs, methods={each.method for each in experiments})
    with pool.sharing():
        while pool.busy and note.exists():
            pool.assign()
            pool.attend()
        pool.dismiss(SAVING)


class Cluster(Pool):
    """The tasks on a Ray cluster. How far the jobs are is in the folders of their runs."""

    settings: dict[str, Any]  # options of a Ray task
    note: Path  # while it is there, the tasks go on
    head: str  # its address
    heard = read = 0.0  # when the head last answered, and when the folders were last read
    taken: list[int]  # the places of all tasks
    calls: set[Any]  # for what the tasks return that have not ended

    def nodes(self) -> list[int]:
        """Return a 1 for each GPU, or the CPUs of each node."""
        if self.options.on_gpu:
            return [1] * int(ray.cluster_resources().get("GPU", 0))
        return [int(cpus) for node in ray.nodes() if node["Alive"] and (cpus := node["Resources"].get("CPU"))] or [1]

    @property
    def busy(self) -> bool:
        return bool(self.queue or self.calls)

    def assign(self) -> None:
        """Start a task at each place that has none, also at places that have come later."""
        if monotonic() < self.heard + LOOK:
            return
        try:
            knock(self.head)  # Ray itself would wait, and abort this process
        except OSError as error:
            if monotonic() < self.heard + LOST:
                return
            why = f"the Ray cluster {self.head} does not answer ({first_line(error)})"
            raise ValueError(f"{why}; run the same command again when it does, to resume the sweep") from error
        self.heard = monotonic()
        waiting = [job.experiment for job in self.jobs.values() if job.state in (QUEUED, RUNNING)]
        missing = Counter(self.nodes()) - Counter(self.taken)
        for place in sorted(missing.elements(), reverse=True):
            if len(self.taken) < len(waiting):
                self._start(place, waiting)
        self.queue = []

    def _start(self, place: int, experiments: list[Experiment]) -> None:
        options = replace(self.options, runs=self.options.runs.absolute())
        jobs = self.most if options.on_gpu else min(self.most or place, place)
        here = Path.cwd(), [os.path.abspath(folder) for folder in sys.path], list(recipes.IMPORTED)
        wanted = {"num_gpus": 1} if options.on_gpu else {"num_cpus": place}
        name = {"name": f"barebones sweep in {options.runs.name}", "max_retries": RETRIES}
        try:
            task: Any = ray.remote(work).options(**name | wanted | self.settings)
            self.calls.add(task.remote(experiments, options, jobs, self.note, *here))
        except (ValueError, TypeError, AssertionError) as error:
            raise ValueError(f"Ray does not take these options of --engine ray: {first_line(error)}") from error
        self.taken.append(place)

    def attend(self, seconds: float = REFRESH) -> None:
        """Wait, see which tasks have ended, and read how far the runs are."""
        sleep(seconds)
        for call in [call for call in self.calls if ray.wait([call], timeout=0)[0]]:
            self.calls.remove(call)
            try:
                ray.get(call)
            except exceptions.RayTaskError as error:
                if not self.stopping:
                    raise error.cause from error
            except exceptions.RayError as error:
                if not self.calls and not self.stopping:
                    died = f"the Ray workers have died ({type(error).__name__})"
                    raise ValueError(f"{died}; run the same command again to resume the sweep") from error
        if monotonic() >= self.read + LOOK or not self.calls:
            self.read = monotonic()
            for job in self.jobs.values():
                if job.state in (QUEUED, RUNNING):
                    self._read(job)

    def _read(self, job: Job) -> None:
        folder, before, now = self.options.runs / job.folder, job.state, monotonic()
        if job.look(self.options.runs) is None:
            try:
                check_free(folder)
                job.state = QUEUED
            except Busy:
                job.state = RUNNING
                with suppress(ValueError, OSError, IndexError):  # it may have no line yet
                    job.update(metrics.read(folder / metrics.METRICS)[-1])
            except OSError:  # the file system may answer the next time
                pass
        elif job.state == SKIPPED:
            job.state = DONE
        if job.state not in (before, QUEUED):
            job.began, job.ended = now if job.state == RUNNING else job.began or now, now
            self.changed(job)

    def dismiss(self, patience: float) -> None:
        """Tell every task to save and end; end them after `patience` seconds or on a KeyboardInterrupt."""
        self.stopping, until = True, monotonic() + patience
        self.note.unlink(missing_ok=True)
        self.read = 0.0  # which runs go on is to be known now
        with suppress(KeyboardInterrupt):
            self.attend()
            while self.calls and self.count(RUNNING) and monotonic() < until:
                self.attend()
        for call in self.calls:
            with suppress(exceptions.RayError):
                ray.cancel(call, force=True)
        super().dismiss(0.0)


def knock(address: str) -> None:
    """Raise an `OSError` if nobody answers at an address."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()


@contextmanager
def opened(settings: dict[str, Any], *about: Any) -> Iterator[Cluster]:
    """Join the cluster that `ray.init` joins, which may be a new one on this machine, until the end of the block."""
    address = settings.pop("address", None) or os.environ.get("RAY_ADDRESS")
    mine, handler = not ray.is_initialized(), signal.getsignal(signal.SIGTERM)  # Ray sets its own handler
    try:
        knock(str(address))  # Ray itself would wait for minutes
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, ignore_reinit_error=True)
    except (OSError, RuntimeError, ValueError, exceptions.RayError) as error:
        why = f"the Ray cluster {address or 'here'} cannot be reached ({first_line(error).partition('. ')[0]})"
        raise ValueError(f"{why}; check RAY_ADDRESS, and RAY_AUTH_MODE=token if it has a token") from error
    finally:
        signal.signal(signal.SIGTERM, handler)
    try:
        cluster = Cluster(*about)
        if not cluster.nodes():
            raise ValueError("the Ray cluster has no GPU; use --device cpu")
        runs = cluster.options.runs.absolute()
        runs.mkdir(parents=True, exist_ok=True)
        (note := runs / f".sweep-{uuid4().hex}").touch()
        cluster.note = note
        cluster.settings, cluster.taken, cluster.calls = settings, [], set()
        cluster.head, cluster.heard = ray.get_runtime_context().gcs_address, monotonic() - LOOK
        cluster.about = f"Ray cluster {cluster.head}, {len(cluster.nodes())} workers"
        try:
            yield cluster
        finally:
            cluster.note.unlink(missing_ok=True)
    finally:
        if mine:
            ray.shutdown()
