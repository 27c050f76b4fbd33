"""Sweeps on a Ray cluster of this machine: each experiment ends once, also if a worker dies, and a stop saves."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from unittest.mock import Mock

import pytest
from lab_runs import counts, swept

from barebones.lab.experiment.experiment import Experiment
from barebones.lab.records import records
from barebones.lab.run.options import RunOptions
from barebones.lab.sweep.sweep import SweepResult
from barebones.lab.sweep.worker import GO

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'barebones[ray]'")

from barebones.lab.sweep import ray as engine  # noqa: E402 (if Ray is there)

NETWORKS = """
import os, signal
from pathlib import Path
from torch import nn

HERE = Path(__file__).parent

def plain():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))

def kills_its_worker():
    if not (HERE / "killed").exists():
        (HERE / "killed").touch()
        os.kill(os.getppid(), signal.SIGKILL)
    return plain()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A cluster of two processors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # otherwise Ray writes a token into the home folder
        patch.delenv("RAY_ADDRESS", raising=False)
        ray.init("local", num_cpus=2, object_store_memory=80 * 2**20, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


@pytest.fixture
def options(tmp_path, monkeypatch) -> RunOptions:
    (tmp_path / "nets_for_ray.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "nets_for_ray", raising=False)
    return RunOptions(tmp_path / "runs", save_every=0)


def tiny(name: str = "plain", seed: int = 0, epochs: int = 1) -> Experiment:
    model = f"nets_for_ray:{name}"
    return Experiment(model, "digits", "random", 0.5, seed=seed, epochs=epochs, batch_size=256).resolved()


def swept_by_ray(experiments: list[Experiment], options: RunOptions, **settings) -> tuple[SweepResult, str]:
    return swept(experiments, options, engine="ray", **settings)


@pytest.mark.slow
def test_each_experiment_ends_once_although_a_worker_dies(cluster, options):
    experiments = [tiny("kills_its_worker"), tiny(seed=1), tiny("no_such_network"), tiny(seed=2)]
    result, text = swept_by_ray(experiments, options)
    assert counts(result) == (3, 1, 0, 0), text
    assert text.startswith("Ray cluster ")
    assert "has no 'no_such_network'" in text
    assert sorted(row["status"] for row in records.records(options.runs)) == ["done", "done", "done", "failed"]
    assert not list(options.runs.glob("*/lock-*"))
    assert not list(options.runs.glob(".sweep-*"))


@pytest.mark.slow
def test_a_stopped_sweep_saves(cluster, options):
    endless, handler = tiny(epochs=100_000), signal.getsignal(signal.SIGTERM)
    checkpoint = options.folder(endless) / "checkpoint.safetensors"
    result, text = swept_by_ray([endless], options, stopping=checkpoint.exists)
    assert (result.done, result.stopped) == (0, 1), text
    assert not list(options.runs.glob("*/lock-*"))
    assert signal.getsignal(signal.SIGTERM) is handler


def test_an_address_without_a_cluster_is_an_error_in_one_line(options, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ValueError, match=r"the Ray cluster 127.0.0.1:1 cannot be reached .*; check RAY_ADDRESS"):
        swept_by_ray([tiny()], options)
    assert not options.runs.exists()


def test_a_node_that_does_not_see_the_runs_is_named(options, tmp_path):
    with pytest.raises(ValueError, match=f"does not see {options.runs}; name a folder with --runs"):
        engine.work([tiny()], options, 1, tmp_path / "no sweep", Path.cwd(), list(sys.path), [])


@pytest.fixture
def made(options) -> engine.Tasks:
    """The tasks of nine experiments, on a cluster that does not answer."""
    folder = options.runs / ".sweep"
    folder.mkdir(parents=True)
    (folder / GO).touch()
    experiments = [tiny(seed=seed) for seed in range(9)]
    return engine.Tasks({}, "127.0.0.1:1", experiments, options, folder, None, monotonic() - engine.LOOK)


def test_places_are_gpus_or_nodes_and_each_has_one_task(made, monkeypatch):
    nodes = [{"Alive": cpus != 3, "Resources": {"CPU": float(cpus)} if cpus else {}} for cpus in (0, 2, 4, 4, 3)]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"GPU": 2.0})
    monkeypatch.setattr(engine, "knock", lambda address: None)
    monkeypatch.setattr(engine, "LOOK", 0.0)
    monkeypatch.setattr(made, "_start", made.taken.append)
    made.attend()
    made.attend()
    assert made.taken == [4, 4, 2]
    nodes.append({"Alive": True, "Resources": {"CPU": 2.0}})  # it has come later
    made.attend()
    assert made.taken == [4, 4, 2, 2]
    made.options = RunOptions(device="cuda")
    assert made.nodes() == [1, 1]


def test_a_task_that_no_node_can_run_is_refused(made, monkeypatch):
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": 2.0, "memory": 1e9}}] * 2)
    monkeypatch.setattr(engine, "knock", lambda address: None)
    made.settings = {"memory": 1.5e9}
    with pytest.raises(ValueError, match=r"no node of the Ray cluster has memory=1\.5e\+09; ask for less"):
        made.attend()
    assert made.taken == []


def test_a_head_that_is_gone_ends_the_sweep_before_ray_aborts_it(made, monkeypatch):
    monkeypatch.setattr(ray, "nodes", lambda: pytest.fail("Ray would wait for a minute and abort"))
    made.attend()  # it may come back
    made.heard -= engine.LOST
    with pytest.raises(ValueError, match=r"the Ray cluster 127.0.0.1:1 does not answer .*; run the same command again"):
        made.attend()


def test_workers_of_ray_that_died_fail_no_experiment(made, monkeypatch):
    monkeypatch.setattr(ray, "wait", lambda calls, timeout: (calls, []))
    monkeypatch.setattr(ray, "get", Mock(side_effect=ray.exceptions.LocalRayletDiedError))
    made.heard, made.calls = monotonic(), {"first", "second"}
    with pytest.raises(ValueError, match=r"the Ray workers have died \(.*\); run the same command again to resume"):
        made.attend(0.0)


def test_options_that_ray_does_not_know_are_an_error(made):
    made.settings = {"memroy": 10}
    with pytest.raises(ValueError, match=r"Ray does not take these options of --engine ray: .*memroy"):
        made._start(1)
