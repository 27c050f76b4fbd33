"""Workers: each run is taken once, an error ends one run alone, and what dies or lacks memory is tried again alone."""

import json
import os
import signal
import stat
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
import torch
from suites import cases

from barebones.gpu import mps
from barebones.lab.experiment.experiment import Experiment
from barebones.lab.run import options
from barebones.lab.run.lock import Busy, locked
from barebones.lab.run.options import RunOptions
from barebones.lab.run.run import Stopped
from barebones.lab.sweep import processes, worker
from barebones.lab.sweep.processes import Processes, places
from barebones.lab.sweep.worker import GO, Round, Worker


def made(seed: int = 0) -> Experiment:
    return Experiment("small-vgg", "digits", "random", 0.9, seed=seed, epochs=1).resolved()


@pytest.fixture
def sweep(tmp_path) -> Path:
    """The folder of a sweep that goes on."""
    (tmp_path / "runs" / ".sweep").mkdir(parents=True)
    (tmp_path / "runs" / ".sweep" / GO).touch()
    return tmp_path / "runs" / ".sweep"


def worked(sweep: Path, monkeypatch, body, number: int = 1, alone: bool = False, device: str = "cpu") -> list[dict]:
    """Let a worker look at so many runs with this body; return what it tells, without times."""
    monkeypatch.setattr(worker, "run", lambda experiment, options, *about, held: body(*about, held))
    round = Round(sweep / "round", [made(seed) for seed in range(number)], RunOptions(sweep.parent, device), alone)
    round.folder.mkdir()
    Worker("1", round).work()
    told = (round.folder / "1.jsonl").read_text().splitlines() if (round.folder / "1.jsonl").exists() else []
    assert not list(round.folder.glob("*.run"))
    return [{k: v for k, v in json.loads(line).items() if k not in ("run", "began", "ended")} for line in told]


def raises(error: BaseException):
    def body(report, stopping, held):
        raise error

    return body


def test_a_worker_tells_how_far_a_run_is_and_how_it_ends(sweep, monkeypatch):
    def body(report, stopping, held):
        held()
        report({"stage": "prune", "round": 1, "layers": {}, "resumed": False})
        report({"stage": "prune", "round": 2, "layers": {}})  # too soon after the last one
        report({"stage": "prune", "warning": "a.", "short": "b"})
        return {"test": {"top1": 0.5}}

    assert worked(sweep, monkeypatch, body) == [
        {"state": "running", "reason": "", "warning": ""},
        {"line": {"stage": "prune", "round": 1, "resumed": False}},
        {"warning": "a.", "short": "b"},
        {"state": "done", "accuracy": 0.5},
    ]


def test_a_run_that_another_process_has_waits(sweep, monkeypatch):
    monkeypatch.setattr(worker, "AGAIN", 0.0)
    tries = iter([Busy("wait")] * 3 + [None])

    def body(report, stopping, held):
        if error := next(tries):
            raise error
        held()
        return {"test": {"top1": 0.5}}

    busy, running, done = worked(sweep, monkeypatch, body)
    assert (busy["state"], running["state"], done["state"]) == ("queued", "running", "done")
    assert busy["reason"] == "another process runs it; this sweep comes back to it"  # told once


@pytest.mark.slow
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize(
    ("error", "why", "again"),
    [
        (ValueError("do this"), "do this", False),
        (SystemExit(3), "SystemExit: 3", False),
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), "OutOfMemoryError: CUDA out of memory. Tried", True),
        (RuntimeError(), "RuntimeError", False),
    ],
)
def test_an_error_ends_its_run_alone_and_lack_of_memory_is_tried_again(sweep, monkeypatch, error, why, again, alone):
    first, second = worked(sweep, monkeypatch, raises(error), 2, alone)
    assert first == second
    assert (first["reason"], first["state"]) == (why, "queued" if again and not alone else "failed")
    path = sweep.parent / made().folder / "failure.json"
    assert path.exists() == (alone or not again)
    if path.exists():
        failure = json.loads(path.read_text())
        assert (failure["reason"], failure["attempts"]) == (why, 1 + alone)
        assert "raise error" in failure["traceback"]


def test_a_failure_that_cannot_be_written_does_not_end_the_worker(sweep, monkeypatch):
    def full(path, value, owner):
        raise OSError(28, "No space left on device", path.name)

    monkeypatch.setattr(worker, "write_json", full)
    first, second = worked(sweep, monkeypatch, raises(ValueError("do this")), 2)
    assert first["reason"] == "do this; No space left on device: failure.json"
    assert second["state"] == "failed"


