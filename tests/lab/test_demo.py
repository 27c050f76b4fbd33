"""The demo: a recipe, a table with a row for each method, and a sentence that follows from the numbers."""

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from barebones.lab.experiment.experiment import Experiment
from barebones.lab.figures import demo
from barebones.lab.records import records
from barebones.lab.sweep.sweep import SweepResult

ACCURACIES = {"dense": 0.99, "random": 0.4, "snip": 0.1, "iter-snip": 0.95, "force": 0.94, "hybrid": 0.96}
RESULTS = dict(effective_sparsity=0.99, collapsed=False, prune_seconds=1.0, train_seconds=2.0, top1_std=0.1)


def rows(experiments: list[Experiment], **accuracies: float) -> list[records.Row]:
    """Records as a sweep would write them, with these accuracies."""
    known = ACCURACIES | {name.replace("_", "-"): value for name, value in accuracies.items()}
    done = {**RESULTS, "status": records.DONE}
    return [{**e.to_dict(), **done, "top1": known[e.method], "top1_mean": known[e.method]} for e in experiments]


def test_the_recipe_has_every_method_and_seed():
    experiments = demo.recipe(seeds=2, epochs=5)
    assert len({e.resolved().id for e in experiments}) == len(demo.COMPARED) * 2
    assert {(e.model, e.data, e.epochs, e.sparsity) for e in experiments} == {("small-vgg", "digits", 5, 0.99)}
    assert {(e.rounds, e.batches_per_round) for e in experiments if e.method in demo.PROGRESSIVE} == {(20, 4)}
    assert {(e.rounds, e.batches_per_round) for e in experiments if e.method not in demo.PROGRESSIVE} == {(None, None)}


def shown(monkeypatch, seeds: int, stopped: int = 0, out: Path | None = None, **failure: str) -> str:
    """Return what the demo prints if a sweep records made-up results, is stopped, or has a failed run."""
    folders = []

    def sweep(experiments, options, **others):
        folders.append(options.runs)
        assert options.runs.is_dir()
        results = [failure] if failure else rows(experiments)[: 1 if stopped else None]
        monkeypatch.setattr(records, "records", lambda runs: results)
        return SweepResult(done=len(results), failed=len(failure), stopped=stopped, skipped=0, tables=[])

    monkeypatch.setattr(demo, "sweep", sweep)
    console = Console(record=True, width=120, file=io.StringIO())
    demo.demo(console, seeds, out=out)
    assert not folders[0].exists()
    return console.export_text()


@pytest.mark.parametrize("seeds", [1, 3])
def test_it_prints_a_row_for_each_method_and_draws_a_picture(seeds, monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    text = shown(monkeypatch, seeds, out=tmp_path / "demo.png")
    assert f"The picture of it is {tmp_path / 'demo.png'}" in text
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert "1,294 handwritten digits for training, 359 for testing." in text
    for label in ("Dense", "Random", "SNIP", "Iter SNIP", "FORCE", "Hybrid"):
        assert text.count(f"│ {label} ") == 1
    assert ("mean ± standard deviation of 3 seeds" in text) == (seeds == 3)
    assert "This is what the paper says" in " ".join(text.split())


def test_without_matplotlib_it_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = " ".join(shown(monkeypatch, 1, out=tmp_path / "demo.png").split())
    assert "There is no picture: figures are drawn with matplotlib: pip install 'barebones[figures]'" in text


def test_a_demo_that_fails_says_why_and_one_that_is_stopped_shows_no_table(monkeypatch):
    with pytest.raises(ValueError, match="digits-small-vgg-force failed: no room"):
        shown(monkeypatch, 1, status="failed", folder="digits-small-vgg-force", reason="no room")
    assert "accuracy" not in shown(monkeypatch, 1, stopped=35)


@pytest.mark.nightly
def test_it_runs(monkeypatch):
    monkeypatch.setattr(demo, "PROGRESSIVE", ("force",))
    monkeypatch.setattr(demo, "COMPARED", ("dense", "random", "snip", "force"))
    monkeypatch.setattr(demo, "ROUNDS", 2)
    done = demo.demo(Console(file=io.StringIO()), seeds=1, epochs=1)
    assert [row["status"] for row in done] == [records.DONE] * 4


@pytest.mark.parametrize(
    ("accuracies", "agrees"),
    [({}, True), ({"snip": 0.45}, True), ({"snip": 0.6}, False), ({"force": 0.7}, False), ({"iter_snip": 0.1}, False)],
)
def test_what_it_says_follows_from_the_numbers(accuracies, agrees):
    sentence = demo.sentence(rows(demo.recipe(seeds=2), **accuracies))
    assert f"by SNIP, the network ends at {100 * accuracies.get('snip', 0.1):.0f} % (random pruning: 40 %" in sentence
    assert ("This is what the paper says" if agrees else "This is not what the paper says") in sentence


def test_without_scikit_learn_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'barebones\[demo\]'"):
        demo.demo(Console(file=io.StringIO()), seeds=1, epochs=1)
