"""What a sweep needs of an engine: workers that begin experiments, tell what happens, and stop."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

from ...experiment.experiment import Experiment
from ..lanes import Event


class Worker(Protocol):
    """Something that runs experiments, one or several at a time, and may die with all of them."""

    @property
    def place(self) -> str:
        """The place of the engine that it takes."""

    @property
    def prepares(self) -> bool:
        """Whether it only prepares experiments, and another worker trains them."""

    @property
    def lanes(self) -> Collection[str]:
        """The folders of its running experiments."""

    def has_room(self) -> bool:
        """Return whether it can run one more experiment beside those that are running, if any."""

    def begin(self, experiment: Experiment, alone: bool) -> None:
        """Run an experiment; `alone` says that it was lost before, and that no other may run beside it now."""

    def events(self) -> Iterator[Event]:
        """Yield what has happened since the last call; prepared, done, failed and stopped end a lane."""

    def dead(self) -> str | None:
        """Return how it ended, in words; None while it lives. A dead worker has lost the experiments of its lanes."""

    def output(self) -> str:
        """Return the end of what it printed."""

    def stop(self) -> None:
        """Tell its experiments to save and end."""

    def close(self, patience: float) -> None:
        """End it; kill it after `patience` seconds."""


class Engine(Protocol):
    """Where experiments run."""

    def places(self) -> Sequence[str]:
        """Return a name for each worker that there may be now; names may repeat."""

    def helped(self) -> Sequence[str]:
        """Return the places where another worker prepares experiments; elsewhere a worker does all of its own."""

    def hire(self, place: str, prepares: bool) -> Worker:
        """Start a worker."""

    def wait(self, workers: Sequence[Any], seconds: float) -> None:
        """Wait this long, or until one of these workers, which are of this engine, has something to tell."""
