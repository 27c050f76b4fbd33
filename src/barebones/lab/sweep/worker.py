"""The parent's side of a worker: a process that a sweep starts, that gets experiments and sends events."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context, resource_tracker
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

from ...pruning.methods import METHODS, Method
from ..experiment import recipes
from ..experiment.experiment import Experiment
from ..run.options import RunOptions
from .lanes import Event, Order, work

TAIL = 8_000  # characters of a dead process's output to keep


class Worker:
    """A process that runs experiments: starts it, gives it experiments and receives its events.

    The process gets the parent's `sys.path`, imports the recipes that the parent has imported, and gets the rows of
    `methods`, so methods that were registered at run time work in it too. It ignores Ctrl-C, which the parent
    handles. It saves and ends its runs when it is told to, on SIGTERM, and when the parent is gone. A worker that
    `prepares` ends each run before the first step of training, which another worker of its `team` does.
    """

    def __init__(
        self,
        options: RunOptions,
        most: int = 1,
        methods: Iterable[str] = (),
        prepares: bool = False,
        team: list[Worker] | None = None,
    ) -> None:
        context = get_context("spawn")
        handle, name = tempfile.mkstemp(prefix="barebones-worker-", suffix=".log")
        os.close(handle)
        self.log = Path(name)  # for the output of the process, which would disturb the table
        self.pipe, other_end = context.Pipe()
        self.process = context.Process(target=work, args=(other_end, options, name, list(recipes.IMPORTED)))
        with _without_ctrl_c():
            self.process.start()
        other_end.close()  # so that either side notices when the other is gone
        self._send({name: row for name in methods if (row := METHODS.get(name)) and _can_be_sent(row)})
        self.place, self.most, self.prepares = options.device, most, prepares  # `most` experiments at a time
        self.networks: set[Hashable] = set()  # that its process has compiled, or will, where they are compiled at all
        self.team = team if team is not None else []  # all workers of its device
        self.team.append(self)
        self.lanes: dict[str, bool] = {}  # the folders of its running experiments, and whether their memory is known
        self.share: int | None = None  # bytes of the device's memory that the largest lane so far needs
        self.free = 0  # bytes of the device's memory that are free
        self.ending = False  # its process has said that it ends

    def begin(self, experiment: Experiment) -> None:
        """Give the process one more experiment."""
        self.lanes[experiment.folder] = False
        network = _network(experiment)
        known = any(network in other.networks for other in self.team)
        self.networks.add(network)
        self._send((experiment, "train" if not self.prepares else "prune" if known else "prepare"))

    def stop(self) -> None:
        """Tell the process to save its runs and end."""
        self._send(None)

    def _send(self, message: Order | dict[str, Method] | None) -> None:
        with suppress(OSError):  # the process is gone, which `dead` will report
            self.pipe.send(message)

    def has_room(self) -> bool:
        """Return whether the device has memory for one more lane, estimated from the lanes so far.

        What the others of the team need at most is left to them. An idle process has room, unless it is about to end.
        """
        if self.ending or not self.lanes:
            return not self.ending
        if len(self.lanes) >= self.most or self.share is None:
            return False
        others = sum(other.share or 0 for other in self.team if other is not self)
        return all(self.lanes.values()) and self.free >= 1.2 * (self.share + others)

    def events(self) -> Iterator[Event]:
        """Yield the events since the last call."""
        while True:
            try:
                if not self.pipe.poll():
                    return
                event = self.pipe.recv()
            except (EOFError, OSError):  # the process has ended
                self.process.join(5)
                return
            yield self._noted(event)

    def _noted(self, event: Event) -> Event:
        if event.kind == "memory":
            self.free = event.about["free"]
            self.share = max(self.share or 0, event.about["share"])
            if event.folder in self.lanes:
                self.lanes[event.folder] = True
        elif event.kind in ("prepared", "done", "elsewhere", "failed", "stopped"):
            self.lanes.pop(event.folder, None)
        self.ending = self.ending or event.about.get("process_ends", False)
        if event.kind == "failed" and not any(worker.lanes for worker in self.team):
            event.about["others_may_be_the_cause"] = False  # there are none
        return event

    def dead(self) -> str | None:
        """Return how the process ended, in words; None while it runs."""
        code = self.process.exitcode
        if code is None:
            return None
        if code >= 0:
            return f"the process ended with exit code {code}"
        hint = "; out of memory?" if code == -9 else ""
        name = next((f", {known.name}" for known in signal.Signals if known == -code), "")
        return f"the process was killed (signal {-code}{name}){hint}"

    def output(self) -> str:
        """Return the end of what the process printed; after a crash, that includes the traceback."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-TAIL:] if self.log.exists() else ""

    def close(self, patience: float) -> None:
        """Close the pipe, which tells the process to stop; kill it after `patience` seconds."""
        self.pipe.close()
        if self in self.team:
            self.team.remove(self)
        try:
            self.process.join(patience)
        finally:  # also when the wait is interrupted
            if self.process.exitcode is None:
                self.process.kill()
            self.process.join()
            self.process.close()
            self.log.unlink(missing_ok=True)


def _network(experiment: Experiment) -> Hashable:
    """Return what torch compiles a network for: runs that agree in it share the result."""
    own = experiment.folder if experiment.shrink else ""  # a shrunk network has its own widths
    return experiment.model, experiment.data, experiment.batch_size, experiment.precision, own


def _can_be_sent(method: Method) -> bool:
    """Return whether the method can be sent to a worker; otherwise a recipe has to register it there."""
    try:
        ForkingPickler.dumps(method)
    except Exception:  # a lambda or a local function; objects of the user may raise anything
        return False
    return True


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Block Ctrl-C while a process starts, until that process ignores it; the parent gets the signal afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # otherwise the first start would do it, and unblock signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
