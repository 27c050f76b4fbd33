"""Compiled networks: what one run compiles, later ones find; shrunk networks of other widths are compiled, too."""

import functools
import shutil
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from barebones.lab.experiment.experiment import Experiment
from barebones.lab.run.network import data_of
from barebones.lab.run.run import RunOptions, run
from barebones.lab.run.training import Training


@pytest.fixture
def compiling(tmp_path, monkeypatch) -> Iterator[None]:
    """Compile as a new process with an empty cache does."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    new_process()
    yield
    new_process()


def new_process() -> None:
    torch._dynamo.reset()
    counters.clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ],
)
def test_a_process_does_not_compile_again_what_another_one_has_compiled(device, tmp_path, compiling):
    options = RunOptions(tmp_path / "runs", device=device, compiled=True)
    first, second = (
        Experiment("nets_for_runs:bare", "digits", method, 0.5, seed=seed, epochs=1).resolved(device)
        for method, seed in (("random", 0), ("magnitude", 1))
    )
    run(first, options)
    assert counters["inductor"]["fxgraph_cache_miss"] == 2  # forward and backward
    new_process()
    assert run(second, options)["environment"]["compiled"]
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1
    assert counters["inductor"]["fxgraph_cache_miss"] == 0
    counters.clear()
    run(Experiment(**first.to_dict() | {"seed": 2}), options)
    assert not counters["aot_autograd"]  # nor is anything read in the process that has it


def test_networks_of_many_widths_are_compiled_in_one_process(compiling, monkeypatch):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    experiment = Experiment("small-vgg", "digits", "random", 0.5, epochs=1).resolved()
    data = data_of(experiment, RunOptions())
    for width in range(1, 13):
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, 10))
        next(Training(model, data, experiment.plan(), compiled=True).steps())
    assert counters["stats"]["unique_graphs"] == 12
