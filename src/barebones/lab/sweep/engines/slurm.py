"""The Slurm engine: experiments are jobs of a Slurm array, which submitit submits and watches."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import sleep
from typing import Any

from ....running.processors import processors
from ....words import first_line
from ...run.options import RunOptions
from .remote import STOPPED, Cluster, Lost, Remote
from .task import Task

try:
    import submitit
    from submitit.core.utils import UncompletedJobError
except ImportError:
    raise ImportError("--engine slurm needs submitit: pip install 'barebones[slurm]'") from None

SHORT = {"time": "timeout_min", "gpus": "gpus_per_node", "cpus": "cpus_per_task"}  # other names of settings
SHARED = ("name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node")
DEFAULTS = {"name": "barebones", "timeout_min": 60, "cpus_per_task": 1}
TIMEOUTS = 1000  # how often a job may run out of time and be queued again
SINGLE = ("nodes", "tasks_per_node", "ntasks_per_node")  # settings that are 1: a task is one process
MOST = 1000  # jobs at a time, unless --jobs says it; many sites allow no larger array
ASKED = 100  # jobs whose files are looked for in a second
CHECKED_EVERY = 30  # seconds between questions to Slurm about jobs that have returned nothing


@dataclass
class Ticket:
    """A task that waits for its array, and its job afterwards."""

    task: Task
    job: Any = None
    canceled: bool = False


class Slurm(Cluster):
    """Jobs of Slurm. Tasks that are submitted at the same time are one array."""

    def __init__(self, options: RunOptions, jobs: int | None, settings: dict[str, Any]) -> None:
        super().__init__(options)
        self.waiting: list[Ticket] = []
        cluster = settings.pop("cluster", "slurm")  # or "local": submitit then starts processes of this machine
        self.jobs = jobs or (processors() if cluster == "local" else MOST)
        gpus = {"gpus_per_node": 1} if self.options.on_gpu else {}
        chosen = DEFAULTS | gpus | {SHORT.get(name, name): value for name, value in settings.items()}
        for name in SINGLE:
            if chosen.get(name, 1) != 1:
                raise ValueError(f"an experiment is one process on one node; leave out --engine-option {name}")
        if isinstance(time := chosen["timeout_min"], int) and time < 1:
            raise ValueError(f"--engine-option time={time} is too short for a job; it is in minutes, and at least 1")
        named = {name if name in SHARED else f"slurm_{name}": value for name, value in chosen.items()}
        try:
            self.executor = submitit.AutoExecutor(self.folder, cluster, slurm_max_num_timeout=TIMEOUTS)
            self.executor.update_parameters(slurm_array_parallelism=self.jobs, **named)
        except RuntimeError:
            raise ValueError(
                "there is no Slurm here, because there is no command srun; run this on its login node"
            ) from None
        except (NameError, AssertionError, ValueError, TypeError) as error:
            self.__exit__()  # submitit may have made the folder
            raise ValueError(f"submitit does not take these options of --engine slurm: {first_line(error)}") from error

    def places(self) -> list[str]:
        """Return as many places as jobs may be in Slurm's queue at a time."""
        return [self.options.device] * self.jobs

    def submit(self, task: Task, alone: bool) -> Ticket:
        """Keep the task until `wait`, which submits all that have come as one array."""
        self.waiting.append(ticket := Ticket(task))
        return ticket

    def wait(self, workers: Sequence[Remote], seconds: float) -> None:
        """Submit the tasks that wait; then let time pass."""
        tickets, self.waiting = [ticket for ticket in self.waiting if not ticket.canceled], []
        if tickets:
            try:
                jobs = self.executor.submit_array([ticket.task for ticket in tickets])
            except (RuntimeError, OSError) as error:  # those of submitit are of this kind
                raise ValueError(f"Slurm did not take the jobs: {first_line(error)}") from error
            for ticket, job in zip(tickets, jobs, strict=True):
                ticket.job = job
        sleep(max(seconds, len(workers) / ASKED))

    def ending(self, job: Ticket) -> str | Lost | None:
        """Return what the job has returned; a job that ended without that has lost its task."""
        if job.canceled:
            return STOPPED
        if job.job is None or not job.job.done():
            return None
        try:
            returned: str = job.job.result()
            return returned
        except UncompletedJobError as error:  # it was killed, or could not even load the task
            return Lost(f"its Slurm job ended without a result (job {job.job.job_id}, {job.job.state})", str(error))

    def cancel(self, job: Ticket) -> None:
        """Take the job out of the queue, or kill it."""
        job.canceled = True
        if job.job is not None:
            job.job.cancel(check=False)


@contextmanager
def opened(options: RunOptions, jobs: int | None, settings: dict[str, Any]) -> Iterator[Slurm]:
    """Use the Slurm of this machine until the end of the block."""
    logging.getLogger("submitit").setLevel(logging.ERROR)
    submitit.SlurmJob.watcher = type(submitit.SlurmJob.watcher)(CHECKED_EVERY)
    with Slurm(options, jobs, settings) as engine:
        yield engine
