"""Runs: what is finished is not done again, what was killed at any moment ends the same, and no result is half."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import barebones as bb
from barebones.files import container as files
from barebones.files import masks as maskfile
from barebones.files.masks import load_masks, save_masks
from barebones.lab import run as lab
from barebones.lab import stages
from barebones.lab.experiment import Experiment
from barebones.lab.folder import progress
from barebones.lab.metrics import read
from barebones.lab.network import Network
from barebones.lab.run import RunOptions, Stopped, result_of, run
from barebones.lab.stages import read_weights
from barebones.lab.training import Training, evaluate
from barebones.running import digest

ALWAYS = {"experiment.json", "metrics.jsonl", "mask.safetensors", "weights.safetensors", "result.json", "lock"}
CLOCK = ("seconds", "elapsed", "images_per_second")
NETWORK = """
from torch import nn

def tiny():
    return nn.Sequential(nn.Conv2d(1, 6, 3, 2, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.1),
                         nn.Conv2d(6, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6, 10))

def broken():
    raise RuntimeError("nothing may be built here")
"""


@pytest.fixture
def networks(tmp_path, monkeypatch) -> str:
    """A tiny network of the user's own, by its name."""
    (tmp_path / "nets_for_runs.py").write_text(NETWORK)
    monkeypatch.syspath_prepend(tmp_path)
    return "nets_for_runs:tiny"


@pytest.fixture
def short(networks) -> Experiment:
    return Experiment(networks, "digits", "force", 0.7, seed=1, rounds=4, epochs=2, batch=128).resolved()


@pytest.fixture
def place(tmp_path) -> RunOptions:
    return RunOptions(tmp_path / "runs", save_every=0)


def interrupted(experiment: Experiment, place: RunOptions, after: int) -> None:
    """Run until it has asked `after` times whether to stop, and been told so."""
    asked = iter(range(100_000))
    with pytest.raises(Stopped):
        result_of(run(experiment, place, stopping=lambda: next(asked) >= after))


def tensors(path: Path) -> dict[str, Tensor]:
    return files.read(path, "barebones-weights", 1)[0]


def timeless(lines: list[dict]) -> list[dict]:
    return [{name: value for name, value in line.items() if name not in CLOCK} for line in lines]


def assert_same_run(one: Path, other: Path) -> None:
    """Equal in all that does not depend on the clock: masks, weights, lines and result."""
    (a, about), (b, other_about) = (load_masks(folder / "mask.safetensors") for folder in (one, other))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert {**about, "seconds": 0} == {**other_about, "seconds": 0}
    a, b = tensors(one / "weights.safetensors"), tensors(other / "weights.safetensors")
    assert a.keys() == b.keys()
    assert not [name for name in a if a[name].dtype != b[name].dtype or not torch.equal(a[name], b[name])]
    assert timeless(read(one / "metrics.jsonl")) == timeless(read(other / "metrics.jsonl"))
    a, b = (json.loads((folder / "result.json").read_text()) for folder in (one, other))
    assert {**a, "seconds": 0} == {**b, "seconds": 0}
    assert {p.name for p in one.iterdir()} == {p.name for p in other.iterdir()}


def stamps(folder: Path) -> dict[str, tuple[int, int, int]]:
    return {p.name: (s.st_ino, s.st_mtime_ns, s.st_size) for p in folder.iterdir() for s in [p.stat()]}


# what a run leaves


def test_a_run_leaves_its_files_and_a_result_that_is_right(short, place):
    result = result_of(run(short, place))
    folder = place.folder(short)
    assert {p.name for p in folder.iterdir()} == ALWAYS
    assert json.loads((folder / "result.json").read_text()) == json.loads(json.dumps(result))
    assert json.loads((folder / "experiment.json").read_text()) == short.to_dict() == result["experiment"]
    assert result["id"] == short.id
    assert folder.name == short.folder

    network = Network(short, place, torch.device("cpu"))
    read_weights(network.model, folder / "weights.safetensors")
    anew = evaluate(network.model, network.data.test, 512, "fp32", 10)
    assert (result["test"]["top1"], result["test"]["top5"]) == (anew.top1, None)
    assert result["test"]["loss"] == pytest.approx(anew.loss)
    assert result["weights"] == f"{int(digest.content(network.model.parameters())) % 2**64:016x}"

    masks, about = load_masks(folder / "mask.safetensors", network.model)
    bb.audit(network.model, masks)
    kept = sum(int(mask.sum()) for mask in masks.values())
    total = sum(mask.numel() for mask in masks.values())
    assert (result["kept"], result["prunable"]) == (kept, total)
    assert result["kept"] == round(0.3 * total)
    assert result["sparsity"] == 1 - kept / total
    assert result["effective"] <= kept
    assert result["effective_sparsity"] == pytest.approx(1 - result["effective"] / total)
    assert about["experiment"] == short.to_dict()
    assert about["method"] == "force"

    lines = read(folder / "metrics.jsonl")
    epochs = [line for line in lines if line["stage"] == "train"]
    best = max(epochs, key=lambda line: line["validation"]["top1"])
    assert result["best_validation"] == {
        "epoch": best["epoch"],
        "validation": best["validation"]["top1"],
        "test": best["test"]["top1"],
    }
    assert result["seconds"]["train"] == pytest.approx(sum(line["seconds"] for line in epochs))
    assert result["plan"]["epochs"] == 2
    assert result["environment"]["torch"] == torch.__version__


