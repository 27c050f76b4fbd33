"""A sweep: many experiments, several at a time. Failures are recorded, and the other experiments continue."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from shutil import rmtree
from time import monotonic, time
from typing import Any
from uuid import uuid4

import torch
from rich.console import Console

from ...data import DATA, load
from ...imports import is_code
from ...messages import first_line, unknown
from ...models import MODELS, check_name, wanted
from ...running.devices import check_here
from ..experiment.experiment import Experiment
from ..records import records
from ..run.folder import FAILURE
from ..run.heartbeat import clock, heartbeat
from ..run.loading import check_unchanged
from ..run.network import check_each
from ..run.options import RunOptions
from .jobs import DONE, FAILED, QUEUED, RUNNING, SKIPPED, STOPPED, Job, Jobs, live_table, sentence, status
from .processes import Processes, places, sharing
from .worker import GO

ENGINES = LOCAL, RAY = "local", "ray"
HIDDEN = ".sweep-"  # the beginning of the name of a sweep's folder, in which it is told what goes on
OLD = 24 * 3600.0  # seconds without a change, after which the folder of a sweep is one that was killed
PATIENCE = 60.0  # seconds that the runs have to save a checkpoint when the sweep ends
SAVING = 30.0, 0.1  # seconds, and share of the sweep's time: the smaller one is left for saving at its end


@dataclass(frozen=True)
class SweepResult:
    """How many experiments ended in which way, and the tables of records that were written."""

    done: int
    failed: int  # also in an earlier sweep
    stopped: int  # all that are unfinished
    skipped: int  # finished by an earlier sweep or another process
    tables: list[Path]


def sweep(
    experiments: Sequence[Experiment],
    options: RunOptions,
    *,
    jobs: int | None = None,
    devices: Sequence[int] = (),
    retry_failed: bool = False,
    time_limit: float | None = None,
    engine: str = LOCAL,
    engine_options: Mapping[str, Any] | None = None,
    console: Console,
    stopping: Callable[[], bool] = lambda: False,
    summarize: bool = True,
) -> SweepResult:
    """Run all experiments that are not finished, several at a time, and write the records as the runs end.

    `jobs` processes run one experiment each at a time: by default one process per processor, of one thread, or four
    on each CUDA device, which share it by MPS where that is installed. An experiment that lacks memory beside others
    is tried again alone. The device "cuda" stands for all GPUs, or for those whose numbers are in `devices`. The
    engine "ray" has a worker on each GPU or node of a cluster, all of which must see the folder of the runs.

    When `stopping()` becomes true, after `time_limit` minutes, and on a KeyboardInterrupt, every run saves a
    checkpoint and ends. A second KeyboardInterrupt kills the runs instead.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs={jobs}: at least one experiment must run at a time")
    if time_limit is not None and not 0 < time_limit < float("inf"):
        raise ValueError(f"time_limit={time_limit:g}: a sweep needs some time; leave it out for no limit")
    end = monotonic() + 60 * time_limit if time_limit else float("inf")
    pause = min(SAVING[0], SAVING[1] * 60 * time_limit) if time_limit else 0.0
    if engine not in ENGINES:
        raise ValueError(unknown("engine", engine, ENGINES))
    if engine_options and engine == LOCAL:
        raise ValueError("the local engine has no options; leave out --engine-option, or choose another --engine")
    if devices and engine != LOCAL:
        raise ValueError(f"--devices names GPUs of this machine, but --engine {engine} chooses them; leave it out")
    if engine == RAY and options.on_gpu and options.device != "cuda":
        raise ValueError(f"--engine ray chooses the GPUs itself; use --device cuda instead of {options.device}")
    listed = _listed(experiments, options, retry_failed)
    queued = [job.experiment for job in listed if job.state == QUEUED]
    _check(queued, options, here=engine == LOCAL)
    gpus = _gpus(options, devices)
    board, folder, about = Jobs(listed, options.runs), options.runs.absolute() / f"{HIDDEN}{uuid4().hex}", ""
    with ExitStack() as stack:
        if queued and engine == RAY:
            ray = import_module(".ray", __package__)
            starter = stack.enter_context(ray.joined(dict(engine_options or {}), queued, options, folder, jobs))
            about = f"Ray cluster {starter.head}, {len(starter.nodes())} workers"
        else:
            starter = Processes(queued, options, folder, places(options, jobs, gpus))
            if queued and not stack.enter_context(sharing(options, jobs)):
                about = "NVIDIA's MPS does not run here, so the experiments on a GPU take turns."
        stack.enter_context(_opened(folder))
        for experiment in queued:  # to whoever shares the folder, it has not failed any more
            (options.folder(experiment) / FAILURE).unlink(missing_ok=True)
        say = stack.enter_context(heartbeat(console, lambda: status(board)))
        stack.enter_context(live_table(board, console))
        if about and summarize:
            say(about)

        def show(jobs: Iterable[Job]) -> None:
            for job in jobs:
                if summarize and not console.is_terminal:
                    say(sentence(job))

        ended, patience = board.count(DONE, FAILED), 10.0  # after an error; without its head, Ray aborts us soon
        try:
            while board.count(QUEUED, RUNNING) and not stopping() and monotonic() < end - pause and starter.attend():
                show(board.read(folder))
                with suppress(OSError):  # so that no other sweep takes the folder for that of a killed one
                    os.utime(folder / GO)
                if board.count(DONE, FAILED) > ended:
                    ended = board.count(DONE, FAILED)
                    with suppress(OSError):  # a full disk must not end the sweep; the last writing raises
                        records.update(options.runs)
            patience = PATIENCE
        except KeyboardInterrupt:
            patience = 0.0 if stopping() else PATIENCE  # the second one kills
        finally:
            board.stopping = True
            (folder / GO).unlink(missing_ok=True)
            starter.end(min(patience, max(end - monotonic(), 0.0)))
            show(board.read(folder))
            show(board.stop())
    try:
        tables, problem = records.update(options.runs)[1], ""
    except OSError as error:  # for example a full disk
        tables, problem = [], f"Records: {first_line(error)}; solve that, and run the same command again."
    rows = [job.look(options.runs) for job in listed]  # also of what another process has ended
    unfinished = board.count(QUEUED, RUNNING, STOPPED)
    result = SweepResult(board.count(DONE), board.count(FAILED), unfinished, board.count(SKIPPED), tables)
    if summarize:
        if swept := [row for row in rows if row is not None]:
            console.print(records.summary(records.arranged(swept)))
        why = f"The {time_limit:g} minutes are over. " if monotonic() >= end - pause else ""
        for text in _sentences(board, result, why, problem):
            say(text)
    return result


