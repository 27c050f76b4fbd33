"""The commands for experiments: dry runs do nothing, and prune, train, run and inspect fit together."""

import io
import json
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import barebones as bb
from barebones.data import DATA
from barebones.files.masks import load_masks, save_masks
from barebones.lab.experiment.experiment import Experiment
from barebones.lab.figures import demo
from barebones.lab.run import network
from barebones.lab.run.folder import finished
from barebones.lab.run.network import cached_data
from barebones.lab.sweep.sweep import SweepResult
from barebones.masks import kept
from barebones.models.from_timm import Wanted

TINY = ["--model", "nets_for_cli:tiny", "--data", "digits", "--batch-size", "256", "--device", "cpu"]
FORCE = [*TINY, "--method", "force", "--sparsity", "0.8", "--rounds", "3", "--epochs", "1"]


def origins(out: str) -> dict[str, str]:
    """Return where a dry run says that the value of each setting comes from."""
    rows = [line.split("│") for line in out.splitlines() if line.startswith("│")]
    return {row[1].strip(): row[3].strip() for row in rows}


def test_a_dry_run_says_where_each_value_comes_from(command, tiny):
    told = origins(command("run", "--data", "digits", "--model", "small-vgg", "--epochs", "3", "--dry-run").out)
    assert [told[name] for name in ("epochs", "seed", "rounds", "model")] == [
        "you", "", "the method and the data set's protocol", "you",
    ]  # fmt: skip
    assert (told["scoring_precision"], told["schedule"], told["lr"]) == ("", "the method", "the data set's protocol")
    told = origins(command("run", "--data", "digits", "--model", "small-vgg", "--method", "dense", "--dry-run").out)
    assert told["sparsity"] == "the method"
    command("prune", "--data", "digits", "--model", "small-vgg", "--method", "random", "--seed", "3",
            *("--unit", "channel", "--target", "flops", "--sparsity", "0.5", "-o", "mask"))  # fmt: skip
    dry = command("train", "--mask", "mask", "--epochs", "1", "--dry-run").out
    assert f"; {kept(load_masks('mask')):,} would be left" in dry
    told = origins(dry)
    assert [told[name] for name in ("epochs", "seed", "data", "sparsity")] == ["you", *["the mask file"] * 3]
    assert not told.keys() & {"revive_empty", "scoring_bn", "rounds"}  # how the masks were found is not set here


def test_recommended_settings_give_way_to_those_of_the_user(command, mistake, tiny):
    for words, expected in {
        (): ["hybrid", "set", "cosine", "True"],
        ("--method", "force", "--lr-schedule", "milestones"): ["force", "set", "milestones", "True"],
        ("--evolve", "none", "--no-shrink"): ["hybrid", None, "cosine", "False"],
    }.items():
        told = command("run", *TINY, "--recommended", *words, "--dry-run").out
        rows = {row[1].strip(): row[2].strip() for line in told.splitlines() if len(row := line.split("│")) > 3}
        assert [rows.get(name) for name in ("method", "evolve", "lr_schedule", "shrink")] == expected
    problem = "--recommended moves single weights, so it takes no method dense; leave one"
    mistake(problem, "run", *TINY, "--recommended", "--method", "dense")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", *FORCE], ["594 prunable weights; 119 would be left", "Training: 1 epoch on cpu",
                           "sparsity .* you", "weight_decay .* the data set's protocol"]),
        (["run", *FORCE, "--unit", "channel"], ["594 prunable weights; about 119 would be left"]),
        (["run", *FORCE, "--unit", "channel", "--target", "flops"], ["weights; about 20.000% of the FLOPs would"]),
        (["prune", *FORCE], ["Pruning: 3 rounds, each with 1 batch of 256 images"]),
        (["run", *TINY, "--method", "dense"], ["dense", "Training: 20 epochs"]),
        (["sweep", "smoke", "--device", "cpu"], ["experiments in smoke-runs"]),
    ],
    ids=["run", "channels", "flops", "prune", "train", "sweep"],
)  # fmt: skip
def test_a_dry_run_says_what_would_happen_and_does_nothing(words, expected, command, tiny, monkeypatch):
    cached_data.cache_clear()
    for name in DATA:
        monkeypatch.setitem(DATA, name, replace(DATA[name], load=lambda request: pytest.fail("a dry run reads data")))
    done = command(*words, "--dry-run")
    assert (done.code, done.err) == (0, "")
    assert all(re.search(text, done.out) for text in ("not begun", *expected))
    assert {path.name for path in tiny.iterdir()} <= {"nets_for_cli.py", "__pycache__"}


