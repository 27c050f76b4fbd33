"""Preparing: beside the worker that trains, another one prunes the next runs; nothing is lost or changed by it."""

import json
from collections.abc import Iterator
from random import Random

import pytest
import torch
from fuzzing import cases
from lab_runs import assert_same_run, counts, swept
from test_pool import FAILURE, RESULT, Fake, job, made, states

from barebones.lab.experiment import recipes
from barebones.lab.experiment.experiment import Experiment
from barebones.lab.run.options import RunOptions
from barebones.lab.run.run import result_of, run
from barebones.lab.sweep import pool as module
from barebones.lab.sweep.lanes import Event
from barebones.lab.sweep.pool import Job, Pool
from barebones.pruning.methods import METHODS

METHODS_THAT_WAIT = """
import os, signal, time
from pathlib import Path
from barebones.lab.experiment.experiment import Experiment
from barebones.models import SmallVGG
from barebones.pruning.methods import METHODS, Method

HERE = Path(__file__).parent

def wait(pattern, text=""):
    end = time.monotonic() + 90
    while not any(text in path.read_text() for path in HERE.glob(pattern)):
        assert time.monotonic() < end, f"no {pattern}"
        time.sleep(0.02)

def sizes(probe):
    return {name: weight.abs() for name, weight in probe.weights.items()}

def while_another_trains(probe):
    (HERE / "begun").touch()
    wait("runs/*-random-*/metrics.jsonl", '"stage": "train"')
    return sizes(probe)

def stopped(probe):
    (HERE / "begun").touch()
    wait("never")

def fails(probe):
    raise RuntimeError("no luck")

def kills(probe):
    print("last words", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

def kills_once(probe):
    if (HERE / "killed").exists():
        return sizes(probe)
    (HERE / "killed").touch()
    os.kill(os.getpid(), signal.SIGKILL)

for method in (while_another_trains, stopped, fails, kills, kills_once):
    METHODS[method.__name__] = Method(method)

class WaitsForPruning(SmallVGG):
    def forward(self, images):
        if self.training and len(images) > 2:
            wait("begun")
        return super().forward(images)
"""


@pytest.fixture
def prepared_on_cpu(monkeypatch, forkserver) -> None:
    monkeypatch.setattr(module, "HELPED", ("cpu",))


@pytest.fixture
def methods(tmp_path, monkeypatch) -> Iterator[None]:
    """Register methods that wait, fail or die, here and in the workers, and a network that waits."""
    before = dict(METHODS)
    (tmp_path / "waiting.py").write_text(METHODS_THAT_WAIT)
    monkeypatch.setattr(recipes, "IMPORTED", [])
    monkeypatch.syspath_prepend(str(tmp_path))
    recipes.imported(str(tmp_path / "waiting.py"))
    yield
    METHODS.clear()
    METHODS.update(before)


def short(seed: int = 0, model: str = "small-resnet", **changes) -> Experiment:
    chosen = {"method": "force", "sparsity": 0.9, "rounds": 3, "epochs": 1, "seed": seed} | changes
    if chosen["method"] != "force":
        del chosen["rounds"]
    return Experiment(model, "digits", **chosen).resolved()


@pytest.mark.nightly
@pytest.mark.slow
def test_every_run_ends_once_and_as_without_preparing(tmp_path, prepared_on_cpu):
    experiments = [short(seed) for seed in range(2)]
    experiments += [short(2, shrink=True), short(3, pretrain=1, control="reinitialize")]
    experiments += [short(4, method="dense", sparsity=0)]
    prepared: list[str] = []

    class Watched(Pool):
        def _take(self, event: Event, worker) -> None:
            super()._take(event, worker)
            prepared.extend([event.folder] if event.kind == "prepared" else [])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("barebones.lab.sweep.sweep.Pool", Watched)
        result, text = swept(experiments, RunOptions(tmp_path / "runs"), jobs=1)
    assert counts(result) == (5, 0, 0, 0), text
    assert (text.count("started "), text.count("done  ")) == (5, 5)
    assert prepared  # the first run is begun by the worker that trains; how many others are, depends on the clock
    assert len(set(prepared)) == len(prepared)
    options = RunOptions(tmp_path / "others")
    for experiment in (experiments[0], experiments[1], experiments[3]):  # a measured speed is never the same again
        result_of(run(experiment, options))
        assert_same_run(options.folder(experiment), tmp_path / "runs" / experiment.folder)


