"""Several processes prune and train one experiment: the result is that of one process, whatever happens to them."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from lab_runs import ALWAYS, command, interrupted, tensors
from torch import nn

from barebones.cli import ranks
from barebones.files.masks import load_masks
from barebones.lab.experiment.experiment import Experiment
from barebones.lab.run import training
from barebones.lab.run.distributed import Team, check_norms, joined
from barebones.lab.run.folder import finished
from barebones.lab.run.run import RunOptions, run

Start = Callable[..., list[BaseProcess]]


def on_rank(rank: int, size: int, port: int, argv: list[str], folder: Path, die: tuple[int, int] | None) -> None:
    """Run `barebones` as torchrun starts it; with `die`, send a signal to this process at the n-th training step."""
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    places |= {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": True, "TMPDIR": folder}
    os.environ |= {name: str(value) for name, value in places.items()}
    learn, steps = training.Training._learn_from, 0

    def counted(self, images, labels):
        nonlocal steps
        steps += 1
        if die is not None and steps == die[0]:
            os.kill(os.getpid(), die[1])
        learn(self, images, labels)

    training.Training._learn_from = counted
    ranks.PATIENCE = 0.3  # nobody ends the others here
    command(argv, folder / f"printed-{rank}")


@pytest.fixture
def start(networks, forkserver, tmp_path) -> Start:
    """A function that starts the command in several processes; `die` is for the last one."""
    stores = []  # torchrun keeps a store for its processes, too

    def started(argv: list[str], size: int, die: tuple[int, int] | None = None) -> list[BaseProcess]:
        stores.append(torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False))
        processes = []
        for rank in range(size):
            arguments = (rank, size, stores[-1].port, argv, tmp_path, die if rank == size - 1 else None)
            processes.append(forkserver.Process(target=on_rank, args=arguments))
            processes[-1].start()
        return processes

    return started


def printed(folder: Path, rank: int) -> list[str]:
    """What a process has printed, without torch's own warnings: the library switches them off before it loads torch."""
    return [line for line in (folder / f"printed-{rank}").read_text().splitlines() if not line.startswith("[rank")]


def codes(processes: list[BaseProcess]) -> list[int | None]:
    for process in processes:
        process.join(120)
    return [process.exitcode for process in processes]


def words(runs: Path, experiment: Experiment) -> list[str]:
    settings = {name: getattr(experiment, name) for name in ("model", "data", "method", "sparsity", "seed", "epochs")}
    settings |= {"lr": experiment.lr, "device": "cpu", "save_every": 0, "runs": runs}
    optional = {name: getattr(experiment, name) for name in ("batch_size", "rounds", "batches_per_round")}
    settings |= {name: value for name, value in optional.items() if value is not None}
    return ["run", *(f"--{name.replace('_', '-')}={value}" for name, value in settings.items())]


@pytest.fixture(scope="module")
def split() -> Experiment:
    """The one batch of a round is split; the last batch of an epoch has fewer images than there may be processes."""
    return Experiment("nets_for_runs:plain", "digits", "snip", 0.6, seed=1, epochs=3, batch_size=76, lr=0.02).resolved()


def assert_close(folder: Path, expected: Path) -> None:
    """Check that two finished runs have the same masks, and weights and results that differ by rounding alone."""
    a, b = (load_masks(path / "mask.safetensors") for path in (folder, expected))
    assert {name: mask.tolist() for name, mask in a.items()} == {name: mask.tolist() for name, mask in b.items()}
    weights = [tensors(path / "weights.safetensors") for path in (folder, expected)]
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-4)
    found, wanted = finished(folder), finished(expected)
    assert found["test"]["loss"] == pytest.approx(wanted["test"]["loss"], rel=1e-3)
    assert found["best_validation"]["validation"] == pytest.approx(wanted["best_validation"]["validation"], abs=0.02)
    assert {path.name for path in folder.iterdir()} == ALWAYS


