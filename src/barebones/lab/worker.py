"""A worker: one process that runs several experiments at once by taking turns, a training step of each."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import tempfile
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from .experiment import Experiment
from .folder import Busy
from .options import RunOptions
from .run import Stopped, run

BROKEN = 70  # exit code of a worker whose CUDA context is of no more use
LOOK = 0.1  # seconds between looks into the pipe
SHOWN = 0.3  # seconds between the lines of metrics that are passed on from one lane
TAIL = 8_000  # characters of what a dead process wrote that are kept
Line = dict[str, Any]


@dataclass(frozen=True)
class Event:
    """What a worker says of an experiment: started, line, memory, done, failed or stopped."""

    kind: str
    folder: str
    about: dict[str, Any] = field(default_factory=dict)


class Worker:
    """The parent's side: starts the process, gives it experiments, hears what becomes of them.

    The process has the parent's `sys.path`, ignores Ctrl-C, which is the parent's to handle, and saves and ends its
    runs when it is told to, when it gets a SIGTERM, and when the parent is no more.
    """

    def __init__(self, place: RunOptions) -> None:
        context = get_context("spawn")
        handle, name = tempfile.mkstemp(prefix="barebones-worker-", suffix=".log")
        os.close(handle)
        self.log = Path(name)  # what the process prints, so that it does not disturb the table
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, place, name))
        with _without_ctrl_c():
            self.process.start()
        theirs.close()  # so that either side notices when the other is gone
        self.lanes: dict[str, bool] = {}  # the folders of what runs, and whether their memory is known
        self.share: int | None = None  # bytes of the device that the largest lane so far needs
        self.free = 0  # bytes of the device

    def begin(self, experiment: Experiment) -> None:
        """Give it one more experiment."""
        self.lanes[experiment.folder] = False
        self._send(experiment)

    def stop(self) -> None:
        """Tell it to save and end."""
        self._send(None)

    def _send(self, message: Experiment | None) -> None:
        with suppress(OSError):  # it is gone: `dead` will say so
            self.pipe.send(message)

    def roomy(self) -> bool:
        """Whether the device has memory for one lane more, as far as the lanes so far tell."""
        return all(self.lanes.values()) and self.share is not None and self.free >= 1.2 * self.share

    def events(self) -> Iterator[Event]:
        """What it has said since the last call."""
        while True:
            try:
                if not self.pipe.poll():
                    return
                event = self.pipe.recv()
            except (EOFError, OSError):  # the end of the process
                self.process.join(5)
                return
            yield self._noted(event)

    def _noted(self, event: Event) -> Event:
        if event.kind == "memory":
            self.free = event.about["free"]
            self.share = max(self.share or 0, event.about["share"])
            if event.folder in self.lanes:
                self.lanes[event.folder] = True
        elif event.kind in ("done", "failed", "stopped"):
            self.lanes.pop(event.folder, None)
        return event

    def dead(self) -> str | None:
        """How the process ended, in a sentence; None while it lives."""
        code = self.process.exitcode
        if code is None:
            return None
        if code >= 0:
            return f"the process ended with exit code {code}"
        hint = "; out of memory?" if code == -9 else ""
        name = next((f", {known.name}" for known in signal.Signals if known == -code), "")
        return f"the process was killed (signal {-code}{name}){hint}"

    def output(self) -> str:
        """The end of what the process printed; after a crash, with the traceback of it."""
        try:
            return self.log.read_text(encoding="utf-8", errors="replace")[-TAIL:]
        except OSError:
            return ""

    def close(self, patience: float) -> None:
        """Hang up, which the process takes for a wish to stop; kill it after so many seconds."""
        self.pipe.close()
        try:
            self.process.join(patience)
        finally:  # also if the waiting is interrupted
            if self.process.exitcode is None:
                self.process.kill()
            self.process.join()
            self.process.close()
            self.log.unlink(missing_ok=True)


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Processes that are started in it are not hit by Ctrl-C before they can ignore it; here it only comes later."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # or the first start would do it, and let signals through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def work(pipe: Connection, place: RunOptions, log: str) -> None:
    """What the process does: advance each lane by one step, again and again, until it is told to stop."""
    wire = Wire(pipe)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: wire.stop())
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _print_to(log)
    on_cuda = place.device.startswith("cuda")
    if on_cuda:
        torch.cuda.init()
        torch.cuda.set_device(torch.device(place.device).index or 0)
    else:
        torch.set_num_threads(1)  # there are as many workers as processors
    lanes: list[Lane] = []
    while lanes or not wire.stopping:
        wire.look(0.0 if lanes else 1.0)
        while wire.waiting:
            experiment = wire.waiting.popleft()
            if wire.stopping:
                wire.tell("stopped", experiment.folder)
            else:
                lanes.append(Lane(experiment, place, wire, on_cuda))
        for lane in [lane for lane in lanes if not lane.turn()]:
            lanes.remove(lane)
            lane.tidy()
    Path(log).unlink(missing_ok=True)  # the parent may be gone; it reads this only after a crash


def _print_to(log: str) -> None:
    """Everything that this process and its libraries print goes there; so does the traceback of a crash."""
    sys.stdout.flush()
    sys.stderr.flush()
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.enable(file=2)


class Wire:
    """The worker's end of the pipe: events go out; experiments, and the wish to stop, come in."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe, self.waiting, self.stopping = pipe, deque[Experiment](), False
        self.looked = 0.0

    def stop(self) -> None:
        """From now on, every run is to save and end."""
        self.stopping = True

    def tell(self, kind: str, folder: str, **about: Any) -> None:
        """Send an event; a parent that is gone hears nothing, and nobody needs the runs to go on."""
        try:
            self.pipe.send(Event(kind, folder, about))
        except OSError:
            self.stop()

    def look(self, seconds: float) -> None:
        """Take in what has come; wait so long for it. Without waiting, only now and then: a look costs time."""
        now = monotonic()
        if not seconds and now - self.looked < LOOK:
            return
        self.looked = now
        try:
            while self.pipe.poll(seconds):
                message = self.pipe.recv()
                if message is None:
                    self.stop()
                else:
                    self.waiting.append(message)
                seconds = 0.0
        except (EOFError, OSError):
            self.stop()

    def asked(self) -> bool:
        """Whether to stop."""
        self.look(0.0)
        return self.stopping


