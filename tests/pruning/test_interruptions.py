"""Pruning that is interrupted, by an exception anywhere or by a change from outside, leaves no trace either."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from pruning_runs import BATCHES, FORCE, KEEP
from references import Trace, few, tiny
from torch import nn
from torch.utils.data import DataLoader, Dataset

from barebones import METHODS, Method, Probe, prune, rounds


class Stop(BaseException):
    """Neither an Exception nor known to anybody."""


def stops(error: type[BaseException], at: int) -> Callable[..., Any]:
    """Return a function that draws random numbers and returns its last argument, and raises at one of its calls."""
    calls = itertools.count(1)

    def stop(*arguments: Any) -> Any:
        torch.rand(3), random.random(), numpy.random.rand()
        if next(calls) == at:
            raise error("now")
        return arguments[-1]

    return stop


class Items(Dataset):
    def __init__(self, stop: Callable[..., Any]) -> None:
        self.stop = stop

    def __len__(self) -> int:
        return len(BATCHES)

    def __getitem__(self, index: int) -> Any:
        return self.stop(BATCHES[index])


GENERATOR = torch.Generator().manual_seed(1)
GRASP = few("grasp-mb")
PLACES: dict[str, Callable[..., dict[str, Any]]] = {  # options of `prune` that call a function on the way
    "loss": lambda stop: dict(loss=lambda output, y: stop(F.cross_entropy(output, y))),
    "loss of grasp": lambda stop: dict(loss=lambda output, y: stop(F.cross_entropy(output, y)), method=GRASP),
    "model": lambda stop: dict(objective=lambda m, b: F.cross_entropy(m[4:](stop(m[:4](b[0]))), b[1])),
    "criterion": lambda stop: dict(method=Method(lambda probe: stop(METHODS["force"].criterion(probe)), rounds=4)),
    "callable": lambda stop: dict(batches=lambda index: stop(BATCHES[:2])),
    "loader": lambda stop: dict(batches=DataLoader(Items(stop), batch_size=None, shuffle=True, generator=GENERATOR)),
}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, Stop])
@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("place", PLACES)
def test_an_exception_leaves_no_trace(place, at, error):
    model, options = tiny(), dict(batches=BATCHES, method=FORCE) | PLACES[place](stops(error, at))
    with Trace(model, [GENERATOR]), pytest.raises(error, match="now"):
        prune(model, sparsity=0.8, **options)


def test_a_callback_that_raises_and_a_generator_that_is_left():
    model = tiny()
    with Trace(model) as trace:
        with pytest.raises(TypeError):
            prune(model, BATCHES, 0.8, FORCE, on_round=len)
        trace.check()
        steps = rounds(Probe(model, BATCHES), FORCE, KEEP)
        next(steps), next(steps)
        trace.check()
        steps.close()


@pytest.mark.parametrize(
    "change", [lambda p: p.add_(1.0), lambda p: setattr(p, "data", p.data + 1.0)], ids=["in place", "replaced"]
)
def test_weights_changed_between_rounds_are_noticed(change: Callable[[nn.Parameter], object]):
    model = tiny()
    steps = rounds(Probe(model, BATCHES), FORCE, KEEP)
    next(steps), next(steps)
    with torch.no_grad():
        change(model[9].weight)
    with Trace(model), pytest.raises(ValueError, match="changed between"):
        next(steps)
