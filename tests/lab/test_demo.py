"""The demo: a recipe, a table with a row for each method, and a sentence that follows from the numbers."""

import io
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from barebones.lab import demo, records
from barebones.lab.experiment import Experiment
from barebones.lab.sweep import SweepResult
from barebones.models import SmallResNet, SmallVGG, initialize
from barebones.scope import prunable

ACCURACIES = {"dense": 0.99, "random": 0.4, "snip": 0.1, "iter-snip": 0.95, "force": 0.94, "hybrid": 0.96}


def rows(experiments: list[Experiment], **accuracies: float) -> list[records.Row]:
    """Records as a sweep would write them, with these accuracies."""
    known = ACCURACIES | {name.replace("_", "-"): value for name, value in accuracies.items()}
    results = {
        "effective_sparsity": 0.99,
        "collapsed": False,
        "prune_seconds": 1.0,
        "train_seconds": 2.0,
        "top1_std": 0.1,
    }
    return [{**e.to_dict(), **results, "status": records.DONE, "top1_mean": known[e.method]} for e in experiments]


def test_the_recipe_has_every_method_network_and_seed():
    experiments = demo.recipe(seeds=2, epochs=5)
    assert len({e.resolved().id for e in experiments}) == len(demo.COMPARED) * len(demo.SPARSITIES) * 2
    assert {(e.data, e.epochs, e.sparsity == demo.SPARSITIES[e.model]) for e in experiments} == {("digits", 5, True)}


@pytest.fixture
def swept(monkeypatch) -> list[Path]:
    """A sweep that runs nothing and records made-up results; the folders that it was told to use."""
    folders: list[Path] = []

    def sweep(experiments, options, **others):
        folders.append(options.runs)
        assert options.runs.is_dir()
        monkeypatch.setattr(records, "records", lambda runs: rows(experiments))
        return SweepResult(done=len(experiments), failed=0, stopped=0, skipped=0, tables=[])

    monkeypatch.setattr(demo, "sweep", sweep)
    return folders


@pytest.mark.parametrize("seeds", [1, 3])
def test_it_prints_a_row_for_each_method_and_leaves_nothing_on_disk(seeds, swept):
    console = Console(record=True, width=120, file=io.StringIO())
    demo.demo(console, seeds)
    text = console.export_text()
    assert "1,294 handwritten digits for training, 359 for testing." in text
    for label in ("Dense", "Random", "SNIP", "Iter SNIP", "FORCE", "Hybrid"):
        assert text.count(f"│ {label} ") == 2
    assert ("mean ± standard deviation of 3 seeds" in text) == (seeds == 3)
    assert " ".join(text.split()).count("This is what the paper says") == 2
    assert not swept[0].exists()


@pytest.mark.slow
def test_it_runs(monkeypatch):
    monkeypatch.setattr(demo, "SPARSITIES", {"small-vgg": 0.9})
    monkeypatch.setattr(demo, "COMPARED", ("dense", "random", "snip"))  # one round each
    monkeypatch.setattr(demo, "PROGRESSIVE", ("snip",))
    done = demo.demo(Console(file=io.StringIO()), seeds=1, epochs=1)
    assert [row["status"] for row in done] == [records.DONE] * 3


def test_it_says_which_run_failed_and_why(monkeypatch):
    failed = {"status": "failed", "folder": "digits-small-vgg-force", "reason": "no room"}
    monkeypatch.setattr(demo, "sweep", lambda *args, **options: SweepResult(0, 1, 0, 0, []))
    monkeypatch.setattr(records, "records", lambda runs: [failed])
    with pytest.raises(ValueError, match="digits-small-vgg-force failed: no room"):
        demo.demo(Console(file=io.StringIO()), seeds=1)


def test_a_demo_that_is_stopped_shows_no_table(monkeypatch):
    monkeypatch.setattr(demo, "sweep", lambda *args, **options: SweepResult(1, 0, 35, 0, []))
    monkeypatch.setattr(records, "records", lambda runs: rows(demo.recipe()[:1]))
    console = Console(record=True, width=120, file=io.StringIO())
    assert len(demo.demo(console)) == 1
    assert "accuracy" not in console.export_text()


@pytest.mark.parametrize(
    ("accuracies", "shown", "words"),
    [
        ({}, True, "near chance and below random pruning"),
        ({"snip": 0.35}, True, "below random pruning"),
        ({"snip": 0.60}, False, "above random pruning"),
        ({"force": 0.30}, False, "near chance"),
        ({"iter_snip": 0.09}, False, "near chance"),
    ],
)
def test_what_it_says_follows_from_the_numbers(accuracies, shown, words):
    said = demo.sentence("small-vgg", rows(demo.recipe(seeds=2), **accuracies))
    assert words in said
    assert ("This is what the paper says" if shown else "This is not what the paper says") in said


@pytest.mark.parametrize(("make", "weights"), [(SmallVGG, 266_384), (SmallResNet, 54_096)])
def test_the_networks_take_digits(make, weights):
    model = initialize(make(), generator=torch.Generator().manual_seed(0))
    assert sum(p.numel() for p in prunable(model).values()) == weights
    assert model(torch.randn(3, 1, 8, 8)).shape == (3, 10)
    for weight in (p for p in model.parameters() if p.dim() == 4 and p.numel() > 5000):
        fan_in = weight[0].numel()
        assert float(weight.detach().std()) == pytest.approx((2 / fan_in) ** 0.5, rel=0.1)


def test_without_scikit_learn_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'barebones\[demo\]'"):
        demo.demo(Console(file=io.StringIO()), seeds=1, epochs=1)