class Lane:
    """One experiment on its way, on a CUDA device in a stream of its own."""

    def __init__(self, experiment: Experiment, place: RunOptions, wire: Wire, on_cuda: bool) -> None:
        self.folder, self.wire = experiment.folder, wire
        self.steps: Iterator[None] | None = run(experiment, place, self.report, wire.asked)
        self.stream = torch.cuda.Stream() if on_cuda else None
        self.fresh, self.measured = True, not on_cuda
        self.held: Line | None = None  # the latest line, if it is not passed on yet
        self.passed_on = 0.0
        self.before = torch.cuda.memory_reserved() if on_cuda else 0
        if on_cuda:
            torch.cuda.reset_peak_memory_stats()
        wire.tell("started", self.folder)

    def report(self, line: Line) -> None:
        """Pass on a line of metrics, a few in a second; the last one always."""
        self.held = {name: value for name, value in line.items() if name != "layers"}
        self._pass_on()
        if not self.measured and line["stage"] == "train":
            self.measure()

    def _pass_on(self, now: bool = False) -> None:
        if self.held is not None and (now or monotonic() - self.passed_on >= SHOWN):
            self.wire.tell("line", self.folder, line=self.held)
            self.held, self.passed_on = None, monotonic()

    def measure(self) -> None:
        """Tell how much of the device's memory is free and, once, how much was reserved since this lane began.

        The parent starts no other lane before it knows this, so that it is what this one needs.
        """
        share = 0 if self.measured else max(torch.cuda.max_memory_reserved() - self.before, 0)
        self.measured = True
        self.wire.tell("memory", self.folder, share=share, free=torch.cuda.mem_get_info()[0])

    def turn(self) -> bool:
        """One step; false when it was the last, one way or another. What goes wrong ends this lane alone."""
        assert self.steps is not None
        inside: AbstractContextManager[Any] = torch.cuda.stream(self.stream) if self.stream else nullcontext()
        try:
            with inside:
                next(self.steps)
            if self.fresh and self.stream:
                self.stream.synchronize()  # data that lanes share is complete before another one reads it
            self.fresh = False
            self._pass_on()
            return True
        except StopIteration as end:
            self._pass_on(now=True)
            self.wire.tell("done", self.folder, result=end.value)
        except Stopped:
            self._pass_on(now=True)
            self.wire.tell("stopped", self.folder)
        except (Exception, SystemExit) as error:
            self._fail(error)
        return False

    def _fail(self, error: BaseException) -> None:
        full = _is_memory(error)
        broken = self.stream is not None and not full and _breaks(error)
        about = {"reason": reason(error), "traceback": traceback.format_exc(), "full": full, "broken": broken}
        about["busy"] = isinstance(error, Busy)
        self.wire.tell("failed", self.folder, **about)
        if broken:  # every other lane would fail too; ending in order could hang
            os._exit(BROKEN)

    def tidy(self) -> None:
        """Give back its memory."""
        self.steps = None
        if self.stream is not None:
            gc.collect()
            torch.cuda.empty_cache()
            self.measure()


def reason(error: BaseException) -> str:
    """The error in one line: a sentence for the user as it is, anything else with its type.

    >>> reason(ValueError("name a file")), reason(KeyError("conv1")), reason(RuntimeError("CUDA error: a\\nhint"))
    ('name a file', "KeyError: 'conv1'", 'RuntimeError: CUDA error: a')
    """
    first = next(iter(str(error).strip().splitlines()), "")
    if isinstance(error, ValueError | OSError | ImportError) and first:
        return first
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _is_memory(error: BaseException) -> bool:
    """Whether the device had too little memory."""
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error).lower()


def _breaks(error: BaseException) -> bool:
    """Whether the CUDA context cannot be used any more after this error."""
    if isinstance(error, torch.AcceleratorError) or ("CUDA error" in str(error) and not isinstance(error, ValueError)):
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:  # what torch raises for every CUDA error: that it does is the answer
        return True
    return False