@pytest.mark.slow
def test_a_run_trains_while_another_one_is_pruned(tmp_path, prepared_on_cpu, methods):
    """Neither could go on if the other one had to wait for its turn."""
    first = short(model="waiting:WaitsForPruning", method="random")
    second = short(1, method="while_another_trains")
    result, text = swept([first, second], RunOptions(tmp_path / "runs"), jobs=1)
    assert counts(result) == (2, 0, 0, 0), text


@pytest.mark.slow
def test_pruning_that_fails_or_kills_its_process_is_recorded_as_in_training(tmp_path, prepared_on_cpu, methods):
    names = ("random", "fails", "kills", "kills_once")
    experiments = [short(number, method=name) for number, name in enumerate(names)]
    options = RunOptions(tmp_path / "runs")
    result, text = swept(experiments, options, jobs=1)
    assert counts(result) == (2, 2, 0, 0), text
    failed, killed = (json.loads((options.folder(each) / "failure.json").read_text()) for each in experiments[1:3])
    assert (failed["reason"], failed["attempts"]) == ("RuntimeError: no luck", 1)
    assert (killed["reason"], killed["attempts"]) == ("the process was killed (signal 9, SIGKILL); out of memory?", 2)
    assert "last words" in killed["traceback"]
    assert (text.count("started "), text.count("again ")) == (6, 2)


@pytest.mark.slow
def test_a_sweep_that_is_stopped_saves_what_it_prepares(tmp_path, prepared_on_cpu):
    long = [short(epochs=1000), short(1, rounds=2000), short(2)]
    options = RunOptions(tmp_path / "runs")

    def busy() -> bool:
        lines = [options.folder(each) / "metrics.jsonl" for each in long]
        told = [path.read_text() if path.exists() else "" for path in lines]
        return '"stage": "train"' in told[0] and '"stage": "prune"' in told[1]

    result, text = swept(long, options, jobs=1, stopping=busy)
    assert counts(result) == (0, 0, 3, 0), text
    assert (options.folder(long[0]) / "checkpoint.safetensors").exists()
    assert (options.folder(long[1]) / "round.safetensors").exists()
    assert not options.folder(long[2]).exists()


@pytest.fixture
def fakes(monkeypatch) -> None:
    """Start no process."""
    monkeypatch.setattr(module, "Worker", Fake)
    monkeypatch.setattr(module, "wait", lambda pipes, seconds: None)


@pytest.fixture
def pool(tmp_path, monkeypatch, fakes) -> Pool:
    """Eight queued jobs for a GPU with memory of 100 bytes, with two lanes."""
    monkeypatch.setattr(module, "AHEAD", 2)
    return made([job(seed, "cuda") for seed in range(8)], RunOptions(tmp_path, device="cuda"), jobs=2)


def hear(pool: Pool, prepares: bool, kind: str, number: int, **about) -> None:
    """Let the worker that prepares, or the one that trains, tell something about the job of this number."""
    (worker,) = (worker for worker in pool.workers if worker.prepares == prepares)
    worker.to_yield.append(Event(kind, list(pool.jobs)[number], about))  # type: ignore[attr-defined]
    pool.attend(0)
    pool.assign()


def lanes(pool: Pool) -> dict[str, list[int]]:
    """Return the numbers of the jobs in each worker."""
    numbers = {folder: number for number, folder in enumerate(pool.jobs)}
    return {
        "prepares" if worker.prepares else "trains": [numbers[folder] for folder in worker.lanes]
        for worker in pool.workers
    }