@pytest.mark.parametrize("usable", [True, False])
def test_a_process_whose_random_numbers_are_broken_ends_and_its_run_is_tried_again(sweep, monkeypatch, usable):
    """It takes no other run, which would be lost with it."""

    def rand(*size, device):
        if not usable:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")

    def leave(code: int):
        raise EOFError(code)

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch, "rand", rand)
    monkeypatch.setattr(os, "_exit", leave)
    error = ValueError("this network cannot be captured in a CUDA graph")
    if usable:
        assert [told["state"] for told in worked(sweep, monkeypatch, raises(error), 2, device="cuda")] == ["failed"] * 2
        return
    with pytest.raises(EOFError, match=str(worker.BROKEN)):
        worked(sweep, monkeypatch, raises(error), 2, device="cuda")
    (told,) = (sweep / "round" / "1.jsonl").read_text().splitlines()
    assert json.loads(told)["state"] == "queued"


def test_whoever_is_told_to_stop_saves_and_takes_no_other_run(sweep, monkeypatch):
    def body(report, stopping, held):
        held()
        (sweep / GO).unlink(missing_ok=True)
        monkeypatch.setattr(worker, "PAUSE", 0.0)
        assert stopping()
        raise Stopped

    assert worked(sweep, monkeypatch, body, 2) == [{"state": "running", "reason": "", "warning": ""}]


class Killed(BaseException):
    """Ends a worker as a signal does, so that it tells nothing."""


class Fake:
    """A process that a test steps. While it is in a run, others may step, too."""

    exitcode, sentinel, inside = None, 0, False

    def __init__(self, name: str, round: Round, place: str) -> None:
        self.name, self.place, self.worker = name, place, Worker(name, round)

    def close(self) -> None:
        pass

    def kill(self) -> None:
        self.exitcode = -9

    def join(self) -> None:
        assert self.exitcode is not None


class Fakes(Processes):
    def _start(self, place: str) -> None:
        self.started += 1
        self.processes[Fake(f"{self.started}", self.round, place)] = place  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.parametrize("case", range(cases(60)))
def test_whatever_happens_every_run_ends_once(case, sweep, monkeypatch):
    """Random events: runs end, fail, lack memory, are stopped, and workers die; one or two sweeps in a folder."""
    random = Random(case)
    ended, running, tried, wrong = [], [], [], []
    experiments, gpus = [made(seed) for seed in range(random.randint(1, 9))], ["cuda:0", "cuda:1"]
    sweeps = [sweep.with_name(f".sweep-{n}") for n in range(random.randint(1, 2))]
    options = RunOptions(sweep.parent)
    for folder in sweeps:
        folder.mkdir()
        (folder / GO).touch()
    monkeypatch.setattr(processes, "wait", lambda sentinels, seconds: None)
    starters = [Fakes(random.sample(experiments, len(experiments)), options, folder, 2 * gpus) for folder in sweeps]

    def run(experiment, options, report, stopping, held):
        folder = options.folder(experiment)
        folder.mkdir(exist_ok=True)
        with locked(folder):
            held()
            here = (current.starter, current.place, current.starter.round.alone)
            beside = [where[2] for where in running if where[:2] == here[:2]]
            again = (experiment, *here[::2]) in tried
            wrong.extend([here] * (again or (bool(beside) and any([here[2], *beside]))))
            tried.append((experiment, *here[::2]))
            running.append(here)
            try:
                for _ in range(random.randint(0, 3)):
                    step()
            finally:
                running.pop()
            fate = random.random()
            if fate < 0.15:
                raise Killed
            if fate < 0.3:
                raise torch.OutOfMemoryError("out of memory")
            if fate < 0.4:
                tried.pop(tried.index((experiment, *here[::2])))
                raise Stopped
            ended.append(experiment)
            if fate < 0.5:
                raise ValueError("no luck")
            (folder / "result.json").touch()
            return {"test": {"top1": 0.5}}

    current = SimpleNamespace(starter=None, place=None)

    def step() -> bool:
        starter = random.choice(starters)
        busy = starter.attend()
        idle = [process for process in starter.processes if not process.inside and process.exitcode is None]
        if not idle:
            return busy
        process, before = random.choice(idle), dict(vars(current))
        process.inside, current.starter, current.place = True, starter, process.place
        try:
            told = (process.worker.round.folder / f"{process.name}.jsonl").exists()
            if not process.worker.runs:
                process.exitcode = 0
            elif told and random.random() < 0.05:
                process.exitcode = -9
            elif process.worker.take(experiment := random.choice(process.worker.runs)):
                process.worker.runs.remove(experiment)
        except Killed:
            process.exitcode = -9
        process.inside = False
        vars(current).update(before)
        return True

    monkeypatch.setattr(worker, "run", run)
    monkeypatch.setattr(worker.gc, "collect", lambda: 0)  # it is slow
    for _ in range(20_000):
        if not step() and not any(starter.attend() for starter in starters):
            break
    failed = [each for each in experiments if (options.folder(each) / "failure.json").exists()]
    done = [each for each in experiments if (options.folder(each) / "result.json").exists()]
    assert not wrong  # no run was tried twice in a round, or beside one that was alone
    told = "".join(path.read_text() for path in sweep.parent.glob(".sweep-*/*/*.jsonl"))
    assert len(sweeps) == 2 or "another process" not in told
    assert {*failed, *done} == {*experiments}
    assert len(failed) + len(done) == len(experiments)
    assert len(ended) == len({*ended})
    assert {*done} <= {*ended}