@pytest.mark.parametrize("size", [8, 16])
def test_images_that_are_resized_for_a_network_are_told(size, command, tiny, monkeypatch):
    monkeypatch.setattr(network, "wanted", lambda name: Wanted(size, (0.5,), (0.5,)))
    for words in (["run", "--dry-run"], ["prune", "--method", "random"]):
        done = command(*words, "--data", "digits", "--model", "small-vgg", "--device", "cpu")
        assert done.code == 0
        assert done.out.count("The images of digits, 8 x 8, are resized to 16 x 16 for small-vgg.\n") == (size == 16)


@pytest.mark.parametrize(
    ("prepare", "words", "expected"),
    [
        (lambda patch: Path("runs").write_text("mine"), "", "Not a directory: runs/"),
        (lambda patch: patch.setitem(sys.modules, "tensorboard", None), "--track tensorboard",
         "error: --track tensorboard needs the package tensorboard: pip install 'barebones[tensorboard]'"),
        (None, "--track wnadb", "error: tracker 'wnadb' is unknown; choose tensorboard, wandb, mlflow"),
        (None, "--lr 1e30",
         "error: epoch 1: the training loss is not finite; lower the learning rate, add a warm-up, or train in fp32"),
        (None, "--model nets_for_cli:for_larger_images", "for_larger_images"),
        (None, "--model nets_for_cli:for_fewer_classes", "for_fewer_classes"),
        (None, "--model nets_for_cli:for_larger_images --method magnitude --rounds 1", "for_larger_images"),
        (None, "--model nets_for_cli:for_fewer_classes --method erk --rounds 1", "for_fewer_classes"),
    ],
)  # fmt: skip
def test_trouble_is_one_line(prepare, words, expected, mistake, tiny, monkeypatch):
    if prepare:
        prepare(monkeypatch)
    mistake(expected, "run", *FORCE, *words.split())
    assert not list(tiny.rglob("result.json"))


@pytest.mark.parametrize(
    ("numbers", "code"),
    [((2, 0, 0, 1, ["t"]), 0), ((2, 1, 0, 0, ["t"]), 1), ((2, 0, 1, 0, ["t"]), 1), ((2, 0, 0, 0, []), 1)],
)
def test_a_sweep_with_failed_or_unfinished_runs_says_so_by_its_exit_code(numbers, code, command, monkeypatch):
    monkeypatch.setattr("barebones.lab.sweep.sweep.sweep", lambda *args, **options: SweepResult(*numbers))
    assert command("sweep", "smoke", "--device", "cpu").code == code


def test_a_dry_run_of_a_sweep_names_a_damaged_file_and_goes_on(command):
    words = ("sweep", "smoke", "--device", "cpu", "--dry-run")
    names = [line.partition(":")[0] for line in command(*words).out.splitlines()[:-1]]
    Path("smoke-runs", names[0]).mkdir(parents=True)
    Path("smoke-runs", names[0], "metrics.jsonl").write_text("{}\n")
    done = command(*words)
    assert (done.code, done.out.count("not begun")) == (0, len(names) - 1)
    assert "metrics.jsonl is damaged in line 1; delete its folder" in done.out
    Path("smoke-runs", names[1], "result.json").mkdir(parents=True)
    assert command(*words).out.count("not begun") == len(names) - 2


CHANNEL = ["--unit", "channel", "--sparsity", "0.99", "--pretrain", "1"]


