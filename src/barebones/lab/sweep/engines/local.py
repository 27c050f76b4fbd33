"""The local engine: processes on this machine, one per processor or one per GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait

from ....running.processors import processors
from ...run.options import RunOptions
from ..worker import Worker

LANES = 4  # experiments at a time on one GPU
HELPED = ("cuda",)  # kinds of devices on which a second process prepares experiments beside the one that trains


@dataclass(frozen=True)
class Local:
    """The processes of this machine. `jobs` and `devices` are those of `sweep`; workers get the rows of `methods`."""

    options: RunOptions
    jobs: int | None = None
    devices: Sequence[str] = ()
    methods: Iterable[str] = ()
    teams: dict[str, list[Worker]] = field(default_factory=dict)  # the workers that share a device

    def places(self) -> list[str]:
        """Return the device of each worker."""
        if self.options.on_gpu:
            return list(self.devices) or [self.options.device]
        return [self.options.device] * (self.jobs or processors())

    def helped(self) -> list[str]:
        """Return the devices on which a second process prepares experiments; none if only one may run at a time."""
        one = self.options.on_gpu and self.jobs == 1
        return [place for place in self.places() if place.partition(":")[0] in HELPED and not one]

    def hire(self, place: str, prepares: bool) -> Worker:
        """Start a process."""
        lanes = (self.jobs or LANES) if self.options.on_gpu and not prepares else 1
        team = self.teams.setdefault(place, []) if place in self.helped() else []
        return Worker(replace(self.options, device=place), lanes, self.methods, prepares, team)

    def wait(self, workers: Sequence[Worker], seconds: float) -> None:
        """Wait for events from the processes."""
        wait([worker.pipe for worker in workers], seconds)
