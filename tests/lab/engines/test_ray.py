"""Sweeps on a Ray cluster of several nodes on this machine, whose processes and nodes die."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from engine_runs import check_each_is_done_once, counts, swept, troubled, until

from barebones.lab.run.folder import CHECKPOINT, RESULT
from barebones.lab.run.metrics import METRICS, read

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'barebones[ray]'")

from ray.cluster_utils import Cluster  # noqa: E402 (if Ray is there)

from barebones.lab.sweep.engines import ray as engine  # noqa: E402

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # otherwise Ray writes a token into the home folder
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "4",
}
NODE = dict(num_cpus=1, object_store_memory=80 * 2**20, include_dashboard=False)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster whose head runs no tasks; a test adds nodes."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        cluster = Cluster(initialize_head=True, head_node_args=NODE | {"num_cpus": 0})
        patch.setenv("RAY_ADDRESS", cluster.address)
        yield cluster
        cluster.shutdown()


@pytest.mark.slow
def test_a_worker_and_then_a_node_die_and_each_experiment_ends_once(cluster, nets, options):
    experiments = [troubled(name) for name in ("killed", "waiting", "plain")]
    nodes = [cluster.add_node(**NODE)]

    def node_dies() -> bool:
        if (nets / "waits").exists() and not (nets / "go").exists():
            cluster.remove_node(nodes.pop(), allow_graceful=False)
            nodes.append(cluster.add_node(**NODE))
            (nets / "go").touch()
        return False

    result, text = swept(experiments, options, engine="ray", stopping=node_dies)
    assert counts(result) == (3, 0, 0, 0), text
    check_each_is_done_once(experiments, options, text)
    assert (nets / "was killed").exists()
    assert text.count("alone: its Ray worker or node died (") == 2
    for each in experiments:
        assert [line["epoch"] for line in read(options.folder(each) / METRICS) if line["stage"] == "train"] == [1, 2, 3]
    cluster.remove_node(nodes.pop())


@pytest.mark.slow
def test_a_sweep_that_was_killed_is_started_again(cluster, nets, options):
    node = cluster.add_node(**NODE)
    experiment = troubled("waiting")
    code = f"from barebones.lab.experiment.experiment import Experiment\ndef one(): return [{experiment!r}]"
    (nets / "recipe.py").write_text(code)
    words = f"sweep {nets / 'recipe.py'}:one --runs {options.runs} --save-every 0 --device cpu --engine ray"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-m", "barebones", *words.split()],
        env=environment, start_new_session=True, stdout=subprocess.DEVNULL,
    ) as driver:  # fmt: skip
        try:
            until(lambda: (nets / "waits").exists())
        finally:
            driver.kill()
    (left,) = options.runs.glob(".tasks-*")
    assert not (options.folder(experiment) / RESULT).exists()
    (nets / "go").touch()
    result, text = swept([experiment], options, engine="ray")
    assert counts(result) == (1, 0, 0, 0), text
    for file in left.iterdir():
        file.unlink()
    left.rmdir()
    check_each_is_done_once([experiment], options, text)
    cluster.remove_node(node)


@pytest.mark.slow
def test_a_stopped_sweep_saves_and_what_waits_is_taken_back(cluster, nets, options):
    node = cluster.add_node(**NODE)
    handler = signal.getsignal(signal.SIGTERM)
    endless, waits = troubled("telling", epochs=100_000), troubled("plain")
    result, text = swept([endless, waits], options, engine="ray", jobs=2, stopping=lambda: (nets / "trains").exists())
    assert counts(result) == (0, 0, 2, 0), text
    assert text.count("started ") == 1
    assert (options.folder(endless) / CHECKPOINT).exists()
    assert not options.folder(waits).exists()
    assert signal.getsignal(signal.SIGTERM) is handler
    cluster.remove_node(node)


def test_an_address_without_a_cluster_is_an_error_in_one_line(nets, options, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    words = r"the Ray cluster at 127.0.0.1:1 cannot be reached .*; check the address .*token \(RAY_AUTH_MODE=token\)"
    with pytest.raises(ValueError, match=words):
        swept([troubled("plain")], options, engine="ray")
    assert not options.runs.exists()


def test_a_missing_token_is_an_error_in_one_sentence(options, monkeypatch):
    def init(*_, **__) -> None:
        raise ray.exceptions.RayError("a token is missing. Make sure that it is there. See the web.")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ValueError, match=r"cannot be reached \(a token is missing\); check"):
        engine._connect("auto", None)


def test_ray_that_dies_on_this_machine_ends_the_sweep_and_fails_no_experiment(nets, options, monkeypatch):
    def get(job) -> None:
        raise ray.exceptions.LocalRayletDiedError

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0})
    monkeypatch.setattr(ray, "wait", lambda jobs, timeout: (jobs, []))
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "cancel", lambda job, force: None)
    monkeypatch.setattr(engine.Ray, "submit", lambda self, task, alone: task)
    with pytest.raises(ValueError, match="Ray has died on this machine; run the same command again to resume"):
        swept([troubled("plain", seed) for seed in range(3)], options, engine="ray")
    assert not list(options.runs.iterdir())


def test_tasks_share_a_gpu_unless_they_have_to_be_alone(options, monkeypatch):
    class Recorded:
        def __init__(self, **settings) -> None:
            self.settings = settings

        def __call__(self, function) -> "Recorded":
            return self

        def options(self, **settings) -> "Recorded":
            return Recorded(**self.settings | settings)

        def remote(self, task) -> dict:
            return self.settings

    monkeypatch.setattr(ray, "remote", Recorded)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 64.0, "GPU": 2.0})
    for device, jobs, places, gpus, alone in (
        ("cuda", None, 8, 0.25, 1),
        ("cuda", 1, 2, 1, 1),
        ("cpu", None, 64, None, None),
        ("cpu", 3, 3, None, None),
    ):
        made = engine.Ray(replace(options, device=device), jobs, {"memory": 10})
        assert len(made.places()) == places
        for settings, expected in ((made.submit(None, False), gpus), (made.submit(None, True), alone)):
            assert settings.get("num_gpus") == expected
            assert (settings["num_cpus"], settings["max_retries"], settings["memory"]) == (1, 0, 10)


def test_options_that_ray_does_not_know_are_an_error(options):
    with pytest.raises(ValueError, match=r"Ray does not take these options of --engine ray: .*memroy"):
        engine.Ray(options, None, {"memroy": 10})


def test_a_task_returns_one_thing(options):
    with pytest.raises(ValueError, match="leave out --engine-option num_returns"):
        engine.Ray(options, None, {"num_returns": 2})


def test_a_task_that_this_machine_can_never_run_is_an_error(options, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(engine, "_connect", lambda address, jobs: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0, "memory": 4e9, "accelerator_type:L4": 1.0})
    wishes = {"num_cpus": 3, "num_gpus": 1, "memory": 8e9, "resources": {"disk": 1}, "accelerator_type": "H100"}
    for name, value in wishes.items():
        with (
            pytest.raises(ValueError, match=f"--engine-option {name}=.* wants more .* than this machine has"),
            engine.opened(options, None, {name: value}),
        ):
            pass
    for fits in ({"num_cpus": 2}, {"accelerator_type": "L4"}, {"address": "a:1", "memory": 8e9}):
        with engine.opened(options, None, fits):
            pass
    assert not list(options.runs.iterdir())