def test_the_masks_are_those_of_the_library(short, place):
    result_of(run(short, place, until="prune"))
    folder = place.folder(short)
    assert {p.name for p in folder.iterdir()} == ALWAYS - {"weights.safetensors", "result.json"}
    network = Network(short, place, torch.device("cpu"))
    expected = bb.prune(
        network.model, network.data.train.scoring(128, 1), 0.7, "force", rounds=4, seed=1, on_collapse="ignore"
    )
    found, about = load_masks(folder / "mask.safetensors")
    assert all(torch.equal(found[name], mask) for name, mask in expected.masks.items())
    assert about["weights"] == expected.about["weights"]


def test_training_goes_on_from_the_masks_of_a_pruning(short, place):
    about = result_of(run(short, place, until="prune"))
    before = stamps(place.folder(short))["mask.safetensors"]
    result = result_of(run(short, place))
    assert stamps(place.folder(short))["mask.safetensors"] == before
    assert result["kept"] == about["account"]["kept"]
    other = RunOptions(place.runs / "other")
    result_of(run(short, other))
    assert_same_run(place.folder(short), other.folder(short))


def test_a_finished_run_is_not_repeated(short, place, monkeypatch):
    result = result_of(run(short, place))
    before = stamps(place.folder(short))
    for module, name in [(lab, "Network"), (lab, "Metrics"), (stages, "Training"), (stages, "prune")]:
        monkeypatch.setattr(module, name, lambda *args, **options: pytest.fail("work is done again"))
    lines: list = []
    assert result_of(run(short, place, lines.append)) == json.loads(json.dumps(result))
    assert stamps(place.folder(short)) == before
    assert lines == []


def test_a_dense_run_prunes_nothing(networks, place):
    experiment = Experiment(networks, "digits", "dense", epochs=1, batch=128).resolved()
    result = result_of(run(experiment, place))
    assert (result["sparsity"], result["effective_sparsity"], result["collapsed"]) == (0, 0, [])
    assert result["kept"] == result["prunable"]
    assert {line["stage"] for line in read(place.folder(experiment) / "metrics.jsonl")} == {"train"}


def test_no_epochs_test_the_network_as_it_was_pruned(short, place):
    experiment = replace(short, epochs=0)
    result = result_of(run(experiment, place))
    network = Network(experiment, place, torch.device("cpu"))
    masks, _ = load_masks(place.folder(experiment) / "mask.safetensors")
    for name, mask in masks.items():
        network.model.get_parameter(name).data[~mask] = 0
    assert result["test"]["top1"] == evaluate(network.model, network.data.test, 512, "fp32", 10).top1
    assert result["best_validation"] is None


@pytest.mark.parametrize("method", ["iter-grasp", "synflow", "erk", "snip-mb"])
def test_every_kind_of_method_runs(method, short, place):
    experiment = Experiment(short.model, "digits", method, 0.5, epochs=1, batch=256).resolved()
    result = result_of(run(experiment, place))
    assert result["sparsity"] == pytest.approx(0.5, abs=0.01)
    assert len([x for x in read(place.folder(experiment) / "metrics.jsonl") if x["stage"] == "prune"]) == (
        experiment.rounds
    )


def test_another_seed_is_another_run(short, place):
    first, second = (result_of(run(replace(short, seed=seed, epochs=1), place)) for seed in (1, 2))
    assert first["weights"] != second["weights"]
    assert len(list(place.runs.iterdir())) == 2


