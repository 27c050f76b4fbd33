"""Lanes: they pass on metrics, and an error ends one of them alone."""

import signal
from contextlib import nullcontext
from multiprocessing import Pipe
from pathlib import Path

import pytest
import torch

from barebones.lab.experiment.experiment import Experiment
from barebones.lab.run import options
from barebones.lab.run.options import RunOptions
from barebones.lab.run.run import Stopped
from barebones.lab.sweep import lanes
from barebones.lab.sweep.lanes import Event, Lane, Wire

EXPERIMENT = Experiment("small-vgg", "digits", "random", 0.9, epochs=1).resolved()


class Ends(Wire):
    """A wire that keeps what it is events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.stopping = False

    def tell(self, kind: str, folder: str, **about) -> None:
        self.events.append(Event(kind, folder, about))

    def should_stop(self) -> bool:
        return self.stopping


def lane(monkeypatch, body) -> tuple[Lane, Ends]:
    wire = Ends()
    monkeypatch.setattr(lanes, "run", lambda *about, held: body(*about[2:4], held))
    return Lane(EXPERIMENT, RunOptions(Path("runs")), wire), wire


def test_a_lane_passes_on_its_lines_and_its_result(monkeypatch):
    def body(report, stopping, held):
        held()
        for number in range(2):
            report({"stage": "prune", "round": number, "layers": {}})
            yield
        return {"test": 1}

    runner, wire = lane(monkeypatch, body)
    while runner.turn():
        pass
    assert [event.kind for event in wire.events] == ["started", "line", "line", "done"]
    assert wire.events[2].about == {"line": {"stage": "prune", "round": 1}}
    assert wire.events[3].about == {"result": {"test": 1}}


@pytest.mark.parametrize(("device", "there", "used"), [("cpu", 16, 1), ("cuda:1", 16, 2), ("cuda", 1, 1)])
def test_the_processes_of_a_sweep_do_not_fight_for_the_processors(monkeypatch, tmp_path, device, there, used):
    monkeypatch.setattr(options, "processors", lambda: there)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    monkeypatch.setattr(lanes, "_print_to", lambda log: None)
    before, handlers = torch.get_num_threads(), {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)}
    asked, ours = Pipe()
    ours.send({})  # no methods of its own
    ours.send(None)  # end
    try:
        torch.set_num_threads(3)
        lanes.work(asked, RunOptions(tmp_path, device), str(tmp_path / "log"))
        assert torch.get_num_threads() == used
    finally:
        torch.set_num_threads(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


@pytest.mark.parametrize(
    ("error", "why", "retry"),
    [
        (ValueError("do this"), "do this", False),
        (SystemExit(3), "SystemExit: 3", False),
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), "OutOfMemoryError: CUDA out of memory. Tried", True),
        (RuntimeError(), "RuntimeError", False),
    ],
)
def test_an_error_ends_its_lane_alone(monkeypatch, error, why, retry):
    def body(report, stopping, held):
        yield
        raise error

    runner, wire = lane(monkeypatch, body)
    assert runner.turn()
    assert not runner.turn()
    runner.tidy()
    about = wire.events[-1].about
    assert (wire.events[-1].kind, about["reason"], about["others_may_be_the_cause"]) == ("failed", why, retry)
    assert "raise error" in about["traceback"]


@pytest.mark.parametrize("usable", [True, False])
def test_a_process_whose_random_numbers_are_broken_ends_and_its_lanes_are_tried_again(monkeypatch, usable):
    def body(report, stopping, held):
        yield
        raise ValueError("this network cannot be captured in a CUDA graph")

    def rand(*size, device):
        if not usable:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")

    ends: list[int] = []
    runner, wire = lane(monkeypatch, body)
    runner.stream, runner.first_turn = object(), False
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch, "rand", rand)
    monkeypatch.setattr(lanes.os, "_exit", ends.append)
    assert runner.turn()
    assert not runner.turn()
    assert ends == ([] if usable else [lanes.BROKEN])
    about = wire.events[-1].about
    assert (about["others_may_be_the_cause"], about["process_ends"]) == (not usable, not usable)


def test_a_lane_stops_when_asked(monkeypatch):
    def body(report, stopping, held):
        while not stopping():
            yield
        raise Stopped

    runner, wire = lane(monkeypatch, body)
    assert runner.turn()
    wire.stopping = True
    assert not runner.turn()
    assert wire.events[-1].kind == "stopped"