@pytest.mark.parametrize(
    "words",
    [["run", *FORCE, "--pattern", "2:5"], ["sweep", "grid.toml", "--device", "cpu"], ["run", *FORCE, *CHANNEL]],
)
@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_settings_that_do_not_fit_the_network_are_refused_before_anything_starts(words, dry, mistake, command, tiny):
    (tiny / "grid.toml").write_text('model = "small-vgg"\ndata = "digits"\npattern = ["1:2", "2:5"]\n')
    mistake("unit='channel' keeps at least" if "channel" in words else "pattern='2:5' does not divide", *words, *dry)
    assert "begins" not in command(*words, *dry).err
    assert not list(tiny.glob("*runs/*"))


def test_prune_checks_where_it_will_write_before_its_rounds(mistake, tiny, monkeypatch):
    def temporary(dir: Path) -> io.BytesIO:  # root may write everywhere
        if dir.name == "locked":
            raise OSError(13, "Permission denied")
        return io.BytesIO()

    monkeypatch.setattr("barebones.cli.options.TemporaryFile", temporary)
    (tiny / "locked").mkdir()
    for out, expected in {
        "locked/mask": f"locked/mask cannot be written into {tiny}/locked (Permission denied); name another file",
        "nowhere/mask": "there is no folder nowhere to write mask into; create it first",
        "/dev/null": "/dev/null is a device; name a file",
        ".": ". is a folder; name a file",
    }.items():
        mistake(expected, "prune", *FORCE, "-o", out)
    assert not Path("runs").exists()


def test_a_run_is_shown_at_every_stage_and_does_nothing_twice(command, tiny):
    before = command("run", *FORCE, "--dry-run").out
    done = command("prune", *FORCE)
    assert "119 of 594 prunable weights are left: sparsity 79.966%" in done.out
    (folder,) = Path("runs").iterdir()
    assert f"The masks are in {folder}/mask.safetensors" in done.out
    assert f"{folder}: not begun." in before
    assert f"{folder}: pruned." in command("run", *FORCE, "--dry-run").out
    shown = json.loads(command("inspect", folder, "--json").out)
    assert (shown["state"], shown["result"]) == ("pruned", None)
    assert Experiment.from_dict(shown["experiment"]).folder == folder.name

    first = command("run", *FORCE)
    assert first.code == 0
    assert "train: epoch 1 of 1, loss" in first.err
    assert "Best validation accuracy" in first.out
    assert f"Everything is in {folder}" in first.out
    again = command("run", *FORCE)
    assert (again.code, again.err) == (0, "")
    assert again.out.startswith("This run was finished before, on 20")
    assert again.out.endswith(first.out)
    assert f"{folder}: finished." in command("run", *FORCE, "--dry-run").out
    assert json.loads(command("inspect", folder, "--json").out)["result"] == finished(folder)
    texts, printed = ("State: finished.", "Test accuracy after the last epoch", TINY[1]), command("inspect", folder).out
    assert all(text in printed for text in texts)

    assert "119 of 594 prunable weights are left" in command("prune", *FORCE, "-o", "mask").out
    assert Path("mask").read_bytes() == (folder / "mask.safetensors").read_bytes()


@pytest.fixture
def mask(command, tiny) -> Path:
    """Prune a network, and return the mask file."""
    done = command("prune", *FORCE, "-o", "mask")
    assert done.code == 0
    assert "prune: round 3 of 3, 119 weights left" in done.err
    return Path("mask")


def test_train_trains_the_masks_of_prune_as_run_does(mask, command, tiny):
    trained = command("train", "--mask", mask, "--trust", "--device", "cpu")
    assert trained.code == 0
    assert "Test accuracy after the last epoch" in trained.out
    assert "found for other initial weights" not in trained.out
    assert command("run", *FORCE).code == 0
    first, second = (json.loads(p.read_text()) for p in tiny.rglob("result.json"))
    assert (first["weights"], first["test"]) == (second["weights"], second["test"])
    seeded = command("train", "--mask", mask, *TINY[:2], "--seed", "5", "--epochs", "0", "--device", "cpu")
    assert "These masks were found for other initial weights than those of this run." in seeded.out


