"""Processes: the workers of a sweep on this machine. They take runs themselves, and are started and replaced here."""

import signal
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic
from uuid import uuid4

from ...gpu import mps
from ...imports import is_code
from ...pruning.methods import METHODS
from ...running.devices import processors
from ..experiment import recipes
from ..experiment.experiment import Experiment
from ..run.options import RunOptions
from .worker import Round, work

REFRESH = 0.5  # seconds to wait for a process that ends
ON_A_GPU = 4  # experiments at a time
SILENT = 3  # how many processes that died before they told anything are replaced
TAIL = 8_000  # characters of a dead process's output to keep


def places(options: RunOptions, jobs: int | None, devices: Sequence[str] = ()) -> list[str]:
    """Return the device of each worker, in the order in which they start: every GPU gets its first one first."""
    if options.on_gpu:
        return (list(devices) or [options.device]) * (jobs or ON_A_GPU)
    return [options.device] * (jobs or (processors() if options.device == "cpu" else 1))


def sharing(options: RunOptions, jobs: int | None) -> AbstractContextManager[bool]:
    """Return a context that lets workers share a GPU; it says whether they can."""
    return mps.service() if options.on_gpu and jobs != 1 else nullcontext(True)


class Processes:
    """The workers of a sweep on this machine, in two rounds.

    A run that dies with its process, or lacks memory, is left by all workers of this machine; in the second round, each
    device has one worker, and such a run is alone. Each process gets the parent's `sys.path`, imports the recipes that
    the parent has imported, and gets rows of `METHODS`. It ends when the parent is gone.
    """

    def __init__(self, experiments: list[Experiment], options: RunOptions, folder: Path, places: Sequence[str]) -> None:
        self.places, name = places, uuid4().hex
        self.rounds = [Round(folder / (name + end), experiments, options, end != "") for end in ("", "-alone")]
        self.round = self.rounds[0]
        self.processes: dict[BaseProcess, str] = {}  # and their devices
        self.started = self.silent = 0  # processes, and those that died before they told anything

    def attend(self, seconds: float = REFRESH) -> bool:
        """Start what is to be started, wait, and handle the dead; return False if there was nothing to do."""
        if not self.processes and self.rounds and self.round.goes_on():
            self._begin(self.rounds.pop(0))
        if not self.processes:
            return False
        wait([process.sentinel for process in self.processes], seconds)
        for process in [process for process in self.processes if process.exitcode is not None]:
            self._handle(process)
        return True

    def _begin(self, round: Round) -> None:
        left = [experiment for experiment in round.experiments if not round.over(experiment)]
        self.round, places = replace(round, experiments=left), self.places
        self.round.folder.mkdir()
        for place in (list(dict.fromkeys(places)) if round.alone else places)[: len(left)]:
            self._start(place)

    def _start(self, place: str) -> None:
        context, self.started = get_context("spawn"), self.started + 1
        ours, theirs = context.Pipe()
        round = replace(self.round, options=replace(self.round.options, device=place))
        name = str(self.started)
        process = context.Process(target=work, args=(theirs, name, round, list(recipes.IMPORTED)), name=name)
        resource_tracker.ensure_running()  # otherwise the first start would do it, and unblock signals
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the process ignores Ctrl-C
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.processes[process] = place
        theirs.close()
        for method in {experiment.method for experiment in self.round.experiments} & METHODS.keys():
            with suppress(Exception):  # a lambda cannot be sent; objects of the user may raise anything
                if not is_code(method):  # which the process itself imports
                    ours.send((method, METHODS[method]))
        with suppress(OSError):  # it is dead, which will be noticed
            ours.send(None)
        ours.close()

    def _handle(self, process: BaseProcess) -> None:
        """Handle the end of a process: what it ran is tried again alone, and another one takes its place."""
        place, name, code, round = self.processes.pop(process), process.name, process.exitcode, self.round
        process.close()
        if not code or not round.goes_on():
            return
        log, told = round.folder / f"{name}.log", (round.folder / f"{name}.jsonl").exists()
        printed = log.read_text(encoding="utf-8", errors="replace")[-TAIL:] if log.exists() else ""
        for experiment in round.experiments:
            if round.owner(experiment) in (name, ""):
                round.fail(name, experiment, ending(code), printed, again=True)
                told = True
        self.silent += not told
        if told or self.silent <= SILENT:
            self._start(place)
        elif not self.processes:  # another one would end like them
            raise ValueError(f"the workers of the sweep cannot start: {ending(code)}\n{printed}".rstrip())

    def end(self, patience: float) -> None:
        """Wait for the processes, which save and end if the sweep does; kill them then, or on a KeyboardInterrupt."""
        until = monotonic() + patience
        with suppress(KeyboardInterrupt):
            while monotonic() < until and self.attend():
                pass
        for process in self.processes:
            process.kill()
            process.join()


def ending(code: int) -> str:
    """Return in words how a process ended, from its exit code."""
    if code >= 0:
        return f"the process ended with exit code {code}"
    hint = "; out of memory?" if code == -9 else ""
    name = next((f", {known.name}" for known in signal.Signals if known == -code), "")
    return f"the process was killed (signal {-code}{name}){hint}"