@pytest.mark.nightly
def test_a_run_goes_on_with_any_number_of_processes_when_some_are_killed_or_stopped(
    split, start, tmp_path, undisturbed
):
    options = RunOptions(tmp_path / "runs", save_every=0)
    argv, folder = words(options.runs, split), options.folder(split)
    assert codes(start(argv, 2, die=(5, signal.SIGKILL))) == [2, -signal.SIGKILL]
    assert printed(tmp_path, 0)[-1] == f"error: {ranks.LOST}"
    assert "train: epoch 1 of 3 begins" in printed(tmp_path, 0)
    assert not (folder / "result.json").exists()
    of_killed = set(tmp_path.glob("barebones-*"))
    interrupted(split, options, 4)  # one process goes on
    assert codes(start(argv, 4, die=(3, signal.SIGTERM))) == [1, 1, 1, 128 + signal.SIGTERM]
    assert "resuming at epoch" in (tmp_path / "printed-0").read_text()
    assert "the same command resumes from there" in (tmp_path / "printed-0").read_text()
    assert [printed(tmp_path, rank) for rank in (1, 2, 3)] == [[], [], []]
    assert codes(start(argv, 2)) == [0, 0]
    assert_close(folder, undisturbed(split))
    assert finished(folder)["environment"]["ranks"] == 2
    assert (tmp_path / "printed-0").read_text().count("Test accuracy after the last epoch") == 1
    assert printed(tmp_path, 1) == []
    assert codes(start(argv, 2)) == [0, 0]  # a finished run is not repeated
    assert "finished before" in (tmp_path / "printed-0").read_text()
    assert set(tmp_path.glob("barebones-*")) == of_killed  # the other processes have deleted their folders


@pytest.mark.slow
def test_processes_share_out_batches_and_prune_with_batch_norms(start, tmp_path, undisturbed):
    settings = dict(seed=1, rounds=2, batches_per_round=3, epochs=1, batch_size=76, lr=0.02)
    experiment = Experiment("nets_for_runs:tiny", "digits", "force", 0.6, **settings).resolved()
    argv = words(tmp_path / "runs", experiment)
    assert codes(start(["prune", *argv[1:]], 2)) == [0, 0]
    expected = load_masks(undisturbed(experiment) / "mask.safetensors")
    found = load_masks(tmp_path / "runs" / experiment.folder / "mask.safetensors")
    assert all(torch.equal(found[name], mask) for name, mask in expected.items())
    assert codes(start(argv, 2)) == [2, 2]
    (error,) = (line for rank in (0, 1) for line in printed(tmp_path, rank) if line.startswith("error: "))
    assert "2 processes split each batch, but layers of nets_for_runs:tiny" in error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["run", "--data=digits", "--model=vgg91", "--device=cpu"], "vgg91"),
        (["run", "--data=images:nowhere", "--model=nets_for_runs:plain", "--device=cpu"], "nowhere"),
        (["run", "--method=forse"], "did you mean 'force'"),
        (["sweep", "smoke"], "barebones sweep runs in one process; start it without torchrun; --device cuda uses all"),
        (["report", "runs"], "barebones report runs in one process; start it without torchrun"),
    ],
)
def test_a_mistake_is_said_once(argv, error, start, tmp_path):
    assert codes(start(argv, 2)) == [2, 2]
    said = [*printed(tmp_path, 0), *printed(tmp_path, 1)]
    assert [error in line for line in said if "error:" in line] == [True]
    assert not any("Traceback" in line for line in said)


DYING = """
import os, runpy, signal
from barebones.lab.run import training
learn, steps = training.Training._learn_from, []
def dying(self, images, labels):
    steps.append(images)
    if (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"], len(steps)) == ("1", "0", 5):
        os.kill(os.getpid(), signal.SIGKILL)
    learn(self, images, labels)
training.Training._learn_from = dying
runpy.run_module("barebones", run_name="__main__")
"""


