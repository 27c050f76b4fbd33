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
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from ...imports import is_code
from ...messages import first_line
from ...pruning.methods import METHODS, Method
from ..experiment import recipes
from ..experiment.experiment import Experiment
from ..run.lock import Busy
from ..run.metrics import Line
from ..run.options import RunOptions
from ..run.run import Stopped, run

BROKEN = 70  # exit code of a process that cannot use its GPU any more
PIPE_PAUSE = 0.1  # seconds between looks into the pipe while a run goes on
ENDING = 5.0  # seconds that a process without a run has to end
TAIL = 8_000  # characters of a dead process's output to keep


@dataclass(frozen=True)
class Event:
    """What a process reports about its experiment: started, line, done, failed. With `ends`, the process ends."""

    kind: str
    about: dict[str, Any] = field(default_factory=dict)
    ends: bool = False


class Worker:
    """The parent's side: it starts a process when there is an experiment for it, and another one when that has died.

    The process gets the parent's `sys.path`, imports the recipes that the parent has imported, and gets the rows of
    `methods`. It ignores Ctrl-C, which the parent handles. It saves and ends its run when it is told to, on SIGTERM,
    and when the parent is gone.
    """

    process: BaseProcess | None = None
    pipe: Connection
    log: Path  # for the output of the process, which would disturb the table
    folder = ""  # of the running experiment

    def __init__(self, options: RunOptions, methods: Iterable[str] = ()) -> None:
        self.options, self.methods = options, methods
        self.place = options.device

    def begin(self, experiment: Experiment) -> None:
        if self.process is None:
            self._start()
        self.folder = experiment.folder
        self._send(experiment)

    def _start(self) -> None:
        context = get_context("spawn")
        handle, name = tempfile.mkstemp(prefix="barebones-worker-", suffix=".log")
        os.close(handle)
        self.log = Path(name)
        self.pipe, other_end = context.Pipe()
        self.process = context.Process(target=work, args=(other_end, self.options, name, list(recipes.IMPORTED)))
        with _without_ctrl_c():
            self.process.start()
        other_end.close()  # so that either side notices when the other is gone
        known = {name: METHODS[name] for name in self.methods if name in METHODS and not is_code(name)}
        self._send({name: row for name, row in known.items() if _can_be_sent(row)})  # the process itself imports code

    def stop(self) -> None:
        """Tell the process to save its run and end."""
        if self.process is not None:
            self._send(None)

    def _send(self, message: Experiment | dict[str, Method] | None) -> None:
        with suppress(OSError):  # the process is gone, which `dead` will report
            self.pipe.send(message)

    def events(self) -> Iterator[tuple[str, Event]]:
        """Yield the folder of the running experiment and each event about it since the last call."""
        while self.process is not None:
            try:
                if not self.pipe.poll():
                    return
                event = self.pipe.recv()
            except (EOFError, OSError):  # the process has ended
                self.process.join(ENDING)
                return
            folder = self.folder
            if event.kind in ("done", "failed"):
                self.folder = ""
            if event.ends:  # so that it gets no other experiment
                self.close(ENDING)
            yield folder, event

    def dead(self) -> str | None:
        """Return how the process ended, in words; None while it runs, and where there is none."""
        code = self.process.exitcode if self.process else None
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

    def close(self, patience: float = 0.0) -> None:
        """Close the pipe, which tells the process to stop; kill it after `patience` seconds."""
        if self.process is None:
            return
        process, self.process, self.folder = self.process, None, ""
        self.pipe.close()
        try:
            process.join(patience)
        finally:  # also when the wait is interrupted
            if process.exitcode is None:
                process.kill()
            process.join()
            process.close()
            self.log.unlink(missing_ok=True)


def work(pipe: Connection, options: RunOptions, log: str, sources: Iterable[str] = ()) -> None:
    """Run in the process: one experiment after another, until the parent sends the order to stop, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _print_to(log)
    for source in sources:
        recipes.imported(source)  # it may register methods
    if options.on_gpu:
        torch.cuda.set_device(torch.device(options.device).index or 0)
    torch.set_num_threads(options.threads)
    stop = Stop(pipe)
    with suppress(EOFError, OSError):  # the parent is gone
        METHODS.update(pipe.recv())
        while not stop.asked and (experiment := pipe.recv()) is not None:
            signal.signal(signal.SIGTERM, stop.ask)  # between two runs, it ends the process
            attempt(experiment, options, pipe, stop)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            gc.collect()
            if options.on_gpu:
                torch.cuda.empty_cache()
    Path(log).unlink(missing_ok=True)  # the parent may be gone, and reads this only after a crash


class Stop:
    """Whether the run is to save a checkpoint and end: on SIGTERM, and when the parent says so or is gone."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe, self.asked, self.looked = pipe, False, 0.0

    def ask(self, *signal: object) -> None:
        """Handle SIGTERM."""
        self.asked = True

    def __call__(self) -> bool:
        if monotonic() - self.looked >= PIPE_PAUSE:  # each look costs time, so most calls do not look
            self.looked, self.asked = monotonic(), self.asked or self.pipe.poll()
        return self.asked


def attempt(experiment: Experiment, options: RunOptions, pipe: Connection, stop: Stop) -> None:
    """Run an experiment, and tell how that ends; an error does not end the process, unless it breaks the GPU.

    What fails may be tried `again`, alone, if something else than the experiment may be the cause.
    """

    def tell(kind: str, ends: bool = False, **about: Any) -> None:
        with suppress(OSError):  # the parent is gone, which `stop` notices
            pipe.send(Event(kind, about, ends))

    def report(line: Line) -> None:
        tell("line", line={name: value for name, value in line.items() if name != "layers"})

    try:
        if stop():  # before it begins
            raise Stopped
        result = run(experiment, options, report, stop, held=lambda: tell("started"))
        tell("done", top1=result["test"]["top1"])
    except Stopped:
        tell("failed", True, reason="the process was told to stop (SIGTERM)", details="", again=True)
    except Busy as error:
        tell("failed", reason=str(error), busy=True)
    except (Exception, SystemExit) as error:
        memory = isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error).lower()
        broken = options.on_gpu and not memory and _breaks_cuda(error)
        tell("failed", broken, reason=reason(error), details=traceback.format_exc(), again=memory or broken)
        if broken:  # every other run would fail too, and an orderly end could hang
            os._exit(BROKEN)


def reason(error: BaseException) -> str:
    """Return the error in one line: a sentence for the user unchanged, anything else with its type.

    >>> reason(ValueError("name a file")), reason(KeyError("conv1")), reason(RuntimeError("CUDA error: a\\nhint"))
    ('name a file', "KeyError: 'conv1'", 'RuntimeError: CUDA error: a')
    """
    kind, first = type(error).__name__, first_line(error)
    return first if isinstance(error, ValueError | OSError | ImportError) or first == kind else f"{kind}: {first}"


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
    try:
        ForkingPickler.dumps(method)
    except Exception:  # a lambda or a local function; objects of the user may raise anything
        return False
    return True


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Block Ctrl-C while a process starts, until that process ignores it; the parent gets the signal afterwards."""
    resource_tracker.ensure_running()  # otherwise the first start would do it, and unblock signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
