"""Lanes: they pass on metrics, and an error ends one of them alone."""

from pathlib import Path

import pytest
import torch

from barebones.lab import lanes
from barebones.lab.experiment import Experiment
from barebones.lab.lanes import Event, Lane, Wire
from barebones.lab.options import RunOptions
from barebones.lab.run import Stopped

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
    monkeypatch.setattr(lanes, "run", lambda experiment, options, report, stopping, until: body(report, stopping))
    return Lane(EXPERIMENT, RunOptions(Path("runs")), wire), wire


def test_a_lane_passes_on_its_lines_and_its_result(monkeypatch):
    def body(report, stopping):
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
    def body(report, stopping):
        yield
        raise error

    runner, wire = lane(monkeypatch, body)
    assert runner.turn()
    assert not runner.turn()
    runner.tidy()
    about = wire.events[-1].about
    assert (wire.events[-1].kind, about["reason"], about["others_may_be_the_cause"]) == ("failed", why, retry)
    assert "raise error" in about["traceback"]


def test_a_lane_stops_when_asked(monkeypatch):
    def body(report, stopping):
        while not stopping():
            yield
        raise Stopped

    runner, wire = lane(monkeypatch, body)
    assert runner.turn()
    wire.stopping = True
    assert not runner.turn()
    assert wire.events[-1].kind == "stopped"