# going on


@pytest.mark.parametrize("stops", [(0,), (2,), (3, 0), (4,), (9, 4, 1), (15,), (16,), (26,), (1,) * 10], ids=str)
def test_a_run_that_was_stopped_ends_the_same(stops, short, place, tmp_path):
    whole = RunOptions(tmp_path / "whole")
    result_of(run(short, whole))
    for stop in stops:
        interrupted(short, place, stop)
        assert not (place.folder(short) / "result.json").exists()
    result_of(run(short, place))
    assert_same_run(place.folder(short), whole.folder(short))


def test_what_is_asked_to_stop_is_saved_however_seldom_it_saves(short, place):
    place = replace(place, save_every=1e9)
    interrupted(short, place, 2)
    assert bb.Round.load(place.folder(short) / "round.safetensors").index == 2
    interrupted(short, place, 6)
    saved = files.read(place.folder(short) / "checkpoint.safetensors", "barebones-checkpoint", 1)[1]
    assert (saved["state"]["epoch"], saved["state"]["step"]) == (0, 6)  # rounds 3; then steps 0 to 5


def test_between_saves_nothing_is_saved(short, place):
    steps = run(short, replace(place, save_every=1e9))
    for _ in range(5):
        next(steps)
    names = {p.name for p in place.folder(short).iterdir()}
    assert names == {"experiment.json", "metrics.jsonl", "mask.safetensors", "lock"}
    steps.close()


def test_lines_beyond_the_checkpoint_are_written_anew(short, place, tmp_path):
    whole = RunOptions(tmp_path / "whole")
    result_of(run(short, whole))
    path = place.folder(short) / "metrics.jsonl"
    steps = run(short, replace(place, save_every=1e9))
    while not any(line["stage"] == "train" for line in read(path)):
        next(steps)
    steps.close()  # as if killed, with the line of an epoch written and nothing of its training saved
    assert not (place.folder(short) / "checkpoint.safetensors").exists()
    result_of(run(short, place))
    assert_same_run(place.folder(short), whole.folder(short))


def test_every_file_is_put_in_place_whole_and_training_is_saved_at_its_end(short, place, monkeypatch):
    placed, real = [], os.replace

    def put(source, target):
        placed.append(Path(target).name)
        real(source, target)

    monkeypatch.setattr(os, "replace", put)
    result_of(run(short, replace(place, save_every=1e9)))
    assert {*placed} == ALWAYS - {"lock"} | {"checkpoint.safetensors"}
    assert placed[-3:] == ["checkpoint.safetensors", "weights.safetensors", "result.json"]  # the result comes last


@pytest.mark.parametrize("rewind", [False, True])
def test_early_pruning_goes_on_from_the_weights_it_pruned_or_from_the_initial_ones(rewind, networks, place):
    experiment = Experiment(networks, "digits", "magnitude", 0.6, epochs=0, batch=128, pretrain=1, rewind=rewind)
    experiment = experiment.resolved()
    result_of(run(experiment, place))
    folder = place.folder(experiment)
    masks, _ = load_masks(folder / "mask.safetensors")
    initial = dict(Network(experiment, place, torch.device("cpu")).model.state_dict())
    pretrained, start = tensors(folder / "pretrained.safetensors"), tensors(folder / "weights.safetensors")
    assert any(not torch.equal(initial[name], pretrained[name]) for name in masks)
    every = torch.cat([pretrained[name].abs().flatten() for name in masks])
    kept = torch.cat([masks[name].flatten() for name in masks])
    assert every[kept].min() >= every[~kept].max()  # the largest of the pretrained weights are kept
    expected = initial if rewind else pretrained
    for name, value in start.items():
        mask = masks.get(name, torch.ones_like(value, dtype=torch.bool))
        assert torch.equal(value, torch.where(mask, expected[name], torch.zeros_like(value)))
    lines = read(folder / "metrics.jsonl")
    assert [(line["stage"], line["lr"]) for line in lines if line["stage"] != "prune"] == [("pretrain", 0.1)]


