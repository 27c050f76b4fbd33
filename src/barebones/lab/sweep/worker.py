"""Workers: processes that a sweep starts. Each runs one experiment at a time and sends events about it."""

import faulthandler
import gc
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from ...imports import is_code
from ...pruning.methods import METHODS, Method
from ..experiment import recipes
from ..experiment.experiment import Experiment
from ..run.lock import Busy
from ..run.metrics import Line
from ..run.options import RunOptions
from ..run.run import Stopped, run

BROKEN = 70  # exit code of a process that cannot use its GPU any more
PIPE_PAUSE = 0.1  # seconds between looks into the pipe while a run goes on
TAIL = 8_000  # characters of a dead process's output to keep


@dataclass(frozen=True)
class Event:
    """What a worker reports about its experiment: started, line, done, elsewhere, failed, stopped."""

    kind: str
    folder: str
    about: dict[str, Any] = field(default_factory=dict)


class Worker:
    """The parent's side: it starts the process, gives it experiments and receives its events.

    The process gets the parent's `sys.path`, imports the recipes that the parent has imported, and gets the rows of
    `methods`, so methods that were registered at run time work in it too. It ignores Ctrl-C, which the parent
    handles. It saves and ends its run when it is told to, on SIGTERM, and when the parent is gone.
    """

    def __init__(self, options: RunOptions, methods: Iterable[str] = ()) -> None:
        context = get_context("spawn")
        handle, name = tempfile.mkstemp(prefix="barebones-worker-", suffix=".log")
        os.close(handle)
        self.log = Path(name)  # for the output of the process, which would disturb the table
        self.pipe, other_end = context.Pipe()
        self.process = context.Process(target=work, args=(other_end, options, name, list(recipes.IMPORTED)))
        with _without_ctrl_c():
            self.process.start()
        other_end.close()  # so that either side notices when the other is gone
        known = {name: METHODS[name] for name in methods if name in METHODS and not is_code(name)}  # it imports code
        self._send({name: row for name, row in known.items() if _can_be_sent(row)})
        self.place, self.folder = options.device, ""  # the device, and the folder of the running experiment
        self.ending = False  # its process has said that it ends

    def begin(self, experiment: Experiment) -> None:
        """Give the process an experiment."""
        self.folder = experiment.folder
        self._send(experiment)

    def stop(self) -> None:
        """Tell the process to save its run and end."""
        self._send(None)

    def _send(self, message: Experiment | dict[str, Method] | None) -> None:
        with suppress(OSError):  # the process is gone, which `dead` will report
            self.pipe.send(message)

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
        if event.kind not in ("started", "line"):
            self.folder = ""
        self.ending = self.ending or event.about.get("process_ends", False)
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
        try:
            self.process.join(patience)
        finally:  # also when the wait is interrupted
            if self.process.exitcode is None:
                self.process.kill()
            self.process.join()
            self.process.close()
            self.log.unlink(missing_ok=True)


def work(pipe: Connection, options: RunOptions, log: str, sources: Iterable[str] = ()) -> None:
    """Run in the process: one experiment after another, until the parent sends the order to stop."""
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
        torch.cuda.set_device(torch.device(options.device).index or 0)
    torch.set_num_threads(options.threads)
    while not wire.stopping:
        wire.look(1.0)
        if wire.waiting is not None and not wire.stopping:
            experiment, wire.waiting = wire.waiting, None
            attempt(experiment, options, wire)
            gc.collect()
            if options.on_gpu:
                torch.cuda.empty_cache()
    if wire.waiting is not None:
        wire.tell("stopped", wire.waiting.folder)
    Path(log).unlink(missing_ok=True)  # the parent may be gone, and reads this only after a crash


class Wire:
    """The process's end of the pipe: it sends events, and receives experiments and the order to stop."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe, self.stopping, self.looked_at = pipe, False, 0.0
        self.waiting: Experiment | None = None  # to be run next

    def stop(self) -> None:
        """Make the run save a checkpoint and end."""
        self.stopping = True

    def tell(self, kind: str, folder: str, **about: Any) -> None:
        """Send an event; if the parent is gone, stop."""
        try:
            self.pipe.send(Event(kind, folder, about))
        except OSError:
            self.stop()

    def look(self, seconds: float) -> None:
        """Read the messages of the parent, and wait this many seconds for the first."""
        self.looked_at = monotonic()
        try:
            while self.pipe.poll(seconds):
                message, seconds = self.pipe.recv(), 0.0
                if message is None:
                    self.stop()
                else:
                    self.waiting = message
        except (EOFError, OSError):
            self.stop()

    def should_stop(self) -> bool:
        """Return whether the run is to stop. Each look costs time, so most calls do not look."""
        if monotonic() - self.looked_at >= PIPE_PAUSE:
            self.look(0.0)
        return self.stopping


def attempt(experiment: Experiment, options: RunOptions, wire: Wire) -> None:
    """Run an experiment, and tell how that ends; an error does not end the process, unless it breaks the GPU."""
    folder, held = experiment.folder, False

    def hold() -> None:
        nonlocal held
        held = True
        wire.tell("started", folder)

    def report(line: Line) -> None:
        wire.tell("line", folder, line={name: value for name, value in line.items() if name != "layers"})

    try:
        result = run(experiment, options, report, wire.should_stop, held=hold)
        wire.tell("done" if held else "elsewhere", folder, result=result)  # another process may have finished it
    except Stopped:
        wire.tell("stopped", folder)
    except (Exception, SystemExit) as error:
        memory = isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error).lower()
        broken = options.on_gpu and not memory and _breaks_cuda(error)
        about = {"reason": reason(error), "traceback": traceback.format_exc(), "busy": isinstance(error, Busy)}
        wire.tell("failed", folder, **about, others_may_be_the_cause=memory or broken, process_ends=broken)
        if broken:  # every other run would fail too, and an orderly end could hang
            os._exit(BROKEN)


def reason(error: BaseException) -> str:
    """Return the error in one line: a sentence for the user unchanged, anything else with its type.

    >>> reason(ValueError("name a file")), reason(KeyError("conv1")), reason(RuntimeError("CUDA error: a\\nhint"))
    ('name a file', "KeyError: 'conv1'", 'RuntimeError: CUDA error: a')
    """
    first = next(iter(str(error).strip().splitlines()), "")
    if isinstance(error, ValueError | OSError | ImportError) and first:
        return first
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


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


def _print_to(log: str) -> None:
    """Redirect everything that this process and its libraries print to a file, also the traceback of a crash."""
    sys.stdout.flush()
    sys.stderr.flush()
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.enable(file=2)


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
