"""Workers: they pass on metrics, and an error ends one run alone."""

import os
import signal
import stat
from multiprocessing import Pipe
from pathlib import Path

import pytest
import torch

from barebones.gpu import mps
from barebones.lab.experiment.experiment import Experiment
from barebones.lab.run import options
from barebones.lab.run.lock import Busy
from barebones.lab.run.options import RunOptions
from barebones.lab.run.run import Stopped
from barebones.lab.sweep import worker
from barebones.lab.sweep.worker import Event

EXPERIMENT = Experiment("small-vgg", "digits", "random", 0.9, epochs=1).resolved()


@pytest.fixture
def attempt(monkeypatch):
    """A function that attempts a run with this body, and returns the events about it."""

    def call(body, stopping: bool = False, device: str = "cpu") -> list[Event]:
        ours, theirs = Pipe()
        stop = worker.Stop(theirs)
        stop.asked = stopping
        monkeypatch.setattr(worker, "run", lambda *about, held: body(*about[2:4], held))
        worker.attempt(EXPERIMENT, RunOptions(Path("runs"), device), theirs, stop)
        events = []
        while ours.poll():
            events.append(ours.recv())
        return events

    return call


def raises(error: BaseException):
    def body(report, stopping, held):
        raise error

    return body


def test_a_worker_passes_on_lines_and_the_result(attempt):
    def body(report, stopping, held):
        held()
        report({"stage": "prune", "round": 1, "layers": {}})
        return {"test": {"top1": 0.5}}

    line = Event("line", {"line": {"stage": "prune", "round": 1}})
    assert attempt(body) == [Event("started"), line, Event("done", {"top1": 0.5})]


@pytest.mark.parametrize(("device", "there", "used"), [("cpu", 16, 1), ("cuda:1", 16, 2), ("cuda", 1, 1)])
def test_the_processes_of_a_sweep_do_not_fight_for_the_processors(monkeypatch, tmp_path, device, there, used):
    monkeypatch.setattr(options, "processors", lambda: there)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    monkeypatch.setattr(worker, "_print_to", lambda log: None)
    before, handler = torch.get_num_threads(), signal.getsignal(signal.SIGINT)
    asked, ours = Pipe()
    for message in ({}, EXPERIMENT, None):  # no methods of its own, a run, and the order to stop
        ours.send(message)
    try:
        torch.set_num_threads(3)
        worker.work(asked, RunOptions(tmp_path, device), str(tmp_path / "log"))
        assert torch.get_num_threads() == used
        assert ours.recv().about["reason"] == "the process was told to stop (SIGTERM)"
        assert not any(tmp_path.iterdir())  # before it began
    finally:
        torch.set_num_threads(before)
        signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize(
    ("error", "why", "again"),
    [
        (ValueError("do this"), "do this", False),
        (SystemExit(3), "SystemExit: 3", False),
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), "OutOfMemoryError: CUDA out of memory. Tried", True),
        (RuntimeError(), "RuntimeError", False),
    ],
)
def test_an_error_ends_its_run_alone(attempt, error, why, again):
    (event,) = attempt(raises(error))
    assert (event.kind, event.about["reason"], event.about["again"], event.ends) == ("failed", why, again, False)
    assert "raise error" in event.about["details"]


def test_a_run_that_another_process_has_waits(attempt):
    assert attempt(raises(Busy("wait"))) == [Event("failed", {"reason": "wait", "busy": True})]


@pytest.mark.parametrize("usable", [True, False])
def test_a_process_whose_random_numbers_are_broken_ends_and_its_run_is_tried_again(attempt, monkeypatch, usable):
    def rand(*size, device):
        if not usable:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")

    ends: list[int] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch, "rand", rand)
    monkeypatch.setattr(os, "_exit", ends.append)
    (event,) = attempt(raises(ValueError("this network cannot be captured in a CUDA graph")), device="cuda")
    assert ends == ([] if usable else [worker.BROKEN])
    assert (event.about["again"], event.ends) == (not usable, not usable)


@pytest.mark.parametrize("stopping", [True, False])
def test_a_run_that_is_told_to_stop_ends_its_process_and_is_tried_again(attempt, stopping):
    (event,) = attempt(raises(Stopped()), stopping)
    assert (event.about["reason"], event.about["again"]) == ("the process was told to stop (SIGTERM)", True)
    assert event.ends


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
