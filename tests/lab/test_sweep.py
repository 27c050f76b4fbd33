"""Sweeps: finished runs are skipped, failures are recorded, the others go on, and whoever is stopped saves first."""

import io
import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from lab_runs import counts, made_up_result, swept, until, write_file
from rich.console import Console

from barebones.lab.experiment import recipes
from barebones.lab.experiment.experiment import Experiment
from barebones.lab.records import records
from barebones.lab.run.lock import locked
from barebones.lab.run.options import RunOptions
from barebones.lab.run.run import run
from barebones.lab.sweep import processes
from barebones.lab.sweep.sweep import _gpus, _opened, sweep
from barebones.pruning.methods import METHODS, Method

MODELS = """
import os, signal
from pathlib import Path
from barebones.models import SmallVGG

HERE = Path(__file__).parent

def fails():
    if (HERE / "mended").exists():
        return SmallVGG()
    print("the worker's print")
    raise RuntimeError("no [luck]\\nand more")

def kills():
    print("last words", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

def kills_once():
    if (HERE / "killed").exists():
        return SmallVGG()
    (HERE / "killed").touch()
    os.kill(os.getpid(), signal.SIGKILL)

class Asks(SmallVGG):
    def forward(self, x):
        return super().forward(x) * float(x.sum().item() < 1e9)  # which no CUDA graph can record
"""


def short(model: str = "small-vgg", seed: int = 0, **changes) -> Experiment:
    return Experiment(model, "digits", **{"method": "random", "sparsity": 0.9, "epochs": 1, "seed": seed} | changes)


def folder(options: RunOptions, experiment: Experiment) -> Path:
    return options.folder(experiment.resolved())


@pytest.mark.slow
def test_a_run_that_another_process_owns_is_left_alone(tmp_path, forkserver):
    options, console = RunOptions(tmp_path / "runs"), Console(file=io.StringIO(), width=200)
    taken = folder(options, short())
    taken.mkdir(parents=True)
    with locked(taken):
        result = sweep([short()], options, console=console, stopping=lambda: "busy " in console.file.getvalue())
    assert counts(result) == (0, 0, 1, 0)
    assert "another process runs it; this sweep comes back to it" in console.file.getvalue()
    assert "started" not in console.file.getvalue()
    assert not (taken / "failure.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "expected", "started"), [("done", (1, 0, 0, 1), 1), ("failed", (1, 1, 0, 0), 1), ("gone", (2, 0, 0, 0), 2)]
)
def test_what_another_process_ends_meanwhile_is_not_run_again(how, expected, started, tmp_path, forkserver):
    options, console = RunOptions(tmp_path / "runs"), Console(file=io.StringIO(), width=200)
    first = short().resolved()
    held, go, threads = Event(), Event(), ThreadPoolExecutor()

    def wait(line: dict) -> None:
        held.set()
        go.wait(60)
        if how != "done":
            raise RuntimeError("no luck")

    mine = threads.submit(run, first, options, wait)  # this process holds the folder
    held.wait(60)

    def finish() -> bool:
        if "busy " in console.file.getvalue() and not go.is_set():
            go.set()
            assert (mine.exception() is None) == (how == "done")
            if how == "failed":
                about = {"reason": "no luck", "traceback": "", "attempts": 1} | {"experiment": first.to_dict()}
                write_file(options.folder(first), first, "failure.json", about)
        return False

    result = sweep([short(), short(seed=1)], options, jobs=1, console=console, stopping=finish)
    assert counts(result) == expected
    assert console.file.getvalue().count("started ") == started
    assert "unfinished" not in console.file.getvalue()
    assert len(result.tables[0].read_text().splitlines()) == 3


@pytest.mark.nightly
def test_two_sweeps_in_one_folder_run_each_experiment_once(tmp_path, forkserver):
    options, experiments = RunOptions(tmp_path / "runs"), [short(seed=seed) for seed in range(4)]
    with ThreadPoolExecutor() as threads:
        ended = list(threads.map(lambda each: swept(each, options, jobs=1), (experiments, experiments[::-1])))
    assert sum(result.done for result, _ in ended) == 4
    assert all(result.done + result.skipped == 4 for result, _ in ended)
    assert sum(text.count("started ") for _, text in ended) == 4
    assert not list(options.runs.glob("*/lock-*"))
    assert not list(options.runs.glob(".sweep-*"))


