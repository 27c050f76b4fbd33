"""Pruning that is interrupted, by an exception anywhere or by a change from outside, leaves no trace either."""

import random
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from references import Trace, equal, few, pairs, tiny
from torch import Tensor, nn

from barebones import Method, Probe, prune, rounds

FORCE = few("force", rounds=3)
BATCHES = pairs(3)


class Stop(BaseException):
    """Neither an Exception nor known to anybody."""


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, Stop])
@pytest.mark.parametrize("method", ["force", "grasp-mb"])
@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_a_loss_that_raises(error, method, call):
    calls = 0

    def loss(output: Tensor, target: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        torch.rand(3), random.random(), numpy.random.rand()
        if calls == call:
            raise error("now")
        return F.cross_entropy(output, target)

    model = tiny()
    trace = Trace(model)
    with pytest.raises(error, match="now"):
        prune(model, BATCHES, 0.8, method, loss, batches_per_round=2)
    trace.check()


def test_a_model_that_raises_within_its_forward():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(7, 3))
    trace = Trace(model)
    with pytest.raises(RuntimeError):
        prune(model, [(torch.ones(4, 4), torch.tensor([0, 1, 2, 0]))], 0.5)
    trace.check()


@pytest.mark.parametrize("after", [0, 1, 2])
def test_batches_that_raise(after):
    class Source:
        def __iter__(self) -> Iterator[Any]:
            torch.rand(3), random.random(), numpy.random.rand()
            yield from BATCHES[:after]
            raise OSError("the disk is gone")

    model = tiny()
    trace = Trace(model)
    with pytest.raises(OSError, match="the disk"):
        prune(model, Source(), 0.8, FORCE)
    trace.check()
    generator = torch.Generator().manual_seed(1)
    loader = torch.utils.data.DataLoader(Broken(after), batch_size=1, shuffle=False, generator=generator)
    trace = Trace(model, [generator])
    with pytest.raises(OSError, match="the disk"):
        prune(model, loader, 0.8, FORCE, objective=lambda m, b: F.cross_entropy(m(b[0][0]), b[1][0]))
    trace.check()


class Broken(torch.utils.data.Dataset):
    def __init__(self, after: int) -> None:
        self.after = after

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index >= self.after:
            raise OSError("the disk is gone")
        return BATCHES[index % 3]


@pytest.mark.parametrize("at", [0, 1])
def test_a_criterion_that_raises(at):
    def criterion(probe: Probe) -> dict[str, Tensor]:
        scores = probe.gradient()
        torch.rand(3), random.random(), numpy.random.rand()
        if probe.index == at:
            raise LookupError("here")
        return scores

    model = tiny()
    trace = Trace(model)
    with pytest.raises(LookupError, match="here"):
        prune(model, BATCHES, 0.8, Method(criterion, rounds=2))
    trace.check()


def test_a_callback_that_raises_and_a_generator_that_is_left():
    model = tiny()
    trace = Trace(model)

    def stop(step: object) -> None:
        trace.check()
        raise Stop

    with pytest.raises(Stop):
        prune(model, BATCHES, 0.8, FORCE, on_round=stop)
    trace.check()
    steps = rounds(Probe(model, BATCHES), FORCE, 20)
    next(steps), next(steps)
    trace.check()
    steps.close()
    trace.check()


def test_a_callback_cannot_change_the_run():
    expected = prune(tiny(), BATCHES, 0.8, FORCE, on_collapse="ignore").masks

    def vandal(step: Any) -> None:
        if step.index < 2:
            for mask in step.masks.values():
                mask.fill_(False)

    assert equal(prune(tiny(), BATCHES, 0.8, FORCE, on_round=vandal, on_collapse="ignore").masks, expected)


def test_non_finite_scores_leave_no_trace():
    model = tiny()
    trace = Trace(model)
    with pytest.raises(FloatingPointError):
        prune(model, [(x * torch.nan, y) for x, y in BATCHES], 0.8, FORCE)
    trace.check()


def test_weights_changed_between_rounds_are_noticed():
    for change in (lambda p: p.add_(1.0), lambda p: setattr(p, "data", p.data + 1.0)):
        model = tiny()
        steps = rounds(Probe(model, BATCHES), FORCE, 20)
        next(steps), next(steps)
        with torch.no_grad():
            change(model[9].weight)
        changed = model[9].weight.clone()
        with pytest.raises(ValueError, match="changed between"):
            next(steps)
        assert torch.equal(model[9].weight, changed)