def test_train_refuses_what_does_not_fit_its_masks(mask, command, mistake):
    for option, value in {"rounds": 3, "sparsity": 0.5, "scoring-precision": "bf16", "pretrain": 1}.items():
        problem = f"the masks are found already, so --{option} has no effect"
        mistake(problem, "train", "--mask", mask, f"--{option}", value)
    mistake("does not match the model", "train", "--mask", mask, "--model", "nets_for_cli:mlp")
    assert command("prune", *TINY, "--method", "magnitude", "--pretrain", "1", "-o", "late").code == 0
    problem = "late was found after pretraining; use barebones run, which repeats the pretraining"
    mistake(problem, "train", "--mask", "late")


def test_masks_of_the_library_are_trained_once_it_is_said_on_what(command, mistake, tiny):
    sys.path.insert(0, str(tiny))
    import nets_for_cli

    bb.prune(nets_for_cli.tiny(), None, 0.5, "random", on_collapse="ignore").save("mask")
    mistake("mask does not name its network and data set; pass --model and --data", "train", "--mask", "mask")
    done = command("train", "--mask", "mask", "--epochs", "0", *TINY)
    assert done.code == 0
    assert "297 of 594 prunable weights are left: sparsity 50.000%" in done.out
    assert "found for other initial weights" in done.out


@pytest.mark.parametrize("method", [name for name, row in bb.METHODS.items() if not row.needs_data])
def test_a_method_without_data_finds_the_same_masks_where_the_data_is_missing(method, command, tiny, monkeypatch):
    words = (*TINY, "--method", method, "--sparsity", "0.8")
    assert command("run", *words, "--epochs", "0", "--runs", "read").code == 0
    cached_data.cache_clear()
    monkeypatch.setitem(DATA, "digits", replace(DATA["digits"], load=lambda request: pytest.fail("it reads data")))
    done = command("prune", *words, "--epochs", "0", "--runs", "unread")
    assert done.code == 0, done.err
    read, unread = (load_masks(next(Path(runs).glob("*/mask.safetensors"))) for runs in ("read", "unread"))
    assert all(torch.equal(read[name], unread[name]) for name in read)
    assert all(read.about[name] == unread.about[name] for name in ("account", "inputs", "collapsed", "run"))


def test_data_is_downloaded_if_asked_also_for_a_method_without_data(command, tiny, monkeypatch):
    asked, load = [], DATA["digits"].load
    monkeypatch.setitem(DATA, "digits", replace(DATA["digits"], load=lambda r: asked.append(r.download) or load(r)))
    cached_data.cache_clear()
    assert command("prune", *TINY, "--method", "erk", "--sparsity", "0.8", "--download").code == 0
    assert asked == [True]


def test_inspect_shows_a_mask_file(mask, command):
    save_masks({"a": torch.zeros(2, 3, dtype=torch.bool), "b": torch.ones((), dtype=torch.bool)}, "without history")
    shown = command("inspect", "without history").out
    assert all(text in shown for text in (" 0 %", " 100 %", "1 of 7 weights kept (14.3 %)"))
    masks = load_masks(mask)
    shown = command("inspect", mask)
    assert "…" not in shown.out
    assert masks.about["fingerprint"] in "".join(part.strip("│ ") for part in shown.out.splitlines())
    assert f" {masks.about['account']['sparsity']:.6g}," in shown.out
    assert all(text in shown.out for text in ("force", "0.weight", "4.weight", "6×1×3×3", "10×54", "119", "594"))
    content = json.loads(command("inspect", mask, "--json").out)
    assert content["about"] == masks.about
    assert content["layers"] == {
        name: {"shape": list(mask.shape), "total": mask.numel(), "kept": int(mask.sum())}
        for name, mask in masks.items()
    }


@pytest.mark.parametrize(("stopped", "code"), [(False, 0), (True, 143)])
def test_the_demo_takes_seeds_and_epochs_and_can_be_stopped(stopped, code, command, monkeypatch):
    def run(console, seeds, epochs, stopping, out):
        assert (seeds, epochs, out) == (2, 5, Path("demo.png"))
        if stopped:
            signal.raise_signal(signal.SIGTERM)
            assert stopping()

    monkeypatch.setattr(demo, "demo", run)
    assert command("demo", "--seeds", "2", "--epochs", "5").code == code