def test_the_table_holds_runs_that_end_while_it_is_written(tmp_path, monkeypatch):
    first, second = short().resolved(), short(seed=1).resolved()
    write_file(tmp_path / first.folder, first, "result.json", made_up_result(first))
    real = records.write

    def write(rows, folder):
        write_file(tmp_path / second.folder, second, "result.json", made_up_result(second))
        return real(rows, folder)

    monkeypatch.setattr(records, "write", write)
    rows, tables = records.update(tmp_path)
    assert [row["seed"] for row in rows] == [0, 1]
    assert len(tables[0].read_text().splitlines()) == 3


def test_a_full_disk_hides_no_summary(tmp_path, monkeypatch):
    done = short().resolved()
    write_file(tmp_path / done.folder, done, "result.json", made_up_result(done))
    monkeypatch.setattr(records, "write", Mock(side_effect=OSError(28, "No space left on device", "records.csv")))
    result, text = swept([done], RunOptions(tmp_path))
    assert (counts(result), result.tables) == ((0, 0, 0, 1), [])
    assert "0 done, 1 done before or by another process, 0 failed" in text
    assert "Records: No space left on device: records.csv; solve that, and run the same command again." in text


ALL = [short(), short("odd_models:fails"), short("odd_models:kills"), short("odd_models:kills_once"), short()]


@pytest.mark.slow
def test_what_fails_or_is_killed_is_recorded_and_the_others_go_on(tmp_path, monkeypatch, capfd, forkserver):
    (tmp_path / "odd_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(str(tmp_path))  # workers have the same path
    options = RunOptions(tmp_path / "runs")
    result, text = swept(ALL, options, jobs=2)
    assert capfd.readouterr() == ("", "")  # what a worker prints is not shown
    assert counts(result) == (2, 2, 0, 0)
    failed, killed = (json.loads((folder(options, each) / "failure.json").read_text()) for each in ALL[1:3])
    assert failed["experiment"] == ALL[1].resolved().to_dict()
    assert (failed["reason"], failed["attempts"]) == ("odd_models:fails raised RuntimeError: no [luck]", 1)
    assert 'raise RuntimeError("no [luck]' in failed["traceback"]
    assert killed["reason"] == "the process was killed (signal 9, SIGKILL); out of memory?"
    assert killed["attempts"] == 2
    assert "last words" in killed["traceback"]
    assert (text.count("started "), text.count("again ")) == (2, 2)
    assert sorted(row["status"] for row in records.records(options.runs)) == ["done", "done", "failed", "failed"]
    assert result.tables[0].read_text().count("\n") == 5
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes.Processes, "_start", None)  # no process is started
        left_alone(options)
    (tmp_path / "mended").touch()
    result, _ = swept(ALL[:2], options, retry_failed=True)
    assert counts(result) == (1, 0, 0, 1)
    assert not (folder(options, ALL[1]) / "failure.json").exists()


def left_alone(options: RunOptions) -> None:
    """Check that finished, failed and unreadable runs are not run again."""
    result, text = swept(ALL, options)
    assert counts(result) == (0, 2, 0, 2)
    assert "--retry-failed" in text
    assert "no [luck]" in text
    path = folder(options, ALL[0]) / "result.json"
    content = path.read_text()
    path.write_text("{")
    result, text = swept(ALL[:1], options, retry_failed=True)
    path.write_text(content)
    assert counts(result) == (0, 1, 0, 0)
    assert ("result.json is damaged" in text, "--retry-failed" in text) == (True, False)
    assert "delete it and run the experiment again" in text


