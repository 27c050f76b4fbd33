"""Experiments on other machines: what a sweep makes of their notes, leases, results and losses."""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from engine_runs import check_each_is_done_once, counts, swept, troubled

from barebones.lab.run import lock
from barebones.lab.run.folder import CHECKPOINT, FAILURE
from barebones.lab.run.metrics import METRICS, Metrics
from barebones.lab.sweep import sweep
from barebones.lab.sweep.engines.remote import Cluster, Lost, Remote, followed
from barebones.lab.sweep.engines.task import Task

pytestmark = pytest.mark.usefixtures("one_thread")


class Here(Cluster):
    """A cluster of two nodes, both of which are this process. `fate` may decide how a task ends."""

    def __init__(self, options, fate: Callable[[Task, bool], str | Lost | None]) -> None:
        super().__init__(options)
        self.fate, self.canceled = fate, list[Task]()

    def places(self) -> list[str]:
        return ["cpu"] * 2

    def submit(self, task: Task, alone: bool) -> Any:
        return task, alone

    def ending(self, job: Any) -> str | Lost | None:
        return self.fate(*job)

    def cancel(self, job: Any) -> None:
        self.canceled.append(job[0])

    def wait(self, workers: Sequence[Remote], seconds: float) -> None:
        time.sleep(0.01)


@pytest.fixture
def cluster(monkeypatch) -> Callable[..., None]:
    """A function that says what becomes of the tasks of the engine "ray"; without one, they run."""

    def decide(fate: Callable[[Task, bool], str | Lost | None] = lambda task, alone: task()) -> None:
        @contextmanager
        def opened(name, options, jobs, settings) -> Iterator[Here]:
            with Here(options, fate) as engine:
                yield engine

        monkeypatch.setattr(sweep, "opened", opened)

    return decide


def test_tasks_run_experiments_and_a_sweep_records_them(nets, options, cluster):
    cluster()
    experiments = [troubled("plain", seed) for seed in range(3)]
    result, text = swept(experiments, options, engine="ray")
    assert counts(result) == (3, 0, 0, 0)
    check_each_is_done_once(experiments, options, text)
    assert counts(swept(experiments, options, engine="ray")[0]) == (0, 0, 0, 3)


def test_a_lost_task_is_tried_once_more_alone_and_then_failed(nets, options, cluster):
    unlucky, rest = troubled("plain", 0), troubled("plain", 1)
    cluster(lambda task, alone: task() if task.experiment == rest else Lost(f"its node died, {alone=}", "last words"))
    result, text = swept([unlucky, rest], options, engine="ray")
    assert counts(result) == (1, 1, 0, 0)
    assert "alone: its node died, alone=False" in text
    failure = json.loads((options.folder(unlucky) / FAILURE).read_text())
    assert (failure["reason"], failure["attempts"]) == ("its node died, alone=True", 2)
    assert failure["traceback"] == "last words"
    cluster()
    assert counts(swept([unlucky, rest], options, engine="ray", retry_failed=True)[0]) == (1, 0, 0, 1)


def test_a_failed_task_is_not_tried_again(nets, options, cluster):
    cluster()
    result, text = swept([troubled("plain"), troubled("no_such_network")], options, engine="ray")
    assert counts(result) == (1, 1, 0, 0)
    assert "has no 'no_such_network'" in text


def leave_lease(folder: Path, renewed_every: float) -> Path:
    """Leave the lease of an owner on another node, which nobody here can see die."""
    folder.mkdir(parents=True)
    path = folder / "lease-1"
    path.write_text(json.dumps({"node": "another", "process": 1, "renewed_every": renewed_every}))
    return path


def test_a_task_waits_until_the_lease_of_a_dead_node_is_over(nets, options, cluster, monkeypatch):
    cluster()
    experiment = troubled("plain")
    path = leave_lease(options.folder(experiment), 0.2)
    began = time.time()
    os.utime(path, (began, began))
    result, text = swept([experiment], options, engine="ray")
    assert counts(result) == (1, 0, 0, 0)
    check_each_is_done_once([experiment], options, text)


def test_a_run_of_a_living_owner_is_left_alone(nets, options, cluster, monkeypatch):
    monkeypatch.setattr(lock, "RENEWED_EVERY", 0.01)  # this side gives up soon
    cluster(lambda task, alone: pytest.fail("it is submitted"))
    experiment = troubled("plain")
    leave_lease(options.folder(experiment), 1000.0)
    result, text = swept([experiment], options, engine="ray")
    assert counts(result) == (0, 0, 1, 0)
    assert f"another process is running in {options.folder(experiment)}; wait for it" in text


def test_a_node_that_does_not_see_the_runs_ends_the_sweep(nets, options, cluster, tmp_path):
    def elsewhere(task: Task, alone: bool) -> str:
        task.note.unlink(missing_ok=True)
        return task()

    cluster(elsewhere)
    with pytest.raises(ValueError, match=f"does not see {options.runs}; name a folder with --runs that all nodes"):
        swept([troubled("plain")], options, engine="ray")
    assert list(options.runs.iterdir()) == []


def test_stopping_takes_waiting_tasks_back_and_lets_running_ones_save(nets, options, cluster, monkeypatch):
    waiting, running = troubled("plain", 0), troubled("plain", 1)
    looks = iter(range(100))

    def fate(task: Task, alone: bool) -> str | None:
        if task.experiment == waiting:
            return None
        if task.note.exists():
            task.note.write_text("begun")
            return None
        return '[["stopped", {}]]'  # as a task does when its note is gone

    cluster(fate)
    result, text = swept([waiting, running], options, engine="ray", stopping=lambda: next(looks) > 3)
    assert counts(result) == (0, 0, 2, 0)
    assert text.count("started ") == 1
    assert "2 unfinished; run the same command again to resume" in text


def test_a_task_saves_and_ends_when_its_note_is_gone(nets, options, monkeypatch):
    monkeypatch.setattr("barebones.lab.sweep.engines.task.PAUSE", 0.0)
    experiment, note = troubled("stopped"), nets / "note"
    note.touch()
    assert json.loads(Task(experiment, options, note, Path.cwd(), (), ())()) == [["stopped", {}]]
    assert (options.folder(experiment) / CHECKPOINT).exists()


def test_memory_that_others_may_use_is_a_reason_to_try_alone(nets, options, cluster, monkeypatch):
    monkeypatch.setattr(Here, "shares", True, raising=False)
    about = {"reason": "CUDA out of memory", "traceback": "…", "busy": False, "others_may_be_the_cause": True}
    cluster(lambda task, alone: json.dumps([("failed", about)]))
    result, text = swept([troubled("plain")], options, engine="ray")
    assert counts(result) == (0, 1, 0, 0)
    assert text.count("alone: CUDA out of memory") == 1


def test_the_latest_line_of_metrics_is_followed(tmp_path):
    path = tmp_path / METRICS
    latest = followed(path)
    assert list(latest()) == []
    metrics = Metrics(path, "run")
    metrics.rewind()
    lines = [{"stage": "train", "epoch": epoch, "epochs": 3, "seconds": 0.1} for epoch in (1, 2, 3)]
    for line in lines[:2]:
        metrics(line)
    assert list(latest()) == [lines[1]]
    assert list(latest()) == []
    metrics(lines[2])
    with path.open("ab") as file:
        file.write(b'{"stage"')  # half a line
    assert list(latest()) == [lines[2]]
    path.write_bytes(b"no line\n" + path.read_bytes())
    assert list(latest()) == []  # the run itself will tell that it is damaged
    metrics.close()
