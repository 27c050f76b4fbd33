"""Sweeps: what is done is skipped, what fails or is killed is recorded, the rest goes on; and the recipes they take."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from barebones.lab import recipes, records, worker
from barebones.lab import sweep as module
from barebones.lab.experiment import Experiment
from barebones.lab.run import RunOptions, Stopped
from barebones.lab.sweep import Crew, Job, SweepResult, sweep
from barebones.lab.worker import Event, Lane, Wire

MODELS = """
import os, signal, sys
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
"""


def short(model: str = "small-vgg", seed: int = 0, **changes) -> Experiment:
    return Experiment(model, "digits", **{"method": "random", "sparsity": 0.9, "epochs": 1, "seed": seed} | changes)


def folder(place: RunOptions, experiment: Experiment) -> Path:
    return place.folder(experiment.resolved())


def swept(experiments, place, **options) -> tuple[SweepResult, str]:
    console = Console(file=io.StringIO(), width=200, record=True)
    outcome = sweep(experiments, place, console=console, **options)
    return outcome, console.export_text()


ALL = [short(), short("odd_models:fails"), short("odd_models:kills"), short("odd_models:kills_once"), short()]


def test_a_run_that_another_process_is_at_is_left_to_it(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    place, (experiment, *_) = RunOptions(tmp_path / "runs"), ALL
    there = place.folder(experiment.resolved())
    there.mkdir(parents=True)
    with open(there / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        outcome, text = swept([experiment], place, jobs=1)
    assert (outcome.done, outcome.failed, outcome.stopped) == (0, 0, 1)
    assert "another process is running" in text
    assert not (there / "failure.json").exists()


@pytest.mark.slow
def test_what_fails_or_is_killed_is_recorded_and_the_others_go_on(tmp_path, monkeypatch, capfd):
    (tmp_path / "odd_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(str(tmp_path))  # workers see what the parent sees
    place = RunOptions(tmp_path / "runs")
    recorded(place, *swept(ALL, place, jobs=2))
    assert capfd.readouterr() == ("", "")  # what a worker prints is not shown
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Worker", None)  # no process is started
        left_alone(place)
    (tmp_path / "mended").touch()
    outcome, _ = swept(ALL[:2], place, retry_failed=True)
    assert (outcome.done, outcome.failed, outcome.skipped) == (1, 0, 1)
    assert not (folder(place, ALL[1]) / "failure.json").exists()


def recorded(place: RunOptions, outcome: SweepResult, text: str) -> None:
    """One has failed, one was killed twice, one was killed once; nobody else has suffered."""
    assert (outcome.done, outcome.failed, outcome.stopped, outcome.skipped) == (2, 2, 0, 0)
    failed, killed = (json.loads((folder(place, one) / "failure.json").read_text()) for one in ALL[1:3])
    assert failed["experiment"] == ALL[1].resolved().to_dict()
    assert (failed["reason"], failed["attempts"]) == ("odd_models:fails raised RuntimeError: no [luck]", 1)
    assert 'raise RuntimeError("no [luck]' in failed["traceback"]
    assert killed["reason"] == "the process was killed (signal 9, SIGKILL); out of memory?"
    assert killed["attempts"] == 2
    assert "last words" in killed["traceback"]
    assert (text.count("started "), text.count("again ")) == (6, 2)
    assert sorted(row["status"] for row in records.records(place.runs)) == ["done", "done", "failed", "failed"]
    assert outcome.tables[0].read_text().count("\n") == 5


def left_alone(place: RunOptions) -> None:
    """What is finished is skipped, what failed stays so, and so does what cannot be read."""
    outcome, text = swept(ALL, place)
    assert (outcome.done, outcome.failed, outcome.stopped, outcome.skipped) == (0, 2, 0, 2)
    assert "--retry-failed" in text
    assert "no [luck]" in text
    result = folder(place, ALL[0]) / "result.json"
    good = result.read_text()
    result.write_text("{")
    outcome, text = swept(ALL[:1], place, retry_failed=True)
    result.write_text(good)
    assert (outcome.failed, outcome.skipped) == (1, 0)
    assert "to run it again" in text


@pytest.mark.slow
def test_when_asked_to_stop_the_runs_save_themselves(tmp_path):
    long = [short(seed=seed, epochs=1000) for seed in range(2)]
    place = RunOptions(tmp_path / "runs")
    metrics = folder(place, long[0]) / "metrics.jsonl"
    outcome, text = swept(
        long, place, jobs=1, stopping=lambda: metrics.exists() and '"stage": "train"' in metrics.read_text()
    )
    assert (outcome.done, outcome.failed, outcome.stopped, outcome.skipped) == (0, 0, 2, 0)
    assert "2 unfinished; the same command goes on" in text
    assert (folder(place, long[0]) / "checkpoint.safetensors").exists()
    assert not folder(place, long[1]).exists()


PARENT = """
import sys
from pathlib import Path
from rich.console import Console
from barebones.lab.experiment import Experiment
from barebones.lab.run import RunOptions
from barebones.lab.sweep import sweep

