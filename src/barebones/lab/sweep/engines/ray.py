"""The Ray engine: each experiment is a task of a Ray cluster."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import sleep
from typing import Any

from ....running.processors import processors
from ....words import first_line
from ...run.options import RunOptions
from ..lanes import failure
from .local import LANES
from .remote import STOPPED, Cluster, Lost, Remote
from .task import Task

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would tell its makers about a cluster that it starts
try:
    import ray
    from ray import exceptions
except ImportError:
    raise ImportError("--engine ray needs Ray: pip install 'barebones[ray]'") from None

STORE = 100 * 2**20  # bytes for objects, which are a few texts
PATIENCE = 10.0  # seconds to wait for an answer of the cluster
AMOUNTS = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}  # options of a task, and what a cluster has
HERE = "local"  # the address that means: start a cluster on this machine


class Ray(Cluster):
    """A Ray cluster. On GPUs, `lanes` tasks share one; `settings` are options of a Ray task."""

    def __init__(self, options: RunOptions, jobs: int | None, settings: dict[str, Any]) -> None:
        super().__init__(options)
        self.jobs, self.lanes = jobs, (jobs or LANES) if options.on_gpu else 1
        self.shares = self.lanes > 1
        gpus = {"num_gpus": 1 / self.lanes} if options.on_gpu else {}
        # Our crew counts deaths; Ray would try again for ever when there is too little memory.
        chosen = {"num_cpus": 1, **gpus, "max_retries": 0, **settings}
        if "num_returns" in settings:
            raise ValueError("a task of a sweep returns one thing; leave out --engine-option num_returns")
        try:
            self.remote = ray.remote(**chosen)(Task.__call__)
        except (ValueError, TypeError, AssertionError) as error:
            raise ValueError(f"Ray does not take these options of --engine ray: {first_line(error)}") from error

    def places(self) -> list[str]:
        """Return as many places as the nodes that are alive have; Ray holds back what does not fit."""
        there = ray.cluster_resources()
        count = there.get("GPU", 0) * self.lanes if self.options.on_gpu else self.jobs or there.get("CPU", 0)
        return [self.options.device] * max(1, int(count))

    def submit(self, task: Task, alone: bool) -> Any:
        """Start a Ray task."""
        remote = self.remote.options(num_gpus=1) if alone and self.shares else self.remote
        return remote.remote(task)

    def ending(self, job: Any) -> str | Lost | None:
        """Return what the task has returned; a worker or node that died has lost it."""
        if not ray.wait([job], timeout=0)[0]:
            return None
        try:
            return ray.get(job)
        except exceptions.TaskCancelledError:
            return STOPPED
        except exceptions.RayTaskError as error:
            return json.dumps([("failed", failure(error.cause))])
        except exceptions.LocalRayletDiedError as error:  # nothing can run any more
            raise ValueError("Ray has died on this machine; run the same command again to resume the sweep") from error
        except exceptions.RayError as error:
            return Lost(f"its Ray worker or node died ({type(error).__name__})", str(error))

    def cancel(self, job: Any) -> None:
        """End the task; Ray kills its process."""
        ray.cancel(job, force=True)

    def wait(self, workers: Sequence[Remote], seconds: float) -> None:
        """Wait for the end of a task."""
        if jobs := [worker.job for worker in workers if worker.job is not None]:
            ray.wait(jobs, timeout=seconds)
        else:
            sleep(seconds)


@contextmanager
def opened(options: RunOptions, jobs: int | None, settings: dict[str, Any]) -> Iterator[Ray]:
    """Connect to a cluster, or start one on this machine, until the end of the block.

    The address of the cluster is one of the settings, or in RAY_ADDRESS. If this process is connected, it stays so.
    """
    address = str(settings.pop("address", None) or os.environ.get("RAY_ADDRESS") or HERE)
    mine = not ray.is_initialized()
    if mine:
        _connect(address, jobs if options.device == "cpu" else None)
    try:
        if options.on_gpu and not ray.cluster_resources().get("GPU"):
            raise ValueError("the Ray cluster has no GPU; use --device cpu")
        engine = Ray(options, jobs, settings)
        if mine and address == HERE:
            _check_fits(settings)
        with engine:
            yield engine
    finally:
        if mine:
            ray.shutdown()


def _check_fits(settings: dict[str, Any]) -> None:
    """Raise a `ValueError` if a task wants more than this machine has: it would wait for ever. A cluster may grow."""
    wanted = [(name, resource, settings.get(name) or 0) for name, resource in AMOUNTS.items()]
    wanted += [("resources", name, amount) for name, amount in (settings.get("resources") or {}).items()]
    if kind := settings.get("accelerator_type"):
        wanted.append(("accelerator_type", f"accelerator_type:{kind}", 1))
    there = ray.cluster_resources()
    for name, resource, amount in wanted:
        if amount > (most := there.get(resource, 0)):
            raise ValueError(
                f"--engine-option {name}={settings[name]} wants more {resource} than this machine has, which is "
                f"{most:.10g}; lower it or leave it out, or name a cluster with address=HOST:PORT"
            )


def _connect(address: str, jobs: int | None) -> None:
    host, _, port = address.rpartition("/")[2].rpartition(":")
    cpus = max(jobs or 0, processors())
    new: dict[str, Any] = {"num_cpus": cpus, "object_store_memory": STORE, "include_dashboard": False}
    handler = signal.getsignal(signal.SIGTERM)  # Ray sets its own
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        if host and port.isdecimal():  # Ray itself would wait for minutes
            socket.create_connection((host, int(port)), timeout=PATIENCE).close()
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **(new if address == HERE else {}))
    except (OSError, RuntimeError, ValueError, exceptions.RayError) as error:
        why = first_line(error).partition(". ")[0]
        raise ValueError(
            f"the Ray cluster at {address} cannot be reached ({why}); check the address in RAY_ADDRESS, and its token "
            "(RAY_AUTH_MODE=token) if it has one, or leave out the address to start a cluster on this machine"
        ) from error
    finally:
        if signal.getsignal(signal.SIGTERM) is not handler:
            signal.signal(signal.SIGTERM, handler)