def test_early_pruning_trains_with_a_fresh_optimizer_and_the_full_schedule(networks, place):
    experiment = Experiment(networks, "digits", "magnitude", 0.6, epochs=4, batch=256, pretrain=1).resolved()
    result_of(run(experiment, place))
    folder = place.folder(experiment)
    lines = [line for line in read(folder / "metrics.jsonl") if line["stage"] == "train"]
    assert [line["lr"] for line in lines] == pytest.approx([0.1, 0.1, 0.01, 0.001])
    network = Network(experiment, place, torch.device("cpu"))
    read_weights(network.model, folder / "pretrained.safetensors")
    masks, _ = load_masks(folder / "mask.safetensors")
    for _ in Training(network.model, network.data, experiment.plan(), masks).steps():
        pass
    found = tensors(folder / "weights.safetensors")
    assert all(torch.equal(found[name], value) for name, value in network.model.state_dict().items())


@pytest.mark.parametrize("rewind", [False, True])
@pytest.mark.parametrize("stops", [(0, 2), (10, 0), (11,), (12,), (13, 1), (15,)], ids=str)
def test_early_pruning_that_was_stopped_ends_the_same(stops, rewind, networks, place, tmp_path):
    experiment = Experiment(networks, "digits", "magnitude", 0.6, epochs=1, batch=128, pretrain=1, rewind=rewind)
    experiment, whole = experiment.resolved(), RunOptions(tmp_path / "whole")
    result_of(run(experiment, whole))
    for stop in stops:
        interrupted(experiment, place, stop)
    result_of(run(experiment, place))
    assert_same_run(place.folder(experiment), whole.folder(experiment))


def test_what_finished_stages_left_when_they_were_killed_is_cleared(networks, place, tmp_path):
    experiment = Experiment(networks, "digits", "force", 0.6, rounds=3, epochs=1, batch=256, pretrain=1).resolved()
    folder = place.folder(experiment)
    interrupted(experiment, place, 3)
    shutil.copy(folder / "pretraining.safetensors", tmp_path)
    interrupted(experiment, place, 5)  # 3 steps and an epoch, then two rounds
    shutil.copy(folder / "round.safetensors", tmp_path)
    interrupted(experiment, place, 4)
    for name in ("pretraining.safetensors", "round.safetensors"):  # killed just before these were deleted
        shutil.copy(tmp_path / name, folder)
    result_of(run(experiment, place))
    assert {p.name for p in folder.iterdir()} == ALWAYS | {"pretrained.safetensors"}


# killed


SERVER = """
import json, os, signal, sys
import sklearn.datasets, torch
import barebones.cli, barebones.lab.network, barebones.lab.run, barebones.lab.show
barebones.lab.network.cached_data("digits", None, "cpu", False)
warm = torch.nn.Linear(2, 2)  # what the first step loads
optimizer = torch.optim.SGD(warm.parameters(), 0.1, fused=True)
warm(torch.ones(1, 2)).sum().backward()
optimizer.step()
for request in sys.stdin:
    words = json.loads(request)
    if words == "wait":
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    child = os.fork()
    if child:
        print(child, flush=True)
        continue
    for number, path in ((0, os.devnull), (1, words["out"]), (2, words["err"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
    if words["die"]:
        count, after, number = words["die"]
        def replace(*args, real=os.replace):
            global count
            count -= 1
            if count == 0 and not after:
                os.kill(os.getpid(), number)
            real(*args)
            if count == 0 and after:
                os.kill(os.getpid(), number)
        os.replace = replace
    sys.argv = ["barebones", *words["argv"]]
    code = 0
    try:
        barebones.cli.app.main()
    except SystemExit as leaving:
        code = leaving.code or 0
    except BaseException:
        import traceback
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
"""