def test_an_interrupt_kills_the_workers(sweep, monkeypatch):
    def interrupted(sentinels, seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(processes, "wait", lambda sentinels, seconds: None)
    starter = Fakes([made(), made(1)], RunOptions(sweep.parent), sweep, ["cpu"] * 2)
    starter.attend()
    monkeypatch.setattr(processes, "wait", interrupted)
    starter.end(60.0)
    assert [process.exitcode for process in starter.processes] == [-9, -9]


def test_a_claim_that_is_half_written_is_that_of_the_dead_worker(sweep, monkeypatch):
    monkeypatch.setattr(processes, "wait", lambda sentinels, seconds: None)
    starter = Fakes([made()], RunOptions(sweep.parent), sweep, ["cpu"])
    starter.attend()
    starter.round.file(made(), "run").touch()
    next(iter(starter.processes)).exitcode = -9
    starter.attend()
    assert starter.round.over(made())  # so it is left to be tried again, alone


def test_workers_that_cannot_start_end_the_sweep_in_a_sentence(sweep, monkeypatch):
    monkeypatch.setattr(processes, "wait", lambda sentinels, seconds: None)
    starter = Fakes([made()], RunOptions(sweep.parent), sweep, ["cpu"] * 2)
    starter.attend()
    for _ in range(processes.SILENT):  # each may have been killed by chance
        (process,) = starter.processes  # no more than there are runs
        process.exitcode = -9
        starter.attend()
    (process,) = starter.processes
    process.exitcode = 1
    (starter.round.folder / f"{process.name}.log").write_text("ImportError: no luck\n")
    problem = r"the workers of the sweep cannot start: .* exit code 1\nImportError: no luck"
    with pytest.raises(ValueError, match=problem):
        starter.attend()


def test_every_gpu_gets_its_first_run_first(monkeypatch):
    monkeypatch.setattr(processes, "processors", lambda: 3)
    gpu = RunOptions(device="cuda")
    assert places(gpu, 2, ["cuda:0", "cuda:2"]) == ["cuda:0", "cuda:2", "cuda:0", "cuda:2"]
    assert places(gpu, None) == ["cuda"] * 4
    assert places(RunOptions(), None) == ["cpu"] * 3
    assert places(RunOptions(device="mps"), None) == ["mps"]


@pytest.mark.parametrize(("device", "there", "used"), [("cpu", 16, 1), ("cuda:1", 16, 2), ("cuda", 1, 1)])
def test_the_processes_of_a_sweep_do_not_fight_for_the_processors(monkeypatch, sweep, device, there, used):
    monkeypatch.setattr(options, "processors", lambda: there)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    monkeypatch.setattr(os, "dup2", lambda source, target: None)
    monkeypatch.setattr(worker.faulthandler, "enable", lambda file: None)
    before, handlers = torch.get_num_threads(), {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    round = Round(sweep / "round", [], RunOptions(sweep.parent, device))
    round.folder.mkdir()
    try:
        torch.set_num_threads(3)
        with pytest.raises(SystemExit) as leaving:
            worker.work(SimpleNamespace(recv=lambda: None), "1", round, [])
        assert (torch.get_num_threads(), leaving.value.code) == (used, 0)
    finally:
        torch.set_num_threads(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


CONTROL = """#!/bin/sh
if [ -n "$CUDA_VISIBLE_DEVICES" ]; then exit 1; fi
if [ "$1" = -d ]; then touch "$CUDA_MPS_PIPE_DIRECTORY/daemon"; exit {starts}; fi
while read order; do
  echo "$order" >> "{log}"
  if [ "$order" = get_server_list ]; then echo "{servers}"; fi
done
"""


@pytest.mark.parametrize(("starts", "servers", "serves"), [(0, "4711", True), (0, "", False), (1, "4711", False)])
def test_the_service_for_sharing_a_gpu_ends_with_the_sweep(monkeypatch, tmp_path, starts, servers, serves):
    program, log = tmp_path / mps.CONTROL, tmp_path / "log"
    program.write_text(CONTROL.format(starts=starts, servers=servers, log=log))
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")  # the service numbers what it sees anew, and has to see all
    with mps.service() as runs:
        assert (runs, mps.FOLDERS[0] in os.environ) == (serves, serves)
    assert not any(name in os.environ for name in mps.FOLDERS)
    assert (log.read_text().split()[-1] if log.exists() else "") == ("quit" if starts == 0 else "")


def test_without_the_program_nothing_is_started_and_the_users_own_service_is_left(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with mps.service() as runs:
        assert not runs
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "mine")
    with mps.service() as runs:
        assert runs
    assert os.environ["CUDA_MPS_PIPE_DIRECTORY"] == "mine"