RECIPE = """
from barebones.lab.experiment.experiment import Experiment
from barebones.pruning.methods import METHODS, Method

METHODS["of-a-recipe"] = Method(lambda probe: {name: weight.abs() for name, weight in probe.weights.items()}, rounds=2)

def grid():
    return [Experiment("small-vgg", "digits", "of-a-recipe", 0.9, rounds=2, epochs=0)]
"""


def smallest(probe):
    return {name: -weight.abs() for name, weight in probe.weights.items()}


@pytest.mark.slow
@pytest.mark.parametrize("registered_in", ["recipe", "here"])
def test_workers_know_methods_that_were_registered_at_run_time(registered_in, tmp_path, monkeypatch, forkserver):
    monkeypatch.setattr(recipes, "IMPORTED", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    if registered_in == "recipe":
        (tmp_path / "my_recipe.py").write_text(RECIPE)
        experiments = recipes.experiments(f"{tmp_path / 'my_recipe.py'}:grid")
    else:
        monkeypatch.setitem(METHODS, "registered-here", Method(smallest))
        experiments = [short(method="registered-here", epochs=0)]
    try:
        result, text = swept(experiments, RunOptions(tmp_path / "runs"), jobs=1)
    finally:
        METHODS.pop("of-a-recipe", None)
    assert counts(result) == (1, 0, 0, 0), text
    (row,) = records.records(tmp_path / "runs")  # also readable where the method is not known any more
    assert (row["status"], row["method"]) == ("done", experiments[0].method)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, 0.01])
def test_when_asked_to_stop_or_at_its_time_limit_the_runs_save_a_checkpoint(limit, tmp_path, forkserver):
    long = [short(seed=seed, epochs=100_000) for seed in range(2)]
    options = RunOptions(tmp_path / "runs")
    when = {"time_limit": limit} if limit else {"stopping": lambda: trains(folder(options, long[0]))}
    result, text = swept(long, options, jobs=1, **when)
    assert counts(result) == (0, 0, 2, 0)
    assert "2 unfinished; run the same command again to resume." in text
    assert ("The 0.01 minutes are over. " in text) == bool(limit)
    assert limit or (folder(options, long[0]) / "checkpoint.safetensors").exists()
    assert not folder(options, long[1]).exists()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_workers_save_a_checkpoint_when_the_parent_is_interrupted_or_dead(sent, start, tmp_path):
    long = short(epochs=1000)
    (tmp_path / "grid.json").write_text(json.dumps({k: v for k, v in long.to_dict().items() if v is not None}))
    place = folder(RunOptions(tmp_path / "runs"), long)
    parent = start(["sweep", str(tmp_path / "grid.json"), "--runs", str(place.parent)])
    until(lambda: trains(place))
    workers = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    for process in (parent.pid, *(workers if sent == signal.SIGINT else ())):  # the terminal sends Ctrl-C to all
        os.kill(int(process), sent)
    parent.join(90)
    until(lambda: not any(map(alive, workers)))
    assert (place / "checkpoint.safetensors").exists()
    if sent == signal.SIGINT:
        printed = (tmp_path / "printed").read_text()
        assert printed.endswith("1 unfinished; run the same command again to resume.\n")
        assert "Traceback" not in printed
        assert parent.exitcode == 130


@pytest.mark.parametrize(("asked", "patience"), [(False, 60.0), (True, 0.0)])
def test_the_first_interrupt_waits_for_checkpoints_and_the_second_kills(asked, patience, tmp_path, monkeypatch):
    stops, waited = iter([False]), []  # the first signal comes after the sweep has looked

    def attend() -> bool:
        round = tmp_path / next(tmp_path.glob(".sweep-*")) / "round"
        round.mkdir()
        started = {"run": short().resolved().folder, "state": "running", "began": 0.0}
        (round / "1.jsonl").write_text(json.dumps(started) + "\n")
        raise KeyboardInterrupt

    fake = SimpleNamespace(attend=attend, end=waited.append)
    monkeypatch.setattr("barebones.lab.sweep.sweep.Processes", lambda *about: fake)
    result, text = swept([short()], RunOptions(tmp_path), stopping=lambda: next(stops, asked))
    assert (waited, counts(result)) == ([patience], (0, 0, 1, 0))
    assert (text.count("started "), text.count("stopped ")) == (1, 1)
    assert not list(tmp_path.glob(".sweep-*"))