def test_lanes_take_prepared_jobs_and_few_are_prepared_ahead(pool):
    pool.assign()
    assert lanes(pool) == {"trains": [0], "prepares": [1]}
    hear(pool, False, "memory", 0, share=20, free=80)
    assert lanes(pool) == {"trains": [0], "prepares": [1]}  # there is memory, but nothing is prepared
    hear(pool, True, "prepared", 1)
    assert lanes(pool) == {"trains": [0, 1], "prepares": [2]}
    hear(pool, False, "memory", 1, share=20, free=60)
    hear(pool, True, "prepared", 2)
    assert lanes(pool) == {"trains": [0, 1], "prepares": [3]}
    hear(pool, True, "prepared", 3)
    assert lanes(pool) == {"trains": [0, 1], "prepares": []}  # two wait already
    assert states(pool) == "running running queued queued queued queued queued queued"
    hear(pool, False, "done", 0, result=RESULT)
    assert lanes(pool) == {"trains": [1, 2], "prepares": [4]}


def test_a_network_that_the_other_worker_compiles_is_only_pruned(tmp_path, fakes):
    changes = [{}, {"method": "force"}, {"model": "resnet50"}, {"model": "resnet50", "seed": 1}, {"shrink": True}]
    listed = [
        Job(Experiment(**{"model": "small-vgg", "data": "digits", "method": "snip", "sparsity": 0.9} | each).resolved())
        for each in changes
    ]
    pool = made(listed, RunOptions(tmp_path, device="cuda"), jobs=2)
    pool.assign()
    trains, prepares = pool.workers
    for number in range(1, 5):
        hear(pool, True, "prepared", number)
    assert [until for _, until in trains.orders] == ["train"]
    assert [until for _, until in prepares.orders[:4]] == ["prune", "prepare", "prune", "prepare"]


def test_memory_is_reserved_for_what_is_prepared(pool):
    pool.assign()
    hear(pool, False, "memory", 0, share=30, free=60)
    hear(pool, True, "memory", 1, share=25, free=70)
    hear(pool, True, "prepared", 1)
    assert lanes(pool) == {"trains": [0], "prepares": [2]}  # 1.2 times 55 bytes are needed
    hear(pool, False, "memory", 0, share=0, free=70)
    assert lanes(pool) == {"trains": [0, 1], "prepares": [2]}


def test_without_memory_for_both_nothing_is_prepared_any_more(pool):
    pool.assign()
    hear(pool, False, "memory", 0, share=1, free=99)
    hear(pool, True, "prepared", 1)
    hear(pool, False, "memory", 1, share=1, free=99)
    hear(pool, False, "failed", 1, **FAILURE)
    assert list(pool.jobs.values())[1].alone
    assert lanes(pool) == {"trains": [0, 3], "prepares": [2]}  # which prunes in its turn
    hear(pool, False, "memory", 3, share=1, free=99)
    hear(pool, True, "prepared", 2)
    hear(pool, False, "done", 0, result=RESULT)
    assert lanes(pool) == {"trains": [3, 2], "prepares": []}


def test_a_job_that_is_alone_has_the_device_for_itself(pool):
    pool.assign()
    pool.workers[1].ended = "killed"  # type: ignore[attr-defined]
    pool.attend(0)
    pool.assign()
    assert lanes(pool) == {"trains": [0], "prepares": [2]}
    pool.queue = [job for job in pool.queue if job.alone]  # the last ones
    hear(pool, False, "done", 0, result=RESULT)
    assert lanes(pool) == {"trains": [], "prepares": [2]}
    hear(pool, True, "prepared", 2)
    assert lanes(pool) == {"trains": [2], "prepares": []}
    hear(pool, False, "done", 2, result=RESULT)
    assert lanes(pool) == {"trains": [], "prepares": []}
    pool.workers[1].ended = "the process ended with exit code 0"  # type: ignore[attr-defined]
    pool.attend(0)
    pool.assign()
    assert lanes(pool) == {"trains": [1]}