@contextmanager
def _opened(folder: Path) -> Iterator[None]:
    """Make the folder of a sweep, and remove it at the end of the block; remove those of sweeps that were killed."""
    for old in folder.parent.glob(f"{HIDDEN}*"):
        with suppress(OSError, ValueError):
            if time() - max(each.stat().st_mtime for each in (old, *old.rglob("*"))) > OLD:
                rmtree(old)
    folder.mkdir(parents=True)
    try:
        (folder / GO).touch()
        yield
    finally:
        rmtree(folder, ignore_errors=True)


def _gpus(options: RunOptions, numbers: Sequence[int]) -> list[str]:
    """Return the GPUs that the sweep uses; nothing if one device is named, or if there is one."""
    if numbers and options.device != "cuda":
        raise ValueError(f"--devices chooses among all GPUs, but --device is {options.device}; leave one of them out")
    if options.device != "cuda":
        return []
    there = torch.cuda.device_count()
    if len(set(numbers) & set(range(there))) < len(numbers):
        raise ValueError(f"devices {','.join(map(str, numbers))}: name each GPU once, from 0 to {there - 1}")
    return [f"cuda:{number}" for number in numbers or range(there)] if numbers or there > 1 else []


def _listed(experiments: Sequence[Experiment], options: RunOptions, retry_failed: bool) -> list[Job]:
    """Make a job for each different experiment, in the state that its run folder shows."""
    jobs = [Job(resolved) for resolved in dict.fromkeys(each.resolved(options.device) for each in experiments)]
    for job in jobs:
        row = job.look(options.runs)
        own = job.experiment.model not in MODELS or job.experiment.data not in DATA or is_code(job.experiment.method)
        if job.state == SKIPPED and own:  # its code or data may have changed since
            check_unchanged(options.runs / job.experiment.folder, job.experiment, options)
        if retry_failed and row is not None and row["status"] == records.FAILED:
            job.state, job.reason = QUEUED, ""
    return jobs


def _check(experiments: Sequence[Experiment], options: RunOptions, here: bool) -> None:
    """Raise at once the errors that would make every run fail: a missing device, an unknown network, missing data."""
    if not experiments:
        return
    if here:
        check_here(options.device)
    for model in dict.fromkeys(experiment.model for experiment in experiments):
        check_name(model)
    check_each(experiments)
    for data, wish in dict.fromkeys((experiment.data, wanted(experiment.model)) for experiment in experiments):
        form = wish._asdict() if wish else {}
        load(data, options.data_root, download=options.download, **form)  # downloads once, not in each process


def _sentences(jobs: Jobs, result: SweepResult, why: str, problem: str) -> Iterator[str]:
    """Yield the results of the sweep in sentences; `why` says why runs are unfinished, `problem` why no tables."""
    for job in jobs.all.values():
        if job.state == FAILED:
            yield f"failed: {jobs.runs / job.experiment.folder}: {job.reason}"
    before = f", {result.skipped} done before or by another process" if result.skipped else ""
    yield f"{result.done} done{before}, {result.failed} failed, in {clock(monotonic() - jobs.began)}."
    if any((jobs.runs / job.experiment.folder / FAILURE).exists() for job in jobs.all.values()):
        yield f"Each failed run has its traceback in {FAILURE}; --retry-failed runs it again."
    yield problem or f"Records: {', '.join(map(str, result.tables))}"
    if result.stopped:
        yield f"{why}{result.stopped} unfinished; run the same command again to resume."
