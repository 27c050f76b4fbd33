"""Sweeps on a Ray cluster: a task on each GPU or node has the processes there. Ray places it, and starts it anew."""

import logging
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from ...imports import optional
from ...messages import first_line
from ..experiment import recipes
from ..experiment.experiment import Experiment
from ..run.options import RunOptions
from .processes import REFRESH, Processes, places, sharing
from .worker import GO

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would tell its makers about a cluster that it starts
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^")  # Ray would print 20 lines of its own about a node that dies
ray = optional("ray", "--engine ray needs Ray", "ray")

WANTED = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}  # options of a task: Ray would wait for ever
RETRIES = 20  # how often Ray starts a task anew whose process or node has died
SAVING = 60.0  # seconds that the runs of a task have to save
PATIENCE = 10.0  # seconds to wait for an address to answer
LOOK = 5.0  # seconds between looks at the cluster
LOST = 20.0  # seconds without the head of the cluster; Ray aborts us after 60


def work(experiments: list[Experiment], options: RunOptions, jobs: int | None, sweep: Path, *here: Any) -> None:
    """Run in a task: have processes for the sweep with this folder, as long as it goes on."""
    folder, path, sources = here  # the working folder of the sweep, its `sys.path`, the recipes that it has imported
    if not sweep.exists():
        node, runs = socket.gethostname(), options.runs
        raise ValueError(f"node {node} does not see {runs}; name a folder with --runs that all nodes share")
    os.chdir(folder)
    sys.path[:] = [*path, *(each for each in sys.path if each not in path)]
    for source in sources:
        recipes.imported(source)
    with sharing(options, jobs):
        processes = Processes(experiments, options, sweep, places(options, jobs))
        while processes.round.goes_on() and processes.attend():
            pass
        processes.end(SAVING)


@dataclass
class Tasks:
    """The tasks of a sweep on a Ray cluster."""

    settings: dict[str, Any]  # options of a Ray task
    head: str  # the address of the cluster
    experiments: list[Experiment]
    options: RunOptions
    folder: Path
    jobs: int | None
    heard: float = 0.0  # when the head last answered
    taken: list[int] = field(default_factory=list)  # the places of all tasks
    calls: set[Any] = field(default_factory=set)  # for what the tasks return that have not ended

    def nodes(self) -> list[int]:
        """Return a 1 for each GPU, or the CPUs of each node."""
        if self.options.on_gpu:
            return [1] * int(ray.cluster_resources().get("GPU", 0))
        return [int(cpus) for node in ray.nodes() if node["Alive"] and (cpus := node["Resources"].get("CPU"))] or [1]

    def attend(self, seconds: float = REFRESH) -> bool:
        """Start tasks, wait, and see which tasks have ended; return False if there was nothing to do."""
        if (goes_on := (self.folder / GO).exists()) and monotonic() >= self.heard + LOOK:
            self._assign()
        if not self.calls:
            return False
        sleep(seconds)
        for call in [call for call in self.calls if ray.wait([call], timeout=0)[0]]:
            self.calls.remove(call)
            try:
                ray.get(call)
            except ray.exceptions.RayError as error:
                if goes_on and isinstance(error, ray.exceptions.RayTaskError):
                    raise error.cause from error
                if goes_on and not self.calls:
                    died = f"the Ray workers have died ({type(error).__name__})"
                    raise ValueError(f"{died}; run the same command again to resume the sweep") from error
        return True

    def _assign(self) -> None:
        """Start a task at each place that has none, also at places that have come later."""
        try:
            knock(self.head)  # Ray itself would wait, and abort this process
        except OSError as error:
            if monotonic() < self.heard + LOST:
                return
            why = f"the Ray cluster {self.head} does not answer ({first_line(error)})"
            raise ValueError(f"{why}; run the same command again when it does, to resume the sweep") from error
        self.heard = monotonic()
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        for name, kind in WANTED.items() if not self.taken else ():
            wanted = self.settings.get(name, 0)
            if isinstance(wanted, int | float) and wanted > max((node.get(kind, 0) for node in nodes), default=wanted):
                raise ValueError(f"no node of the Ray cluster has {name}={wanted:g}; ask for less, or add a node")
        missing = sorted((Counter(self.nodes()) - Counter(self.taken)).elements(), reverse=True)
        for place in missing[: len(self.experiments) - len(self.taken)]:
            self._start(place)

    def _start(self, place: int) -> None:
        options = replace(self.options, runs=self.options.runs.absolute())
        jobs = self.jobs if options.on_gpu else min(self.jobs or place, place)
        here = Path.cwd(), [os.path.abspath(folder) for folder in sys.path], list(recipes.IMPORTED)
        wanted = {"num_gpus": 1} if options.on_gpu else {"num_cpus": place}
        name = {"name": f"barebones sweep in {options.runs.name}", "max_retries": RETRIES}
        try:
            task: Any = ray.remote(work).options(**name | wanted | self.settings)
            self.calls.add(task.remote(self.experiments, options, jobs, self.folder, *here))
        except (ValueError, TypeError, AssertionError) as error:
            raise ValueError(f"Ray does not take these options of --engine ray: {first_line(error)}") from error
        self.taken.append(place)

    def end(self, patience: float) -> None:
        """Wait for the tasks with runs, which save when the sweep ends; end all then, or on a KeyboardInterrupt."""
        until = monotonic() + patience
        with suppress(KeyboardInterrupt):
            while monotonic() < until and any(self.folder.glob("*/*.run")) and self.attend():
                pass
        for call in self.calls:
            with suppress(ray.exceptions.RayError):
                ray.cancel(call, force=True)


def knock(address: str) -> None:
    """Raise an `OSError` if nobody answers at an address."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()


@contextmanager
def joined(settings: dict[str, Any], *about: Any) -> Iterator[Tasks]:
    """Join the cluster that `ray.init` joins, which may be a new one on this machine, until the end of the block."""
    address = settings.pop("address", None) or os.environ.get("RAY_ADDRESS")
    mine, handler = not ray.is_initialized(), signal.getsignal(signal.SIGTERM)  # Ray sets its own handler
    try:
        knock(str(address))  # Ray itself would wait for minutes
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, ignore_reinit_error=True)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        why = f"the Ray cluster {address or 'here'} cannot be reached ({first_line(error).partition('. ')[0]})"
        raise ValueError(f"{why}; check RAY_ADDRESS, and RAY_AUTH_MODE=token if it has a token") from error
    finally:
        signal.signal(signal.SIGTERM, handler)
    try:
        tasks = Tasks(settings, ray.get_runtime_context().gcs_address, *about)
        if not tasks.nodes():
            raise ValueError("the Ray cluster has no GPU; use --device cpu")
        yield tasks
    finally:
        if mine:
            ray.shutdown()
