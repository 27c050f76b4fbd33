"""The process of a worker: it runs several experiments at a time by taking turns, one training step of each."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from ...pruning.methods import METHODS
from ..experiment import recipes
from ..experiment.experiment import Experiment
from ..run.lock import Busy
from ..run.metrics import Line
from ..run.options import RunOptions
from ..run.run import Stopped, run

BROKEN = 70  # exit code of a process that cannot use its GPU any more
PIPE_PAUSE = 0.1  # seconds between looks into the pipe


Order = tuple[Experiment, str]  # what to run, and until which stage, see `run`


@dataclass(frozen=True)
class Event:
    """What a worker reports about an experiment: started, line, memory, prepared, done, elsewhere, failed, stopped."""

    kind: str
    folder: str
    about: dict[str, Any] = field(default_factory=dict)


def work(pipe: Connection, options: RunOptions, log: str, sources: Iterable[str] = ()) -> None:
    """Run in the process: advance each lane by one step, again and again, until the parent sends the order to stop."""
    wire = Wire(pipe)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: wire.stop())
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _print_to(log)
    for source in sources:
        recipes.imported(source)  # it may register methods
    try:
        METHODS.update(pipe.recv())
    except EOFError:  # the parent is gone
        wire.stop()
    if options.on_gpu:
        torch.cuda.init()
        torch.cuda.set_device(torch.device(options.device).index or 0)
    torch.set_num_threads(options.threads)
    lanes: list[Lane] = []
    while lanes or not wire.stopping:
        wire.look(0.0 if lanes else 1.0)
        while wire.waiting:
            experiment, until = wire.waiting.popleft()
            if wire.stopping:
                wire.tell("stopped", experiment.folder)
            else:
                lanes.append(Lane(experiment, options, wire, until))
        for lane in [lane for lane in lanes if not lane.turn()]:
            lanes.remove(lane)
            lane.tidy()
    Path(log).unlink(missing_ok=True)  # the parent may be gone, and reads this only after a crash


def _print_to(log: str) -> None:
    """Redirect everything that this process and its libraries print to a file, also the traceback of a crash."""
    sys.stdout.flush()
    sys.stderr.flush()
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.enable(file=2)


class Wire:
    """The worker's end of the pipe: it sends events, and receives experiments and the order to stop."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe, self.waiting, self.stopping = pipe, deque[Order](), False
        self.looked_at = 0.0

    def stop(self) -> None:
        """Make every run save a checkpoint and end."""
        self.stopping = True

    def tell(self, kind: str, folder: str, **about: Any) -> None:
        """Send an event; if the parent is gone, stop."""
        try:
            self.pipe.send(Event(kind, folder, about))
        except OSError:
            self.stop()

    def look(self, seconds: float) -> None:
        """Read the messages of the parent, and wait this many seconds for the first.

        With 0 seconds this does nothing if the last look was less than PIPE_PAUSE ago, because each look costs time.
        """
        now = monotonic()
        if not seconds and now - self.looked_at < PIPE_PAUSE:
            return
        self.looked_at = now
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

    def should_stop(self) -> bool:
        """Return whether the runs are to stop."""
        self.look(0.0)
        return self.stopping


class Lane:
    """One running experiment; on a CUDA device it has a stream of its own."""

    def __init__(self, experiment: Experiment, options: RunOptions, wire: Wire, until: str = "train") -> None:
        on_gpu = options.on_gpu
        self.folder, self.wire, self.until, self.held = experiment.folder, wire, until, False
        self.steps: Iterator[None] | None = run(
            experiment, options, self.report, wire.should_stop, until, held=self.hold
        )
        self.stream = torch.cuda.Stream() if on_gpu else None
        self.first_turn, self.measured = True, not on_gpu
        self.before = torch.cuda.memory_reserved() if on_gpu else 0
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()

    def hold(self) -> None:
        """Tell that the run owns its folder."""
        self.held = True
        self.wire.tell("started", self.folder)

    def report(self, line: Line) -> None:
        """Pass on a line of metrics."""
        self.wire.tell("line", self.folder, line={name: value for name, value in line.items() if name != "layers"})
        if not self.measured and line["stage"] == "train" and "part" not in line:  # after the first epoch
            self.measure()

    def measure(self) -> None:
        """Report how much of the device's memory is free and, once, how much was reserved since this lane began.

        The parent starts no other lane before it has this report, so the reserved memory is what this lane needs.
        """
        share = 0 if self.measured else max(torch.cuda.max_memory_reserved() - self.before, 0)
        self.measured = True
        self.wire.tell("memory", self.folder, share=share, free=torch.cuda.mem_get_info()[0])

    def turn(self) -> bool:
        """Do one step, and return False when the lane has ended. An error ends this lane alone."""
        assert self.steps is not None
        stream: AbstractContextManager[Any] = torch.cuda.stream(self.stream) if self.stream else nullcontext()
        try:
            with stream:
                next(self.steps)
            if self.first_turn and self.stream:
                self.stream.synchronize()  # so that data which lanes share is complete before another lane reads it
            self.first_turn = False
            return True
        except StopIteration as end:
            if self.until != "train":
                self.wire.tell("prepared", self.folder)
            elif self.held:
                self.wire.tell("done", self.folder, result=end.value)
            else:  # another process has finished it
                self.wire.tell("elsewhere", self.folder)
        except Stopped:
            self.wire.tell("stopped", self.folder)
        except (Exception, SystemExit) as error:
            self._fail(error)
        return False

    def _fail(self, error: BaseException) -> None:
        about = failure(error)
        broken = self.stream is not None and not about["others_may_be_the_cause"] and _breaks_cuda(error)
        about["others_may_be_the_cause"] |= broken
        self.wire.tell("failed", self.folder, **about, process_ends=broken)
        if broken:  # every other lane would fail too, and an orderly end could hang
            os._exit(BROKEN)

    def tidy(self) -> None:
        """Release its memory."""
        self.steps = None
        if self.stream is not None:
            gc.collect()
            torch.cuda.empty_cache()
            self.measure()


def failure(error: BaseException) -> dict[str, Any]:
    """Return what a sweep needs to know about an error that is being handled."""
    return {
        "reason": reason(error),
        "traceback": traceback.format_exc(),
        "busy": isinstance(error, Busy),
        "others_may_be_the_cause": _out_of_memory(error),
    }


def reason(error: BaseException) -> str:
    """Return the error in one line: a sentence for the user unchanged, anything else with its type.

    >>> reason(ValueError("name a file")), reason(KeyError("conv1")), reason(RuntimeError("CUDA error: a\\nhint"))
    ('name a file', "KeyError: 'conv1'", 'RuntimeError: CUDA error: a')
    """
    first = next(iter(str(error).strip().splitlines()), "")
    if isinstance(error, ValueError | OSError | ImportError) and first:
        return first
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _out_of_memory(error: BaseException) -> bool:
    """Return whether the device had too little memory."""
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error).lower()


def _breaks_cuda(error: BaseException) -> bool:
    """Return whether the process cannot use its GPU any more after this error."""
    if isinstance(error, torch.AcceleratorError) or ("CUDA error" in str(error) and not isinstance(error, ValueError)):
        return True
    try:
        torch.cuda.synchronize()
        torch.rand((), device="cuda")  # fails after a recording of a CUDA graph that failed
    except RuntimeError:  # torch raises it for every CUDA error
        return True
    return False
