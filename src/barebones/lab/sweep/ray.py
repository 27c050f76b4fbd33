"""Sweeps on a Ray cluster: one worker per GPU or node. They share the folder of the runs, which is the queue."""

import logging
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from time import monotonic, sleep
from typing import Any

from ...messages import first_line
from ..experiment import recipes
from ..experiment.experiment import Experiment
from ..run.options import RunOptions
from .pool import DONE, FAILED, QUEUED, REFRESH, RUNNING, STOPPED, Job, Pool

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would tell its makers about a cluster that it starts
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^")  # Ray would print 20 lines of its own about a node that dies
try:
    import ray
    from ray import exceptions
except ImportError:
    raise ImportError("--engine ray needs Ray: pip install 'barebones[ray]'") from None

KEPT = {"max_restarts": 20, "max_task_retries": 20, "max_concurrency": 3}  # Ray restarts a worker that dies elsewhere
TOLD = ("state", "reason", "alone", "waits", "accuracy", "warning", "short", "line")  # what a worker tells of a job
PATIENCE = 10.0  # seconds to wait for an address to answer
LOOK, LOST = 5.0, 20.0  # seconds between looks at the cluster, and without its head; Ray aborts us after 60


@dataclass
class Worker:
    """An actor on a GPU or node: it takes runs that nobody has, until all have ended or it is told to stop."""

    experiments: list[Experiment]
    options: RunOptions
    jobs: int | None
    here: tuple[Path, Path, list[str], list[str]]  # a note among the runs, and the sweep's folder, modules and recipes
    pool: Pool | None = None
    stopping: bool = False

    def work(self) -> list[dict[str, Any]]:
        """Run experiments in processes of this node; return what is to `tell` at the end."""
        note, folder, path, sources = self.here
        if not note.exists():
            node, runs = socket.gethostname(), self.options.runs
            raise ValueError(f"node {node} does not see {runs}; name a folder with --runs that all nodes share")
        os.chdir(folder)
        sys.path[:] = [*path, *(each for each in sys.path if each not in path)]
        for source in sources:
            recipes.imported(source)
        methods = {each.method for each in self.experiments}
        self.pool = Pool([Job(each) for each in self.experiments], self.options, jobs=self.jobs, methods=methods)
        with self.pool.sharing():
            while self.pool.busy and not self.stopping:
                self.pool.assign()
                self.pool.attend()
            self.pool.dismiss(60.0)
        return self.tell()

    def tell(self) -> list[dict[str, Any]]:
        """Return the states and the progress of the jobs that this worker runs, has ended, or tries again."""
        jobs = list(self.pool.jobs.values()) if self.pool else []
        told = [job for job in jobs if job.state in (RUNNING, DONE, FAILED) or (job.state == QUEUED and job.alone)]
        return [{"folder": job.folder} | {name: getattr(job, name) for name in TOLD} for job in told]

    def stop(self) -> None:
        """Let every run save a checkpoint and end."""
        self.stopping = True


class Cluster(Pool):
    """The workers of a Ray cluster, and what they tell about the jobs."""

    settings: dict[str, Any]  # options of a Ray actor
    note: Path
    head: str  # its address
    heard: float  # when it last answered
    taken: list[tuple[int, Any]]  # the place of each worker, and the worker
    calls: dict[Any, list[Any]]  # for what each worker returns: it, what it was asked to tell, has it begun

    def places(self) -> list[Any]:
        """Return a 1 for each GPU, or the CPUs of each node."""
        if self.options.on_gpu:
            return [1] * int(ray.cluster_resources().get("GPU", 0))
        return [int(cpus) for node in ray.nodes() if node["Alive"] and (cpus := node["Resources"].get("CPU"))] or [1]

    @property
    def busy(self) -> bool:
        """Whether a worker works, or none has been started yet."""
        return bool(self.queue or self.calls)

    def assign(self) -> None:
        """Start a worker at each place that has none, also at places that have come later."""
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
        missing = Counter(self.places()) - Counter(place for place, _ in self.taken)
        for place in sorted(missing.elements(), reverse=True):
            if len(self.taken) < len(waiting):
                self._start(place, waiting)
        self.queue = []

    def _start(self, place: int, experiments: list[Experiment]) -> None:
        options = replace(self.options, runs=self.options.runs.absolute())
        jobs = self.most if options.on_gpu else min(self.most or place, place)
        here = self.note, Path.cwd(), [os.path.abspath(folder) for folder in sys.path], list(recipes.IMPORTED)
        name = {"name": f"barebones sweep in {options.runs.name}, worker {len(self.taken) + 1}"}
        wanted = {"num_gpus": 1} if options.on_gpu else {"num_cpus": place}
        actor: Any = ray.remote(Worker)
        try:
            worker = actor.options(**name | KEPT | wanted | self.settings).remote(experiments, options, jobs, here)
        except (ValueError, TypeError, AssertionError) as error:
            raise ValueError(f"Ray does not take these options of --engine ray: {first_line(error)}") from error
        self.taken.append((place, worker))
        self.calls[worker.work.remote()] = [worker, worker.tell.remote(), False]

    def attend(self, seconds: float = REFRESH) -> None:
        """Wait, and hear what the workers tell."""
        sleep(seconds)
        for call, (worker, asked, _) in list(self.calls.items()):
            try:
                if ray.wait([call], timeout=0)[0]:
                    del self.calls[call]
                    self._hear(ray.get(call))
                elif ray.wait([asked], timeout=0)[0]:
                    self.calls[call][1:] = worker.tell.remote(), True
                    self._hear(ray.get(asked))
            except exceptions.RayTaskError as error:
                raise error.cause from error
            except exceptions.RayError as error:
                if not self.calls and not self.stopping:
                    died = f"the Ray workers have died ({type(error).__name__})"
                    raise ValueError(f"{died}; run the same command again to resume the sweep") from error

    def _hear(self, told: list[dict[str, Any]]) -> None:
        for about in told:
            job = self.jobs[about.pop("folder")]
            before = job.state, job.waits, job.warning
            if job.state not in (DONE, FAILED):
                job.began, job.ended = monotonic() if job.state == QUEUED else job.began, monotonic()
                vars(job).update(about)
            if (job.state, job.waits, job.warning) != before and not (job.state == RUNNING and job.waits):
                self.changed(job)

    def dismiss(self, patience: float) -> None:
        """Tell every worker to save and end; end them after `patience` seconds or on a KeyboardInterrupt."""
        self.stopping, until = True, monotonic() + patience
        with suppress(KeyboardInterrupt, exceptions.RayError):
            for worker, *_ in self.calls.values():
                worker.stop.remote()
            while any(begun for *_, begun in self.calls.values()) and monotonic() < until:
                self.attend()
        for _, worker in self.taken:
            ray.kill(worker)
        for job in self.jobs.values():
            if job.state == RUNNING:
                self._end(job, STOPPED)


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
        if not cluster.places():
            raise ValueError("the Ray cluster has no GPU; use --device cpu")
        cluster.options.runs.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(prefix=".sweep-", dir=cluster.options.runs.absolute()) as note:
            cluster.settings, cluster.note = settings, Path(note.name)
            cluster.taken, cluster.calls = [], {}
            cluster.head, cluster.heard = ray.get_runtime_context().gcs_address, monotonic() - LOOK
            cluster.about = f"Ray cluster {cluster.head}, {len(cluster.places())} workers"
            yield cluster
    finally:
        if mine:
            ray.shutdown()