def trains(place: Path) -> bool:
    return (place / "metrics.jsonl").exists() and '"stage": "train"' in (place / "metrics.jsonl").read_text()


def alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("experiment", "options", "settings", "match"),
    [
        (short("small-vgh"), {}, {}, "did you mean 'small-vgg'"),
        (short(pattern="2:5"), {}, {}, "digits-small-vgg-random-90-s0-.*: pattern='2:5' does not divide the"),
        (short(densities='{"a": 1}'), {}, {}, "densities= must name every prunable layer"),
        (Experiment("vgg19", "cifar10"), {"data_root": Path("no-data-here")}, {}, "no-data-here"),
        (short(), {}, {"jobs": 0}, "at least one experiment must run"),
        (short(), {"device": "cuda"}, {}, "use --device cpu"),
        *((short(), {}, {"time_limit": limit}, "a sweep needs some time") for limit in (0, float("inf"), float("nan"))),
    ],
)
def test_what_would_fail_every_run_is_an_error_before_any_starts(
    experiment, options, settings, match, tmp_path, monkeypatch
):
    monkeypatch.setattr(processes.Processes, "_start", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises((ValueError, OSError), match=match):
        swept([experiment], RunOptions(tmp_path / "runs", **options), **settings)


@pytest.mark.parametrize(
    ("numbers", "words"), [((3,), "from 0 to 1"), ((0, 0), "name each GPU once"), ((-1,), "0 to 1")]
)
def test_gpus_that_are_not_there_are_an_error(numbers, words, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match=words):
        _gpus(RunOptions(tmp_path, device="cuda"), numbers)
    with pytest.raises(ValueError, match="leave one of them out"):
        _gpus(RunOptions(tmp_path, device="cuda:1"), numbers)


def test_cuda_means_all_gpus(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert _gpus(RunOptions(tmp_path, device="cuda"), ()) == ["cuda:0", "cuda:1", "cuda:2"]
    assert _gpus(RunOptions(tmp_path, device="cuda"), (2, 0)) == ["cuda:2", "cuda:0"]
    assert _gpus(RunOptions(tmp_path, device="cuda:1"), ()) == _gpus(RunOptions(tmp_path), ()) == []


def test_the_folder_of_a_killed_sweep_is_removed_when_it_is_old(tmp_path):
    """It disturbs no reader of the runs."""
    for age in (0, 100_000):
        (folder := tmp_path / f".sweep-{age}" / "round").mkdir(parents=True)
        (folder / "1.log").touch()
        for path in (folder / "1.log", folder, folder.parent):
            os.utime(path, (time.time() - age,) * 2)
    assert records.records(tmp_path) == []
    with _opened(tmp_path / ".sweep-new"):
        assert sorted(path.name for path in tmp_path.iterdir()) == [".sweep-0", ".sweep-new"]
    assert [path.name for path in tmp_path.iterdir()] == [".sweep-0"]


@pytest.mark.gpu
def test_runs_share_a_device(tmp_path):
    options = RunOptions(tmp_path / "runs", device="cuda")
    result, text = swept([short(seed=seed, epochs=20) for seed in range(6)], options, jobs=3)
    assert counts(result) == (6, 0, 0, 0)
    assert text.index("started  digits-small-vgg-random-90-s1") < text.index("done ")  # not one after the other


@pytest.mark.gpu
def test_a_network_that_cannot_be_captured_fails_alone(tmp_path, monkeypatch):
    (tmp_path / "models_for_sweeps.py").write_text(MODELS)
    monkeypatch.syspath_prepend(tmp_path)
    options = RunOptions(tmp_path / "runs", device="cuda")
    others = [short(seed=seed, epochs=20) for seed in range(3)]
    result, text = swept([*others, short("models_for_sweeps:Asks")], options, jobs=4)
    assert counts(result) == (3, 1, 0, 0), text
    assert "this network cannot be captured in a CUDA graph" in text
