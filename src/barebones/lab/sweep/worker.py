"""Workers: processes that take runs which nobody has, one at a time, until all have ended. The folder is the queue."""

import faulthandler
import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import torch

from ...messages import first_line
from ...pruning.methods import METHODS
from ..experiment import recipes
from ..experiment.experiment import Experiment
from ..run.folder import FAILURE, RESULT, write_json
from ..run.lock import Busy, check_free
from ..run.metrics import Line
from ..run.options import RunOptions
from ..run.run import Stopped, run
from .jobs import BUSY, DONE, FAILED, QUEUED, RUNNING, SKIPPED

GO = "go"  # a file in the folder of a sweep; when it is gone, workers save and end
BROKEN = 70  # exit code of a process that cannot use its GPU any more
PAUSE = 0.1  # seconds between looks whether to stop
AGAIN = 1.0  # seconds until a worker comes back to runs that others have
TOLD = 5.0  # seconds between lines about progress


@dataclass(frozen=True)
class Round:
    """The runs that the workers of one machine share, and the folder in which they claim them and tell what they do."""

    folder: Path
    experiments: list[Experiment]
    options: RunOptions
    alone: bool = False  # each run has its device for itself, and is not tried again

    def goes_on(self) -> bool:
        return (self.folder.parent / GO).exists()

    def file(self, experiment: Experiment, kind: str) -> Path:
        """Return the path of a claim ("run"), which outlives a killed worker, or of a note that the run is "left"."""
        return self.folder / f"{experiment.id}.{kind}"

    def over(self, experiment: Experiment) -> bool:
        """Return whether a run has ended, or is left: this round does not try it again."""
        folder = self.options.folder(experiment)
        return any(path.exists() for path in (folder / RESULT, folder / FAILURE, self.file(experiment, "left")))

    def owner(self, experiment: Experiment) -> str | None:
        """Return the name of the worker that has claimed a run, if any; it is empty if that died while claiming."""
        try:
            return self.file(experiment, "run").read_text()
        except FileNotFoundError:
            return None

    def tell(self, worker: str, experiment: Experiment, **changes: Any) -> None:
        """Append what changes about the job of a run to the file of a worker."""
        text = json.dumps({"run": experiment.folder, **changes}) + "\n"
        with suppress(OSError), open(self.folder / f"{worker}.jsonl", "a") as file:  # a full disk ends no run
            file.write(text)

    def fail(self, worker: str, experiment: Experiment, reason: str, details: str, again: bool) -> None:
        """Leave a run that failed to be tried `again`, alone; or record its failure."""
        if not (again := again and not self.alone):
            path = self.options.folder(experiment) / FAILURE
            failure = {"experiment": experiment.to_dict(), "reason": reason, "traceback": details}
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_json(path, {**failure, "attempts": 1 + self.alone}, experiment.folder)
            except OSError as error:
                reason += f"; {first_line(error)}"
        with suppress(OSError):
            self.file(experiment, "left").touch()
            self.file(experiment, "run").unlink(missing_ok=True)
        state = {"state": QUEUED, "alone": True} if again else {"state": FAILED, "ended": monotonic()}
        self.tell(worker, experiment, **state, reason=reason)


class Worker:
    """What a process does: it looks at the runs of its round until all are over."""

    def __init__(self, name: str, round: Round) -> None:
        self.name, self.round, self.options = name, round, round.options
        self.runs = list(round.experiments)  # to look at
        self.busy: set[Experiment] = set()  # of which it told that others have them
        self.stopped, self.looked, self.told = False, 0.0, 0.0

    def stop(self, *signal: object) -> bool:
        """Return whether to save a checkpoint and end: after a signal, and when the sweep says so or is gone."""
        if signal:
            self.stopped = True
        elif monotonic() - self.looked >= PAUSE:  # each look costs time, so most calls do not look
            parent = parent_process()
            self.looked, gone = monotonic(), parent is not None and not parent.is_alive()
            self.stopped = self.stopped or gone or not self.round.goes_on()
        return self.stopped

    def work(self) -> None:
        while self.runs and not self.stop():
            began = monotonic()
            taken = {experiment for experiment in self.runs if not self.stop() and self.take(experiment)}
            self.runs = [experiment for experiment in self.runs if experiment not in taken]
            while not taken and not self.stop() and monotonic() < began + AGAIN:
                sleep(PAUSE)

    def take(self, experiment: Experiment) -> bool:
        """Run an experiment if nobody has it; return whether it is over."""
        claim = self.round.file(experiment, "run")
        try:
            with claim.open("x") as file:
                file.write(self.name)
        except FileExistsError:
            return False
        except OSError as error:  # for example a full disk
            self.round.fail(self.name, experiment, reason(error), traceback.format_exc(), again=False)
            return True
        over = self.attempt(experiment)
        claim.unlink(missing_ok=True)
        return over

    def attempt(self, experiment: Experiment) -> bool:
        """Run an experiment that is claimed, and tell how that ends; return whether it is over.

        An error does not end the process, unless it breaks the GPU. What fails may be tried again, alone, if something
        else than the experiment may be the cause.
        """
        told: set[str] = set()

        def tell(**changes: Any) -> None:
            told.update(changes)
            self.round.tell(self.name, experiment, **changes)

        def hold() -> None:
            tell(state=RUNNING, began=monotonic(), reason="", warning="")

        def report(line: Line) -> None:
            if "warning" in line:
                tell(warning=line["warning"], short=line["short"])
            elif "resumed" in line or monotonic() - self.told >= TOLD:
                self.told = monotonic()
                tell(line={name: value for name, value in line.items() if name != "layers"})

        try:
            if self.round.over(experiment):
                tell(state=SKIPPED)
                return True
            with suppress(OSError):  # the run itself will tell
                check_free(self.options.folder(experiment))
            result = run(experiment, self.options, report, self.stop, held=hold)
            ending = {"state": DONE, "ended": monotonic(), "accuracy": result["test"]["top1"]}
            tell(**ending if told else {"state": SKIPPED})
        except Stopped:
            return False
        except Busy:
            if told or experiment not in self.busy:
                self.busy.add(experiment)
                tell(state=QUEUED, reason=BUSY)
            return False
        except (Exception, SystemExit) as error:
            memory = isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error).lower()
            broken = self.options.on_gpu and not memory and _breaks_cuda(error)
            self.round.fail(self.name, experiment, reason(error), traceback.format_exc(), again=memory or broken)
            if broken:  # every other run would fail too, and an orderly end could hang
                os._exit(BROKEN)
        gc.collect()
        if self.options.on_gpu:
            torch.cuda.empty_cache()
        return True


def work(pipe: Connection, name: str, round: Round, sources: Iterable[str]) -> None:
    """Run in the process. It imports these sources, and then gets rows of `METHODS` from the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with open(round.folder / f"{name}.log", "ab") as log:  # for all that is printed, also the traceback of a crash
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    faulthandler.enable(file=2)
    for source in sources:
        recipes.imported(source)  # it may register methods
    METHODS.update(iter(pipe.recv, None))
    if round.options.on_gpu:
        torch.cuda.set_device(torch.device(round.options.device).index or 0)
    torch.set_num_threads(round.options.threads)
    worker = Worker(name, round)
    signal.signal(signal.SIGTERM, worker.stop)
    worker.work()
    sys.exit(bool(worker.runs))  # so that another process takes its place if only this one was told to end


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