@pytest.mark.nightly
def test_torchrun_starts_the_processes_and_restarts_them_when_one_dies(split, networks, tmp_path, undisturbed):
    (tmp_path / "dying.py").write_text(DYING)
    options = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1", str(tmp_path / "dying.py")]
    argv = [sys.executable, "-m", "torch.distributed.run", *options, *words(tmp_path / "runs", split)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(ranks.LOST) == 1
    assert done.stdout.count("Test accuracy after the last epoch") == 1
    assert done.stderr.count("train: epoch 3 of 3, loss") == 1
    assert_close(tmp_path / "runs" / split.folder, undisturbed(split))


def test_micro_batches_train_and_prune_as_whole_batches_do(split, networks, tmp_path, undisturbed, monkeypatch):
    sizes, call = [], torch.nn.Sequential.__call__
    monkeypatch.setattr(torch.nn.Sequential, "__call__", lambda self, x: sizes.append(len(x)) or call(self, x))
    options = RunOptions(tmp_path / "runs", micro_batch=40)
    result = run(split, options)
    assert max(sizes) == 40
    assert_close(options.folder(split), undisturbed(split))
    assert result["environment"]["micro_batch"] == 40


def test_batch_norms_refuse_micro_batches(short, tmp_path):
    with pytest.raises(ValueError, match=r"--micro-batch splits batches, but layers of nets_for_runs:tiny .*\(1, 5\)"):
        run(short, RunOptions(tmp_path, micro_batch=40))
    assert not list(tmp_path.iterdir())


def test_batch_norms_share_their_statistics_for_a_while():
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.BatchNorm1d(3)))
    norm, parameters, buffers = model[1][0], list(model.parameters()), list(model.buffers())
    with Team(0, 2).synchronized(model, True):
        assert isinstance(model[1][0], nn.SyncBatchNorm)
        assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
        assert all(a is b for a, b in zip(model.buffers(), buffers, strict=True))
    assert model[1][0] is norm
    with Team(0, 2).synchronized(model, False), Team().synchronized(model, True):
        assert model[1][0] is norm


NORM, GPU = nn.BatchNorm2d(1), {"device": "cuda"}


@pytest.mark.parametrize(
    ("options", "norm", "until", "settings"),
    [
        (GPU, NORM, "train", {}),
        (GPU, NORM, "prune", {}),
        (GPU, NORM, "prune", {"method": "own.py:method"}),
        (GPU, NORM, "prune", {"method": "erk", "pretrain": 1}),
        ({"sync_bn": True}, NORM, "train", {}),
        (GPU | {"sync_bn": True}, nn.InstanceNorm2d(1, track_running_stats=True), "train", {}),
    ],
    ids=str,
)
def test_batches_that_layers_need_whole_are_not_split(options, norm, until, settings, split):
    network, experiment = nn.Sequential(norm), replace(split, **settings)
    with pytest.raises(
        ValueError, match=r"2 processes split each batch, but layers of .*\(0\); use one process, or --sync"
    ):
        check_norms(network, experiment, RunOptions(**options), Team(0, 2), until)
    with pytest.raises(ValueError, match=r"--micro-batch splits batches, but layers of .*\(0\); leave it out"):
        check_norms(network, experiment, RunOptions(**options, micro_batch=8), Team(), until)


@pytest.mark.parametrize(
    ("options", "norm", "until", "settings"),
    [
        ({}, nn.GroupNorm(1, 1), "train", {}),
        ({}, nn.InstanceNorm2d(1), "train", {}),
        (GPU | {"sync_bn": True}, NORM, "train", {}),
        ({}, NORM, "prune", {"batches_per_round": 2}),
        ({}, NORM, "prune", {"scoring_bn": "eval"}),
        *(({}, NORM, "prune", {"method": method}) for method in ("magnitude", "random", "erk", "synflow")),
    ],
    ids=str,
)
def test_layers_that_need_no_whole_batches_or_share_them_are_allowed(options, norm, until, settings, split):
    check_norms(nn.Sequential(norm), replace(split, **settings), RunOptions(**options), Team(0, 2), until)


@pytest.mark.parametrize(("device", "message"), [("cuda:1", "not on cuda:1"), ("cuda", "no device cuda:1 here")])
def test_each_process_needs_a_gpu_of_its_own(device, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message), joined(RunOptions(device=device)):
        pass