if __name__ == "__main__":
    long = Experiment("small-vgg", "digits", "random", 0.9, epochs=1000)
    print(sweep([long], RunOptions(Path(sys.argv[1])), console=Console()).stopped)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_workers_save_themselves_when_the_parent_is_interrupted_or_dead(tmp_path, sent):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    place = RunOptions(tmp_path / "runs")
    run = folder(place, short(epochs=1000))
    parent = subprocess.Popen(
        [sys.executable, str(script), str(place.runs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    try:
        until(lambda: (run / "metrics.jsonl").exists() and '"train"' in (run / "metrics.jsonl").read_text())
        workers = [int(pid) for pid in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()]
        if sent == signal.SIGINT:
            os.killpg(parent.pid, sent)  # as the terminal does on Ctrl-C
        else:
            parent.kill()
        said, _ = parent.communicate(timeout=30)
        until(lambda: not any(alive(pid) for pid in workers))
    finally:
        parent.kill()
        parent.wait()
    assert (run / "checkpoint.safetensors").exists()
    if sent == signal.SIGINT:
        assert "1 unfinished" in said
        assert said.endswith("\n1\n")
        assert "Traceback" not in said


def until(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_would_fail_every_run_is_said_before(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "Worker", None)
    for experiment, place, words in (
        (short("small-vgh"), RunOptions(tmp_path), "did you mean 'small-vgg'"),
        (Experiment("vgg19", "cifar10"), RunOptions(tmp_path, data_root=tmp_path / "none"), "none"),
    ):
        with pytest.raises((ValueError, OSError), match=words):
            swept([experiment], place)
    with pytest.raises(ValueError, match="at least one"):
        swept([short()], RunOptions(tmp_path), jobs=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="use --device cpu"):
        swept([short()], RunOptions(tmp_path, device="cuda"))


class Fake(worker.Worker):
    """A worker without a process; the test says what it hears and how it ends."""

    def __init__(self, place: RunOptions) -> None:
        self.lanes, self.share, self.free = {}, None, 0
        self.pipe = None  # type: ignore[assignment]
        self.said: list[Event] = []
        self.ended: str | None = None

    def _send(self, message) -> None:
        pass

    def events(self):
        while self.said:
            yield self._noted(self.said.pop(0))

    def dead(self) -> str | None:
        return self.ended

    def output(self) -> str:
        return "its output"

    def close(self, patience: float) -> None:
        pass


@pytest.fixture
def crew(tmp_path, monkeypatch) -> Crew:
    """Four queued jobs for a device with memory of 100 bytes."""
    monkeypatch.setattr(module, "Worker", Fake)
    monkeypatch.setattr(module, "wait", lambda pipes, seconds: None)
    place = RunOptions(tmp_path, device="cuda")
    return Crew([Job(short(seed=seed).resolved("cuda")) for seed in range(4)], place)


def hear(crew: Crew, kind: str, job: Job, **about) -> list[str]:
    crew.workers[0].said.append(Event(kind, job.folder, about))  # type: ignore[attr-defined]
    news = crew.attend(0)
    crew.assign()
    return news


def states(crew: Crew) -> str:
    return " ".join(job.state for job in crew.jobs.values())


FAILURE = {"reason": "CUDA out of memory", "traceback": "…", "full": True, "broken": False}
RESULT = {"test": {"top1": 0.5}}


def test_lanes_are_added_one_by_one_while_there_is_memory(crew):
    first, second, third, _ = crew.jobs.values()
    crew.assign()
    assert states(crew) == "running queued queued queued"
    hear(crew, "line", first, line={"stage": "train", "epoch": 0, "epochs": 2, "accuracy": 0.2, "validation": None})
    assert states(crew) == "running queued queued queued"
    hear(crew, "memory", first, share=25, free=75)
    assert states(crew) == "running running queued queued"  # its memory is not known yet
    hear(crew, "memory", second, share=40, free=35)
    assert states(crew) == "running running queued queued"  # 48 are needed
    hear(crew, "done", first, result=RESULT)
    assert states(crew) == "done running queued queued"
    hear(crew, "memory", first, share=0, free=60)
    assert states(crew) == "done running running queued"
    hear(crew, "memory", third, share=10, free=50)
    assert states(crew) == "done running running running"


def test_out_of_memory_beside_others_is_tried_again_alone(crew):
    first, second, third, fourth = crew.jobs.values()
    crew.assign()
    hear(crew, "memory", first, share=1, free=99)
    assert "alone: CUDA out of memory" in hear(crew, "failed", second, **FAILURE)[0]
    hear(crew, "memory", third, share=1, free=99)
    assert states(crew) == "running queued running running"
    for job in (first, third):
        hear(crew, "done", job, result=RESULT)
        assert second.state == "queued"
    hear(crew, "done", fourth, result=RESULT)
    assert states(crew) == "done running done done"
    hear(crew, "memory", second, share=1, free=99)
    hear(crew, "failed", second, **FAILURE)
    assert (second.state, second.reason) == ("failed", "CUDA out of memory")
    assert json.loads((crew.place.runs / second.folder / "failure.json").read_text())["attempts"] == 2
    assert not crew.busy


def test_after_a_crash_every_run_of_the_process_is_alone(crew):
    first, second, *_ = crew.jobs.values()
    crew.assign()
    hear(crew, "memory", first, share=1, free=99)
    crew.workers[0].ended = "the process ended with exit code 70"  # type: ignore[attr-defined]
    crew.attend(0)
    assert not crew.workers
    assert (first.alone, second.alone, first.state) == (True, True, "queued")
    for _ in range(2):  # those that were not there come first, side by side
        crew.assign()
        job = next(job for job in crew.jobs.values() if job.state == "running")
        hear(crew, "done", job, result=RESULT)
    crew.assign()
    assert states(crew) == "running queued done done"
    hear(crew, "memory", first, share=1, free=99)
    assert second.state == "queued"
    crew.workers[0].ended = "the process ended with exit code 70"  # type: ignore[attr-defined]
    crew.attend(0)
    assert (first.state, first.reason) == ("failed", "the process ended with exit code 70")
    crew.assign()
    assert states(crew) == "failed running done done"


def test_a_run_whose_process_was_told_to_stop_by_others_goes_on(crew):
    first, *_ = crew.jobs.values()
    crew.assign()
    hear(crew, "stopped", first)
    assert (first.deaths, first.state) == (1, "queued")


def test_a_failure_that_cannot_be_written_does_not_end_the_sweep(crew, monkeypatch):
    def full(path, value):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_json", full)
    first, second, *_ = crew.jobs.values()
    crew.assign()
    hear(crew, "failed", first, **FAILURE)
    assert "No space left" in first.reason
    assert (first.state, second.state) == ("failed", "running")


def test_a_second_interrupt_kills_the_workers(crew, monkeypatch):
    closed = []

    def interrupted(seconds=1.0):
        raise KeyboardInterrupt

    crew.assign()
    monkeypatch.setattr(crew, "attend", interrupted)
    monkeypatch.setattr(crew.workers[0], "close", closed.append)
    crew.dismiss(60.0)
    assert closed == [0.0]
    assert states(crew) == "stopped queued queued queued"


@pytest.mark.parametrize("height", [6, 12, 80])
@pytest.mark.parametrize("width", [40, 120])
def test_the_table_fits_the_terminal(tmp_path, height, width):
    jobs = [Job(short(seed=seed).resolved()) for seed in range(100)]
    for number, job in enumerate(jobs):
        job.state = ("queued", "running", "done", "failed")[number % 4]
        job.reason, job.began, job.ended = "too [bold]large[/bold]", 100.0, 200.0 + number
        if job.state == "running":
            job.heard({"stage": "train", "epoch": 0, "epochs": 10, "accuracy": 0.5, "validation": None}, 110.0)
            job.heard({"stage": "train", "epoch": 1, "epochs": 10, "accuracy": 0.6, "validation": {"top1": 0.7}}, 120.0)
    crew = Crew(jobs, RunOptions(tmp_path))
    crew.began = 100.0
    console = Console(file=io.StringIO(), width=width, record=True)
    console.print(module.table(crew, 120.0, height))
    lines = console.export_text().splitlines()
    assert len(lines) < height
    assert lines[0] == "25 queued, 25 running, 25 done, 25 failed"[:width] or lines[0].endswith("…")
    assert any(line.startswith("failed") for line in lines)
    assert lines[-1].startswith("failed   … and ") == (height < 80)
    if width == 120:
        assert lines[1].startswith("0:20 elapsed, about ")
        assert "2/10  70.00 %  1:20 left" in lines[2]
        assert any("too [bold]large[/bold]" in line for line in lines) or height == 6


def test_in_a_terminal_there_is_a_live_table(tmp_path):
    job = Job(short().resolved())
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=20)
    with module.Display(console, Crew([job], RunOptions(tmp_path))) as display:
        display.show(["started"])
    assert "1 queued, 0 running" in console.file.getvalue()


class Ends(Wire):
    """A wire that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.stopping = False

    def tell(self, kind: str, folder: str, **about) -> None:
        self.told.append(Event(kind, folder, about))

    def asked(self) -> bool:
        return self.stopping


def lane(monkeypatch, body) -> tuple[Lane, Ends]:
    wire = Ends()
    monkeypatch.setattr(worker, "run", lambda experiment, place, report, stopping: body(report, stopping))
    return Lane(short().resolved(), RunOptions(Path("runs")), wire, on_cuda=False), wire


def test_a_lane_passes_on_a_few_lines_and_always_the_last(monkeypatch):
    def body(report, stopping):
        for number in range(1000):
            report({"stage": "prune", "round": number, "layers": {}})
            yield
        return {"test": 1}

    runner, wire = lane(monkeypatch, body)
    while runner.turn():
        pass
    kinds = [event.kind for event in wire.told]
    assert kinds[0] == "started"
    assert kinds[-1] == "done"
    assert 2 <= kinds.count("line") < 20
    assert wire.told[-2].about["line"] == {"stage": "prune", "round": 999}
    assert wire.told[-1].about["result"] == {"test": 1}


@pytest.mark.parametrize(
    ("error", "why", "full"),
    [
        (ValueError("do this"), "do this", False),
        (SystemExit(3), "SystemExit: 3", False),
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), "OutOfMemoryError: CUDA out of memory. Tried", True),
        (RuntimeError(), "RuntimeError", False),
    ],
)
def test_an_error_ends_its_lane_alone(monkeypatch, error, why, full):
    def body(report, stopping):
        yield
        raise error

    runner, wire = lane(monkeypatch, body)
    assert runner.turn()
    assert not runner.turn()
    runner.tidy()
    about = wire.told[-1].about
    assert (wire.told[-1].kind, about["reason"], about["full"], about["broken"]) == ("failed", why, full, False)
    assert "raise error" in about["traceback"]


def test_a_lane_stops_when_asked(monkeypatch):
    def body(report, stopping):
        while not stopping():
            yield
        raise Stopped

    runner, wire = lane(monkeypatch, body)
    assert runner.turn()
    wire.stopping = True
    assert not runner.turn()
    assert wire.told[-1].kind == "stopped"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_lanes_share_a_device(tmp_path):
    place = RunOptions(tmp_path / "runs", device="cuda")
    outcome, text = swept([short(seed=seed, epochs=20) for seed in range(6)], place, jobs=3)
    assert (outcome.done, outcome.failed) == (6, 0)
    assert text.index("started  digits-small-vgg-random-90-s1") < text.index("done ")  # not one after the other


grids = st.fixed_dictionaries(
    {},
    optional={
        "method": st.lists(st.sampled_from(["snip", "force", "random"]), min_size=1, unique=True),
        "sparsity": st.lists(st.sampled_from([0.5, 0.9, 0]), min_size=1, unique=True),
        "seed": st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True) | st.integers(0, 9),
        "model": st.sampled_from(["vgg19", "resnet50"]),
    },
)


@given(grids)
def test_a_grid_is_every_choice_once(grid):
    made = list(recipes.crossed(grid))
    lists = {name: value if isinstance(value, list) else [value] for name, value in grid.items()}
    assert len(made) == len(set(made)) == prod(map(len, lists.values()))
    assert set(made) == {
        replace(Experiment(), **dict(zip(lists, choice, strict=True))) for choice in product(*lists.values())
    }


TOML = """
data = "digits"
seed = [0, 1]
[[grid]]
method = ["snip", "force"]
sparsity = [0.9, 0.99]
[[grid]]
method = "dense"
seed = 7
"""


def test_a_file_may_hold_several_grids(tmp_path):
    (tmp_path / "one.toml").write_text(TOML)
    made = recipes.experiments(str(tmp_path / "one.toml"))
    assert len(made) == 2 * 2 * 2 + 1
    assert (made[-1].method, made[-1].seed, made[-1].data) == ("dense", 7, "digits")
    (tmp_path / "two.json").write_text(json.dumps({"method": ["snip", "force"], "epochs": 3}))
    assert recipes.experiments(str(tmp_path / "two.json")) == [
        Experiment(method=m, epochs=3) for m in ("snip", "force")
    ]


RECIPE = """
from dataclasses import dataclass
from barebones.lab.experiment import Experiment

@dataclass
class Mine:
    x: int

def good():
    yield Experiment(seed=3)
def empty():
    return []
def other():
    return [3]
def nothing():
    return None
def bad():
    return [Experiment(sparsity=99)]
def needs(more):
    return []
"""


def test_a_recipe_may_be_a_function(tmp_path, monkeypatch):
    path = tmp_path / "mine.py"
    path.write_text(RECIPE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert recipes.experiments(f"{path}:good") == [Experiment(seed=3)]
    assert str(tmp_path) in sys.path  # a model may stand beside it
    assert recipes.experiments("mine:good") == [Experiment(seed=3)]
    for name, words in {
        "empty": "is empty",
        "other": "gave int",
        "nothing": "failed .TypeError",
        "bad": "did you mean 0.99",
        "needs": "failed .TypeError",
        "god": "did you mean 'good'",
    }.items():
        with pytest.raises(ValueError, match=words):
            recipes.experiments(f"{path}:{name}")


@pytest.mark.parametrize(
    ("recipe", "content", "words"),
    [
        ("smok", None, "did you mean 'smoke'"),
        ("none.toml", None, "cannot be read"),
        ("none.py", None, "name a function in the file"),
        ("none.py:go", None, "no file none.py"),
        ("no.such.module:go", None, "PYTHONPATH"),
        ("a.toml", "seed = ", "no valid TOML"),
        ("a.json", "{", "no valid JSON"),
        ("a.json", "[1]", "no fields of an experiment"),
        ("a.toml", "sead = 1", "did you mean 'seed'"),
        ("a.toml", "seed = []", "seed is an empty list"),
        ("a.toml", "seed = 'one'", "not a whole number"),
        ("a.toml", "grid = 3", "no list of tables"),
        ("a.toml", "grid = []", "is empty"),
    ],
)
def test_what_is_wrong_with_a_recipe_is_said(tmp_path, monkeypatch, recipe, content, words):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(recipe).write_text(content)
    with pytest.raises(ValueError, match=words):
        recipes.experiments(recipe)


@pytest.mark.parametrize(("name", "runs"), [("smoke", 8), ("cifar10", 258), ("early-pruning", 36)])
def test_the_built_in_recipes(name, runs):
    made = {one.resolved("cuda") for one in recipes.experiments(name)}
    assert len(made) == runs
    doc = recipes.RECIPES[name].__doc__ or ""
    assert f"barebones sweep {name}" in doc
    assert f"{runs} runs" in doc
    if name == "early-pruning":
        assert {(one.pretrain, one.method) for one in made} == {(1, "magnitude")}
