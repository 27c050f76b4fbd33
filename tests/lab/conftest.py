"""Fixtures of the lab's tests: tiny networks and experiments, runs that are interrupted, workers that start at once."""

from multiprocessing import get_context

import pytest
from lab_runs import NETWORK

from barebones.lab import worker
from barebones.lab.experiment import Experiment
from barebones.lab.run import RunOptions


@pytest.fixture
def networks(tmp_path, monkeypatch) -> str:
    """The name of a tiny network in a module of the user's."""
    (tmp_path / "nets_for_runs.py").write_text(NETWORK)
    monkeypatch.syspath_prepend(tmp_path)
    return "nets_for_runs:tiny"


@pytest.fixture
def short(networks) -> Experiment:
    return Experiment(networks, "digits", "force", 0.7, seed=1, rounds=4, epochs=2, batch=128).resolved()


@pytest.fixture
def options(tmp_path) -> RunOptions:
    return RunOptions(tmp_path / "runs", save_every=0)


@pytest.fixture
def forkserver(monkeypatch) -> None:
    """Start workers from a process that has imported torch already, so that each start takes no seconds.

    As with "spawn", which the library uses, a worker shares nothing with the test's process.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(["barebones.lab.worker", "sklearn.datasets"])  # once: the server lives on
    monkeypatch.setattr(worker, "get_context", lambda method: context)