@pytest.mark.parametrize("case", range(cases(60)))
def test_whatever_happens_every_job_ends_once(case, tmp_path, monkeypatch, fakes):
    """Random events: runs end, fail and lack memory, and workers die; pools of one and two GPUs, with 1 to 3 lanes."""
    random = Random(case)
    monkeypatch.setattr(module, "write_json", lambda path, content, owner: None)
    ended: list[str] = []
    listed, options = [job(seed, "cuda") for seed in range(random.randint(1, 12))], RunOptions(tmp_path, device="cuda")
    most, devices = random.randint(1, 3), ["cuda:0", "cuda:1"][: random.randint(1, 2)]
    note = lambda job: ended.extend([job.folder] * (job.state in ("done", "failed")))
    pool = Pool(listed, options, note, most, devices)
    for _ in range(2000):
        if not pool.busy:
            break
        pool.assign()
        check(pool)
        worker = random.choice(pool.workers)
        if worker.prepares and not worker.lanes and not pool._to_prepare(worker.place):
            worker.ended = "the process ended with exit code 0"  # it was told to stop
        elif not worker.lanes or random.random() < 0.03:
            worker.ended = "killed" if random.random() < 0.1 else None
        else:
            worker.to_yield.append(happening(random, worker, random.choice(list(worker.lanes))))
        pool.attend(0)
    assert not pool.busy
    assert sorted(ended) == sorted(pool.jobs)
    assert not set(states(pool).split()) - {"done", "failed"}


def happening(random: Random, worker: Fake, folder: str) -> Event:
    kind = random.choices(["memory", "end", "failed"], [5, 4, 1])[0]
    if kind == "memory":
        return Event(kind, folder, {"share": random.randint(1, 40), "free": random.randint(0, 100)})
    if kind == "failed":
        return Event(kind, folder, FAILURE | {"others_may_be_the_cause": random.random() < 0.5})
    return Event("prepared", folder) if worker.prepares else Event("done", folder, {"result": RESULT})


def check(pool: Pool) -> None:
    """Check that no job runs twice, that one that is alone has its device for itself, and that few are prepared."""
    running = [folder for worker in pool.workers for folder in worker.lanes]
    assert len(set(running)) == len(running)
    assert sorted([*running, *(job.folder for job in pool.queue)]) == sorted(
        job.folder for job in pool.jobs.values() if job.state in ("queued", "running")
    )
    for place in pool.places():
        here = [worker for worker in pool.workers if worker.place == place]
        assert sorted(worker.prepares for worker in here) in ([], [False], [True], [False, True])
        assert all(len(worker.lanes) <= worker.most for worker in here)
        folders = [folder for worker in here for folder in worker.lanes]
        assert len(folders) <= 1 or not any(pool.jobs[folder].alone for folder in folders)
        assert sum(job.prepared == place for job in pool.queue) <= module.AHEAD


def test_the_time_of_a_run_includes_its_preparation_but_not_the_waiting(pool, monkeypatch):
    now = 100.0
    monkeypatch.setattr(module, "monotonic", lambda: now)
    pool.assign()
    hear(pool, True, "started", 1)
    now = 110.0
    hear(pool, True, "prepared", 1)
    now = 200.0
    hear(pool, False, "done", 0, result=RESULT)
    hear(pool, False, "started", 1)
    now = 230.0
    hear(pool, False, "done", 1, result=RESULT)
    second = list(pool.jobs.values())[1]
    assert second.ended - second.began == 40.0


def test_with_one_experiment_at_a_time_nothing_is_prepared(tmp_path, fakes):
    pool = made([job(seed, "cuda") for seed in range(3)], RunOptions(tmp_path, device="cuda"), jobs=1)
    pool.assign()
    assert lanes(pool) == {"trains": [0]}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_runs_are_prepared_and_trained_on_a_gpu(tmp_path):
    options = RunOptions(tmp_path / "runs", device="cuda")
    experiments = [short(seed, rounds=20, epochs=20, shrink=seed % 2 > 0).resolved("cuda") for seed in range(6)]
    result, text = swept(experiments, options, jobs=3)
    assert counts(result) == (6, 0, 0, 0), text
    assert (text.count("started "), text.count("done  ")) == (6, 6)