class Commands:
    """`barebones` in processes of their own, without the seconds that importing torch takes each."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.out, self.err = folder / "out", folder / "err"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        (folder / "nets_for_runs.py").write_text(NETWORK)
        self.server = subprocess.Popen(
            [sys.executable, "-c", SERVER], env=environment, cwd=folder,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def _ask(self, request: object) -> int:
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        return int(self.server.stdout.readline())

    def start(self, *argv: str, die: tuple[int, bool, int] | None = None) -> int:
        """The process id; with `die`, it signals itself before or after the n-th time that it puts a file in place."""
        return self._ask({"argv": argv, "die": die, "out": str(self.out), "err": str(self.err)})

    def wait(self) -> int:
        """The exit code of the latest, or minus the signal that ended it."""
        return self._ask("wait")

    def __call__(self, *argv: str, **options) -> int:
        self.start(*argv, **options)
        return self.wait()


@pytest.fixture(scope="module")
def commands(tmp_path_factory) -> Iterator[Commands]:
    made = Commands(tmp_path_factory.mktemp("commands") / "server")
    yield made
    made.server.stdin.close()
    made.server.wait(60)
    made.server.stdout.close()


KINDS = {
    "force": "--method force --rounds 6 --epochs 2",
    "early": "--method magnitude --pretrain 1 --epochs 1",
    "rewound": "--method iter-snip --rounds 3 --pretrain 1 --rewind --epochs 1",
}


def words(runs: Path, kind: str) -> list[str]:
    common = "--model nets_for_runs:tiny --data digits --sparsity 0.7 --seed 1 --batch 128 --device cpu --save-every 0"
    own = KINDS.get(kind, "--rounds 100000 --epochs 100000")
    return ["run", *common.split(), *own.split(), "--runs", str(runs)]


@pytest.fixture(scope="module")
def uninterrupted(commands, tmp_path_factory) -> dict[str, Path]:
    """The folders of runs that nobody disturbed."""
    found = {}
    for kind in KINDS:
        runs = tmp_path_factory.mktemp(kind)
        assert commands(*words(runs, kind)) == 0, commands.err.read_text()
        (found[kind],) = runs.iterdir()
    return found


def until(condition, what: str, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"{what} did not happen in {seconds} s")
        time.sleep(0.001)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_killed_at_every_file_it_writes_ends_the_same(kind, commands, uninterrupted, tmp_path):
    argv, killed, after = words(tmp_path, kind), 0, False
    for count in range(1, 200):
        code = commands(*argv, die=(1 + count // 2, after, signal.SIGKILL))
        after = not after
        if code == 0:
            break
        assert code == -signal.SIGKILL, commands.err.read_text()
        killed += 1
    assert killed >= 8
    (folder,) = tmp_path.iterdir()
    assert_same_run(folder, uninterrupted[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_killed_at_random_moments_ends_the_same(kind, commands, uninterrupted, tmp_path):
    argv, chance = words(tmp_path, kind), random.Random(kind)
    folder = tmp_path / uninterrupted[kind].name
    total = len(read(uninterrupted[kind] / "metrics.jsonl"))
    killed = 0
    for goal in (0, 1, *sorted(chance.choices(range(1, total), k=7))):
        pid = commands.start(*argv)
        until(lambda goal=goal: len(read(folder / "metrics.jsonl")) >= goal and folder.exists(), f"line {goal}")
        time.sleep(chance.uniform(0, 0.05))
        os.kill(pid, signal.SIGKILL)
        killed += commands.wait() == -signal.SIGKILL
    assert commands(*argv) == 0, commands.err.read_text()
    assert killed >= 1
    assert_same_run(folder, uninterrupted[kind])


@pytest.mark.parametrize("stage", ["pretrain", "prune", "train"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_says_how_to_go_on_and_leaves_with_its_code(number, code, stage, commands, tmp_path):
    argv = words(tmp_path, "endless")
    argv += ["--pretrain", "100000"] if stage == "pretrain" else []
    argv += ["--rounds", "2"] if stage == "train" else []
    argv[argv.index("--save-every") + 1] = "1000"  # so that it is the signal that saves
    pid = commands.start(*argv)

    def lines() -> list[dict]:
        return [line for path in tmp_path.glob("*/metrics.jsonl") for line in read(path)]

    until(lambda: any(line["stage"] == stage for line in lines()), stage)
    os.kill(pid, number)
    left, said = commands.wait(), commands.err.read_text()
    assert left == code, said
    (folder,) = tmp_path.iterdir()
    assert "Traceback" not in said
    assert said.endswith(f"stopped and saved in {folder}; the same command resumes from there\n")
    expected = {"pretrain": "pretraining", "prune": "round", "train": "checkpoint"}[stage]
    assert (folder / f"{expected}.safetensors").exists()
    assert not (folder / "result.json").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_run_that_gets_one_signal_after_the_other_ends_the_same(number, code, commands, uninterrupted, tmp_path):
    stopped = 0
    for count in range(2, 100):
        left = commands(*words(tmp_path, "force"), die=(count, count % 2 > 0, number))
        if left == 0:
            break
        assert left == code, commands.err.read_text()
        stopped += 1
    assert stopped >= 4
    (folder,) = tmp_path.iterdir()
    assert_same_run(folder, uninterrupted["force"])


def test_the_module_on_the_command_line_is_killed_and_goes_on_too(commands, uninterrupted, tmp_path):
    (tmp_path / "nets_for_runs.py").write_text(NETWORK)
    argv = words(tmp_path / "runs", "force")
    folder = tmp_path / "runs" / uninterrupted["force"].name
    process = subprocess.Popen(
        [sys.executable, "-m", "barebones", *argv],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
    )
    until(lambda: any(line["stage"] == "train" for line in read(folder / "metrics.jsonl")), "training")
    process.kill()
    process.wait(60)
    assert commands(*argv) == 0, commands.err.read_text()
    assert "Test accuracy after the last epoch" in commands.out.read_text()
    assert_same_run(folder, uninterrupted["force"])


def test_the_second_process_in_a_folder_gets_one_sentence(short, place, commands, tmp_path):
    argv = words(tmp_path / "mine", "force")
    (tmp_path / "mine").mkdir()
    experiment = replace(short, rounds=6).resolved()
    mine = RunOptions(tmp_path / "mine")
    steps = run(experiment, mine)
    next(steps)
    before = stamps(mine.folder(experiment))
    assert commands(*argv) == 2
    assert commands.err.read_text() == (
        f"error: another process is running in {mine.folder(experiment)}; wait for it, or stop it first\n"
    )
    assert stamps(mine.folder(experiment)) == before
    steps.close()
    assert commands(*argv) == 0


def test_two_runs_of_one_process_share_no_folder(short, place):
    steps = run(short, place)
    next(steps)
    with pytest.raises(ValueError, match=r"another process is running in .*; wait for it, or stop it first"):
        next(run(short, place))
    result_of(steps)
    assert (place.folder(short) / "result.json").exists()


# disks and folders


def test_a_full_disk_is_an_error_before_any_work(short, place, monkeypatch):
    usage = shutil.disk_usage(".")._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr(stages, "prune", lambda *args, **options: pytest.fail("work was begun"))
    with pytest.raises(ValueError, match=r"needs about \d+ MB, but its disk has 1 MB left; delete something first"):
        result_of(run(short, place))
    assert not (place.folder(short) / "mask.safetensors").exists()
    assert not (place.folder(short) / "metrics.jsonl").exists()


def test_a_disk_that_does_not_say_how_full_it_is_may_have_room(short, place, monkeypatch):
    def unknown(path):
        raise OSError(errno.ENOSYS, "not here")

    monkeypatch.setattr(shutil, "disk_usage", unknown)
    result_of(run(short, place))


class Full(OSError):
    """As a full disk raises it."""

    def __init__(self) -> None:
        super().__init__(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("when", [0, 1, 2, 3, 4, 5, 6, 7, 17, -4, -3, -2, -1])
def test_a_disk_that_fills_up_spoils_nothing_and_the_run_goes_on(when, short, place, tmp_path, monkeypatch):
    whole, real, count, end = RunOptions(tmp_path / "whole", save_every=0), os.fsync, 0, sys.maxsize

    def fsync(descriptor: int) -> None:
        nonlocal count
        if not os.path.isdir(f"/proc/self/fd/{descriptor}"):
            count += 1
            if count > end:
                raise Full
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    result_of(run(short, whole))
    count, end = 0, when if when >= 0 else count + when
    folder = place.folder(short)
    with pytest.raises(OSError, match="No space left on device"):
        result_of(run(short, place))
    monkeypatch.setattr(os, "fsync", real)
    assert not (folder / "result.json").exists()
    assert not list(folder.glob(".*.tmp"))
    for path in folder.glob("*.safetensors"):
        kind = {"mask": "masks", "round": "round", "checkpoint": "checkpoint", "weights": "weights"}[path.stem]
        files.read(path, f"barebones-{kind}", 1)
    result_of(run(short, place))
    assert_same_run(folder, whole.folder(short))


@pytest.mark.parametrize("whole_lines", [0, 2, 4, 5])
def test_a_disk_that_fills_up_within_a_line_of_metrics_spoils_nothing(whole_lines, short, place, tmp_path, monkeypatch):
    whole = RunOptions(tmp_path / "whole")
    result_of(run(short, whole))
    left = whole_lines

    class Half:
        def __init__(self, path, mode, encoding):
            self.file = open(path, mode, encoding=encoding)  # noqa: SIM115

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            self.file.close()

        def write(self, text):
            nonlocal left
            left -= 1
            self.file.write(text if left >= 0 else text[: len(text) // 2])
            if left < 0:
                raise Full

    monkeypatch.setattr("barebones.lab.metrics.open", Half, raising=False)
    with pytest.raises(OSError, match="No space left on device"):
        result_of(run(short, place))
    monkeypatch.delattr("barebones.lab.metrics.open")
    path = place.folder(short) / "metrics.jsonl"
    assert not path.read_text().endswith("\n")
    assert len(read(path)) == whole_lines
    result_of(run(short, place))
    assert_same_run(place.folder(short), whole.folder(short))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder_is_an_error_before_any_work(short, place):
    place.runs.mkdir()
    place.runs.chmod(0o500)
    try:
        with pytest.raises(PermissionError, match="cannot make the run's folder"):
            result_of(run(short, place))
    finally:
        place.runs.chmod(0o700)


def test_a_folder_that_may_not_be_written_into_is_said_to_be_so(short, place, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match="cannot write into the run's folder"):
        result_of(run(short, place))


@pytest.mark.parametrize("where", ["runs", "folder"])
def test_a_file_in_the_way_gets_one_clear_sentence(where, short, place):
    path = place.runs if where == "runs" else place.folder(short)
    path.parent.mkdir(exist_ok=True)
    path.write_text("a note")
    with pytest.raises(OSError, match="cannot make the run's folder") as caught:
        result_of(run(short, place))
    assert str(path) in str(caught.value)
    assert path.read_text() == "a note"


def test_what_a_killed_process_was_writing_is_cleared(short, place):
    folder = place.folder(short)
    folder.mkdir(parents=True)
    (folder / ".0123456789abcdef.tmp").write_bytes(b"half")
    (folder / "notes.tmp").write_text("mine")
    next(run(short, place))
    assert not (folder / ".0123456789abcdef.tmp").exists()
    assert (folder / "notes.tmp").read_text() == "mine"


def test_the_folder_of_another_experiment_is_refused(short, place):
    folder = place.folder(short)
    folder.mkdir(parents=True)
    (folder / "experiment.json").write_text(json.dumps(replace(short, seed=9).to_dict()))
    with pytest.raises(ValueError, match=r"experiment\.json is another experiment; move that folder away"):
        result_of(run(short, place))
    assert {p.name for p in folder.iterdir()} == {"experiment.json", "lock"}


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_damaged_record_is_named(text, short, place):
    folder = place.folder(short)
    folder.mkdir(parents=True)
    (folder / "experiment.json").write_text(text)
    with pytest.raises(ValueError, match=r"experiment\.json"):
        result_of(run(short, place))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "cannot be read"),
        ('{"test": 1', "cannot be read"),
        ("[]", "is not the result of this experiment"),
        ('{"experiment": {}}', "is not the result of this experiment"),
    ],
)
def test_a_result_that_is_none_is_refused(text, match, short, place):
    folder = place.folder(short)
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(text)
    with pytest.raises(ValueError, match=rf"result\.json {match}.*delete it to run this again"):
        result_of(run(short, place))


@pytest.mark.parametrize("name", ["round", "checkpoint"])
def test_a_damaged_checkpoint_is_named_and_nothing_is_lost(name, short, place):
    interrupted(short, place, 1 if name == "round" else 8)
    path = place.folder(short) / f"{name}.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match=f"{name}.safetensors is truncated or damaged"):
        result_of(run(short, place))


def test_a_network_that_breaks_leaves_no_result_and_says_so(short, place):
    experiment = replace(short, lr=1e30)
    for _ in range(2):  # again, from the checkpoint
        with pytest.raises(FloatingPointError, match="epoch 0: the training loss is not finite"):
            result_of(run(experiment, place))
    assert not (place.folder(experiment) / "result.json").exists()


def test_a_network_that_breaks_in_the_last_step_of_an_epoch_says_so_too(short, place):
    experiment = replace(short, lr=1e38, batch=1294, epochs=1)  # an epoch is one step
    with pytest.raises(FloatingPointError, match="not finite"):
        result_of(run(experiment, place))
    assert not (place.folder(experiment) / "result.json").exists()


@pytest.mark.parametrize("stage", ["prune", "train"])
def test_progress_is_told_in_words(stage, short, place):
    folder = place.folder(short)
    assert progress(folder) == "not begun"
    interrupted(short, place, 2)
    assert progress(folder) == "prune: 3 of 4 rounds"
    interrupted(short, place, 1)
    assert progress(folder) == "pruned"
    interrupted(short, place, 12)
    assert progress(folder) == "pruned; trained 1 of 2 epochs"
    result_of(run(short, place))
    assert progress(folder) == "finished"


# masks of a file


def trained_from(path: Path, maker: Experiment, **changes) -> Experiment:
    own = dict.fromkeys(("rounds", "batches", "schedule", "revive_until", "at_least", "scoring_precision"))
    content = {"method": "file", "mask": maskfile.content(load_masks(path)[0])}
    return replace(maker, **own, **content, **changes)


def test_the_masks_of_a_file_train_as_in_the_run_that_made_them(short, place, tmp_path):
    made = result_of(run(short, place))
    mask = place.folder(short) / "mask.safetensors"
    experiment, there = trained_from(mask, short), RunOptions(tmp_path / "file", mask=mask, save_every=0)
    interrupted(experiment, there, 5)
    result = result_of(run(experiment, there))
    assert result["weights"] == made["weights"]
    assert (result["test"], result["kept"], result["effective"]) == (made["test"], made["kept"], made["effective"])
    assert result["found_for_these_weights"] is True
    assert (there.folder(experiment) / "mask.safetensors").read_bytes() == mask.read_bytes()
    other = result_of(run(trained_from(mask, short, seed=2, epochs=1), there))
    assert other["found_for_these_weights"] is False
    assert other["kept"] == made["kept"]


def test_a_strangers_masks_are_trained_and_accounted_for(short, place, tmp_path):
    model = Network(short, place, torch.device("cpu")).model
    masks = {name: torch.arange(w.numel()).view(w.shape) % 2 == 0 for name, w in bb.prunable(model).items()}
    path = tmp_path / "theirs"
    save_masks(masks, path)
    experiment = trained_from(path, short, sparsity=0.5, epochs=1)
    result = result_of(run(experiment, replace(place, mask=path)))
    assert result["kept"] == sum(int(mask.sum()) for mask in masks.values())
    assert result["effective"] is not None
    assert result["found_for_these_weights"] is False
    bb.audit(_with(model, tensors(place.folder(experiment) / "weights.safetensors")), masks)


def _with(model: torch.nn.Module, state: dict[str, Tensor]) -> torch.nn.Module:
    model.load_state_dict(state)
    return model


def test_masks_that_changed_or_are_not_there_are_refused(short, place, tmp_path):
    path = tmp_path / "theirs"
    save_masks({"w": torch.eye(2) > 0}, path)
    experiment = trained_from(path, short)
    with pytest.raises(ValueError, match="name their file with --mask FILE"):
        result_of(run(experiment, place))
    with pytest.raises(ValueError, match="does not match the model"):
        result_of(run(experiment, other := replace(place, mask=path, runs=tmp_path / "other")))
    assert not (other.folder(experiment) / "mask.safetensors").exists()
    save_masks({"w": torch.eye(2) < 1}, path)
    with pytest.raises(ValueError, match="has changed since it was read"):
        result_of(run(experiment, replace(place, mask=path)))
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(ValueError, match="damaged"):
        result_of(run(experiment, replace(place, mask=path)))


def test_the_same_masks_in_two_files_are_one_experiment(short, tmp_path):
    masks = {"w": torch.eye(2) > 0}
    save_masks(masks, tmp_path / "a", seconds=1.0)
    save_masks(masks, tmp_path / "b", seconds=2.0)
    assert trained_from(tmp_path / "a", short).id == trained_from(tmp_path / "b", short).id


def test_a_round_is_not_saved_before_its_lines_are_written(short, place, monkeypatch):
    """As on an accelerator, where lines wait: a checkpoint past a line would lose it for ever."""
    saved = []

    def save(self, path):
        lines = read(place.folder(short) / "metrics.jsonl")
        saved.append((self.index, [line["round"] for line in lines]))

    monkeypatch.setattr(stages, "FLUSH", 1e9)
    monkeypatch.setattr(bb.Round, "save", save)
    monkeypatch.setattr(stages, "_reads_every_round", lambda device: False)
    result_of(run(short, replace(place, save_every=0)))
    assert saved
    assert all(lines == list(range(index + 1)) for index, lines in saved)


def test_the_initial_weights_depend_on_the_seed_alone(short, place):
    torch.manual_seed(123)
    one = Network(short, place, torch.device("cpu")).model
    torch.rand(7)
    other = Network(replace(short, method="random", sparsity=0.1), place, torch.device("cpu"))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.model.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.initial().parameters(), strict=True))
    third = Network(replace(short, seed=2), place, torch.device("cpu")).model
    assert not torch.equal(one[0].weight, third[0].weight)
