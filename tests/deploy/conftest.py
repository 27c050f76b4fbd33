"""Fixtures for the tests of small and fast networks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from barebones.deploy.shrink import trials


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Start every test from the same random numbers."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def onnx_packages() -> None:
    """Skip a test if one of the packages for ONNX is missing."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason=f"needs {name}: pip install 'barebones[export]'")


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """Return the folder of a finished run."""
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn: pip install 'barebones[demo]'")
    from barebones.lab.experiment.experiment import Experiment
    from barebones.lab.run import run as lab

    options = lab.RunOptions(runs=tmp_path_factory.mktemp("runs"))
    experiment = Experiment("small-vgg", "digits", "snip", 0.98, epochs=1, batch_size=256).resolved()
    lab.run(experiment, options)
    return options.folder(experiment)


@pytest.fixture
def careless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose all channels for removal that the coupling allows, so that only the comparison can save them."""
    choose = trials.choose

    def too_many(coupling: Any, reading: Any, pinned: Tensor, multiple_of: int, at_least: int) -> tuple[Tensor, Tensor]:
        idle, gone = choose(coupling, reading, pinned, multiple_of, at_least)
        everything, fillers = idle | ~(coupling.fixed | pinned), idle & ~gone
        return everything, everything & ~fillers

    monkeypatch.setattr(trials, "choose", too_many)
