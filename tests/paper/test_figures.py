"""The figures: what they run, the numbers behind them, and that the pictures repeat."""

import csv
import io
import json
import math
import random
import sys
import zlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from barebones.cli.app import app
from barebones.lab import plots as style
from barebones.lab import records, tidy
from barebones.lab.colours import COLOURS, MARKERS
from barebones.lab.experiment import DENSE, Experiment
from barebones.lab.run import RunOptions, Stopped
from barebones.lab.sweep import SweepResult
from barebones.models import build, parameter_table
from barebones.paper import numbers as paper
from barebones.paper.figures import FIGURES, SCALES, Work, accuracy, analyses, figure, sources
from barebones.paper.figures.sources import Analysis, Runs
from barebones.paper.theory import gaps_by_step, tanh_network
from barebones.pruning.methods import METHODS
from barebones.pruning.prune import prune
from barebones.pruning.saliency import saliency

RUNS = [name for name, one in FIGURES.items() if isinstance(one.source, Runs)]
ANALYSES = [name for name, one in FIGURES.items() if isinstance(one.source, Analysis)]
PAIR = [("digits", "small-vgg")]
TINY: dict[str, dict[str, Any]] = {
    "saliency-vs-rounds": {
        "pairs": PAIR, "seeds": [0], "methods": ["force", "iter-snip"], "batches": 2, "sparsities": [0.9],
        "rounds": [1, 3],
    },
    "saliency-scatter": {"pairs": PAIR, "seeds": [0], "batches": 2, "rounds": 2, "sparsities": [0.5, 0.9, 0.99]},
    "layers": {
        "pairs": PAIR, "seeds": [0], "sparsity": 0.99, "methods": ["snip", "force"], "given": {"force": {"rounds": 3}},
    },
    "evolution": {"pairs": PAIR, "seeds": [0], "sparsity": 0.98, "rounds": 5, "methods": ["iter-snip", "force"]},
    "consistency": {
        "pairs": PAIR, "seeds": [0, 1], "one_shot": ["grasp", "snip"], "densities": [0.5, 0.05],
        "iterated": ["grasp-taylor", "iter-snip"], "rounds": 8, "to": 0.01,
    },
    "theory": {"widths": [2, 2, 2], "keeps": [3], "networks": 10, "swaps": 1},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    with sources.threads(1):
        yield


def working(folder: Path, **options: Any) -> Work:
    return Work(RunOptions(folder / "runs"), Console(file=io.StringIO(), width=200), **options)


def made_up(experiment: Experiment) -> dict[str, Any]:
    """A record of a run that never was: accuracy falls with the sparsity, a little differently for each seed."""
    one = experiment.resolved()
    noise = random.Random(zlib.crc32(repr(one).encode())).gauss(0, 0.01)
    depth = -math.log10(1 - one.sparsity) if one.method != DENSE else 0.0
    result = {"status": "done", "top1": 0.1 + 0.83 / (1 + math.exp(2 * depth - 5)) + noise, "folder": one.folder}
    result |= {"prune_seconds": 0.1 * (one.rounds or 1), "train_seconds": 9.0, "collapsed": False}
    return dict.fromkeys(records.COLUMNS) | one.to_dict() | result


def cells(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def shrunk(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The analysis with settings that take a second."""
    if name in TINY:
        own = replace(FIGURES[name].source, settings={"smoke": TINY[name]})  # type: ignore[type-var]
        monkeypatch.setitem(FIGURES, name, replace(FIGURES[name], source=own))


def started(name: str = "small-vgg", seed: int = 0) -> Any:
    return analyses.at_start(name, "digits", seed, RunOptions())


def test_all_figures_of_the_paper_are_there() -> None:
    assert set(FIGURES) == {
        "cifar10", "cifar100", "tiny-imagenet", "mobilenet", "early-pruning", "iter-grasp", "saliency-vs-rounds",
        "accuracy-vs-rounds", "cost", "saliency-scatter", "layers", "evolution", "consistency", "parameters",
        "imagenet", "theory",
    }  # fmt: skip
    assert set(FIGURES) - set(TINY) - set(RUNS) == {"parameters"}
    for one in FIGURES.values():
        assert one.about.endswith(".")
        assert all(one.source.cost(scale) for scale in SCALES)


@pytest.mark.parametrize("name", RUNS)
def test_experiments_of_each_scale(name: str) -> None:
    source = FIGURES[name].source
    assert isinstance(source, Runs)
    smoke, short, full = ([one.resolved() for one in source.experiments(scale)] for scale in SCALES)
    assert {one.data for one in smoke} == {"digits"}
    assert {one.epochs for one in smoke} == {1}
    assert "digits" not in {one.data for one in short + full}
    assert {one.model for one in short} == {one.model for one in full}
    assert max(one.epochs or 0 for one in short) <= 40
    for one in full:
        assert one.epochs == {"tiny-imagenet": 300, "imagenet": 90}.get(one.data, 350)
    assert len(set(full)) == len(full) >= len(short) > 0
    assert len(smoke) <= 18


def test_the_paper_scale_is_the_papers_protocol() -> None:
    listed = accuracy.cifar10("paper")
    assert {one.sparsity for one in listed if one.method != DENSE} == {0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999}
    assert {one.seed for one in listed} == {0, 1, 2}
    assert {one.method for one in listed} == {
        "dense", "random", "snip", "snip-mb", "grasp", "grasp-mb", "iter-snip", "force",
    }  # fmt: skip
    force = next(one.resolved() for one in listed if one.method == "force")
    assert (force.rounds, force.batches) == (300, 1)
    assert {(one.method, one.pretrain) for one in accuracy.early_pruning("paper")} >= {("magnitude", 1), ("force", 0)}


@pytest.mark.parametrize("name", RUNS)
def test_drawn_from_records_and_again_from_the_table(name: str, tmp_path: Path) -> None:
    source = FIGURES[name].source
    assert isinstance(source, Runs)
    rows = source.rows([made_up(one) for one in source.experiments("paper")])
    tidy.write(rows, tmp_path / f"{name}.csv")
    first = figure(name, None, tmp_path / "a", working(tmp_path), source=tmp_path)
    assert [path.name for path in first] == [f"{name}.png", f"{name}.svg", f"{name}.csv"]
    assert first[0].read_bytes().startswith(b"\x89PNG")
    assert first[1].read_text(encoding="utf-8").rstrip().endswith("</svg>")
    assert first[2].read_bytes() == (tmp_path / f"{name}.csv").read_bytes()
    assert not (tmp_path / "runs").exists()
    theirs = [row for row in rows if row["source"] == "paper"]
    assert bool(theirs) == (name not in ("cifar100", "tiny-imagenet", "mobilenet"))
    assert all(row["where"] and 0 < row["mean"] < 1 for row in theirs)


@pytest.mark.parametrize("name", ["cifar10", "cost", "imagenet"])
def test_smoke_has_no_numbers_of_the_paper(name: str, tmp_path: Path) -> None:
    source = FIGURES[name].source
    assert isinstance(source, Runs)
    rows = source.rows([made_up(one) for one in source.experiments("smoke")])
    assert {row["source"] for row in rows} == {"ours"}
    with style.styled():
        style.save(FIGURES[name].draw(rows), tmp_path / name)


def test_mean_and_deviation_of_a_point() -> None:
    listed = [replace(accuracy.cifar10("paper")[0], method="force", sparsity=0.99, seed=seed) for seed in range(3)]
    found = [made_up(one) | {"top1": top} for one, top in zip(listed, (0.5, 0.6, 0.7), strict=True)]
    rows = [row for row in accuracy.rows(found) if row["source"] == "ours"]
    assert [row["top1"] for row in rows] == [0.5, 0.6, 0.7]
    for row in rows:
        assert (row["seeds"], round(row["mean"], 6), round(row["std"], 6)) == (3, 0.6, 0.1)


def test_a_seed_counts_once_and_a_single_one_has_no_deviation() -> None:
    base = replace(accuracy.cifar10("paper")[0], method="force", sparsity=0.99)
    one, two = made_up(base) | {"top1": 0.5}, made_up(replace(base, seed=1)) | {"top1": 0.7}
    other = made_up(replace(base, precision="bf16")) | {"top1": 0.1}
    for found, seeds, std in (([one, other], 1, None), ([one, other, two], 2, 0.141421)):
        rows = [row for row in accuracy.rows(found) if row["source"] == "ours"]
        assert [row["top1"] for row in rows] == [0.5, 0.7][:seeds]
        assert {row["seeds"] for row in rows} == {seeds}
        assert {row["std"] and round(row["std"], 6) for row in rows} == {std}
    missing = accuracy.rows([one | {"top1": None}, other])
    assert [(row["top1"], row["mean"]) for row in missing if row["source"] == "ours"] == [(0.1, 0.1)]


def test_a_sweep_is_run_once_and_drawn_from_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(accuracy.GRID, "smoke", ((0.9,), range(2)))
    monkeypatch.setattr(accuracy, "SMOKE_METHODS", ("snip", "force"))
    work = working(tmp_path, jobs=1)
    first = figure("mobilenet", "smoke", tmp_path / "a", work)
    rows = cells(first[2])
    assert [(row["method"], row["seed"]) for row in rows] == [
        (method, str(seed)) for method in ("dense", "force", "snip") for seed in range(2)
    ]
    results = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*/result.json")]
    accuracies = {
        (r["experiment"]["method"], str(r["experiment"]["seed"])): r["test"]["top1"] for r in results
    }  # fmt: skip
    assert {(row["method"], row["seed"]): float(row["top1"]) for row in rows} == accuracies
    force = [accuracies["force", "0"], accuracies["force", "1"]]
    told = next(row for row in rows if row["method"] == "force")
    assert float(told["mean"]) == pytest.approx(sum(force) / 2)
    assert float(told["std"]) == pytest.approx(abs(force[0] - force[1]) / math.sqrt(2))

    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/result.json")}
    again = figure("mobilenet", "smoke", tmp_path / "b", work)
    drawn = figure("mobilenet", None, tmp_path / "c", work, source=tmp_path / "runs")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/result.json")} == times
    for one, two, three in zip(first, again, drawn, strict=True):
        assert one.read_bytes() == two.read_bytes() == three.read_bytes()
    assert not work.failed
    with pytest.raises(ValueError, match="no finished run of the figure mobilenet at scale paper"):
        figure("mobilenet", "paper", tmp_path / "d", work, source=tmp_path / "runs")


def test_runs_at_other_sparsities_and_on_another_device_are_drawn_too() -> None:
    source = FIGURES["cifar10"].source
    assert isinstance(source, Runs)
    one = Experiment("vgg19", "cifar10", "force", 0.97, seed=7, epochs=40).resolved("cuda")
    other = Experiment("vgg19", "cifar10", "force", 0.97, rounds=20, epochs=40).resolved()
    kinds = {sources._kind(e.resolved().to_dict(), source.free) for e in source.experiments("short")}
    assert sources._kind(one.to_dict(), source.free) in kinds
    assert sources._kind(other.to_dict(), source.free) not in kinds


def test_failed_runs_leave_a_gap_and_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [one.resolved() for one in accuracy.mobilenet("smoke")]
    done = [made_up(one) for one in listed[:3]] + [made_up(listed[3]) | {"status": "failed", "top1": None}]
    monkeypatch.setattr(sources, "sweep", lambda *args, **options: SweepResult(3, 1, 0, 0, []))
    monkeypatch.setattr(records, "records", lambda runs: done)
    work = working(tmp_path)
    written = figure("mobilenet", "smoke", tmp_path, work)
    assert len(cells(written[2])) == 3
    assert work.failed == ["mobilenet"]


def test_failed_runs_in_a_folder_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = accuracy.mobilenet("smoke")
    failed = made_up(listed[3]) | {"status": "failed", "top1": None}
    stranger = made_up(replace(listed[3], epochs=7)) | {"status": "failed", "top1": None}
    again = made_up(replace(listed[3], precision="bf16"))
    for others, told in (([failed], ["mobilenet"]), ([stranger], []), ([failed, again], [])):
        found = [made_up(one) for one in listed[:3]] + others
        monkeypatch.setattr(records, "records", lambda runs, found=found: found)
        work = working(tmp_path)
        written = figure("mobilenet", "smoke", tmp_path / "out", work, source=tmp_path)
        assert len(cells(written[2])) == 3 + (again in others)
        assert work.failed == told


def test_a_table_of_another_scale_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, work = FIGURES["mobilenet"].source, working(tmp_path)
    assert isinstance(source, Runs)
    found = [made_up(one) for one in source.experiments("short")]
    monkeypatch.setattr(records, "records", lambda runs: found)
    written = figure("mobilenet", "short", tmp_path, work, source=tmp_path)
    assert {row["scale"] for row in cells(written[2])} == {"short"}
    found = []
    again = figure("mobilenet", "short", tmp_path / "a", work, source=tmp_path)
    assert again[2].read_bytes() == written[2].read_bytes()
    with pytest.raises(ValueError, match=r"at scale paper \(mobilenet\.csv there is of short"):
        figure("mobilenet", "paper", tmp_path / "b", work, source=tmp_path)
    found = [made_up(one) for one in source.experiments("paper")]
    assert {row["scale"] for row in cells(figure("mobilenet", "paper", tmp_path / "b", work, source=tmp_path)[2])} == {
        "paper"
    }
    tidy.write([{k: v for k, v in row.items() if k != "scale"} for row in tidy.read(written[2])], written[2])
    found = []
    with pytest.raises(ValueError, match="no scale it tells"):
        figure("mobilenet", "short", tmp_path / "c", work, source=tmp_path)


@pytest.mark.parametrize("name", FIGURES)
def test_foreign_and_torn_tables_are_told_in_a_sentence(name: str, tmp_path: Path) -> None:
    work, path = working(tmp_path), tmp_path / f"{name}.csv"
    columns = FIGURES[name].source.columns
    head = ",".join(columns)
    for text, told in (
        ("a,b\n1,2\n", "it has no column"),
        (f"{head}\n1,2\n", "row 1 has 2 fields"),
        (f"{head}\n" + "," * (len(columns) - 1), "its last line has no end"),
        (f"{head}\n" + ",".join(["ours"] * len(columns)) + "\n", "'ours' is no number for"),
        (f"{head}\n" + ",".join(["3"] * len(columns)) + "\n", "'3' is no word for"),
        (f"{head}\n" + "," * (len(columns) - 1) + "\n", "holds values that .* cannot be drawn from"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=told) as caught:
            figure(name, None, tmp_path / "out", work, source=tmp_path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_stopped_sweep_draws_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "sweep", lambda *args, **options: SweepResult(3, 0, 2, 0, []))
    with pytest.raises(Stopped):
        figure("mobilenet", "smoke", tmp_path / "out", working(tmp_path))
    with pytest.raises(Stopped):
        figure("theory", "smoke", tmp_path / "out", working(tmp_path, stopping=lambda: True))
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob("runs/*.csv"))


@pytest.mark.parametrize("name", ANALYSES)
def test_analyses_are_computed_once_and_repeat(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrunk(monkeypatch, name)
    first = figure(name, "smoke", tmp_path / "a", working(tmp_path))
    source = FIGURES[name].source
    assert isinstance(source, Analysis)

    def refuse(*args: Any) -> Any:
        raise AssertionError("computed again")

    monkeypatch.setitem(FIGURES, name, replace(FIGURES[name], source=replace(source, compute=refuse)))
    again = figure(name, "smoke", tmp_path / "b", working(tmp_path))
    table = figure(name, None, tmp_path / "c", working(tmp_path / "nowhere"), source=tmp_path / "a")
    for one, two, three in zip(first, again, table, strict=True):
        assert one.read_bytes() == two.read_bytes() == three.read_bytes()
    assert b"<dc:date>" not in first[1].read_bytes()


def test_other_settings_have_another_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = FIGURES["theory"].source
    assert isinstance(source, Analysis)
    before = source.cache("theory", "smoke", tmp_path)
    shrunk(monkeypatch, "theory")
    assert FIGURES["theory"].source.cache("theory", "smoke", tmp_path) != before  # type: ignore[union-attr]


def test_saliency_against_rounds_is_that_of_the_masks() -> None:
    settings = TINY["saliency-vs-rounds"]
    rows = analyses.relative(list(analyses.saliency_against_rounds(settings, RunOptions())))
    network = started()
    batches = analyses.held_batches(network, 2)
    scoring = network.data.train.scoring(64, 0)
    found = {
        (method, rounds): prune(network.model, scoring, 0.9, method, rounds=rounds, on_collapse="ignore").masks
        for method, rounds in (("snip", 1), ("force", 3), ("iter-snip", 3))
    }
    direct = {key: saliency(network.model, masks, batches) for key, masks in found.items()}
    assert [(row["method"], row["rounds"]) for row in rows] == [
        ("force", 1), ("force", 3), ("iter-snip", 1), ("iter-snip", 3),
    ]  # fmt: skip
    for row in rows:
        method = "snip" if row["rounds"] == 1 else row["method"]
        assert row["saliency"] == direct[method, row["rounds"]]
        assert row["relative"] == row["saliency"] / direct["snip", 1]


def test_relative_saliency_of_nothing_is_empty() -> None:
    row = {"data": "d", "model": "m", "method": "force", "sparsity": 0.9, "seed": 0}
    found = analyses.relative([row | {"rounds": 1, "saliency": 0.0}, row | {"rounds": 2, "saliency": 1.0}])
    assert [one["relative"] for one in found] == [None, None]


def test_both_saliencies() -> None:
    rows = list(analyses.saliency_both_ways(TINY["saliency-scatter"], RunOptions()))
    assert all(row["pruned"] <= row["sparsified"] for row in rows)
    network = started()
    masks = prune(network.model, network.data.train.scoring(64, 0), 0.5, "force", rounds=2).masks
    batches = analyses.held_batches(network, 2)
    assert rows[0]["pruned"] == saliency(network.model, masks, batches)
    assert rows[0]["sparsified"] == saliency(network.model, masks, batches, over="all")


def test_layers_are_those_of_the_masks() -> None:
    rows = list(analyses.layers(TINY["layers"], RunOptions()))
    network = started()
    masks = prune(network.model, network.data.train.scoring(64, 0), 0.99, "snip", on_collapse="ignore").masks
    own = [row for row in rows if row["method"] == "snip"]
    assert [(row["name"] + ".weight", row["kept"], row["total"]) for row in own] == [
        (name, int(mask.sum()), mask.numel()) for name, mask in masks.items()
    ]
    assert [row["layer"] for row in own] == list(range(1, len(masks) + 1))
    assert all(row["density"] == row["kept"] / row["total"] for row in rows)


def test_emptied_layers_are_marked() -> None:
    row = {"data": "digits", "model": "small-vgg", "method": "snip", "sparsity": 0.999, "seed": 0, "total": 100}
    rows = [row | {"layer": n, "name": f"l{n}", "kept": kept, "density": kept / 100} for n, kept in ((1, 9), (2, 0))]
    with style.styled():
        drawn = FIGURES["layers"].draw(rows)
    crosses = [line for axes in drawn.axes for line in axes.lines if line.get_marker() == "x"]
    assert [list(line.get_xdata()) for line in crosses] == [[2]]


def test_only_the_lower_error_bar_is_cut() -> None:
    row = {"data": "digits", "model": "small-vgg", "method": "snip", "kind": "one-shot", "layer": 1, "cut": False}
    shares = (0.0, 0.0, 0.9)
    rows = [row | {"seed": s, "kept": 9, "density": d, "density_all": 0.5} for s, d in enumerate(shares)]
    rows += [one | {"density": 0.9, "density_all": 0.9} for one in rows]
    for one in rows[:2]:
        one["kept"] = 0
    with style.styled():
        drawn = FIGURES["consistency"].draw(rows)
    [bars] = [bars for axes in drawn.axes for bars in axes.containers]
    mean, std = tidy.spread(shares)
    ends = bars[2][0].get_segments()[1][:, 1]
    assert list(ends) == pytest.approx([0.05 * mean, mean + std])


def test_evolution_adds_up() -> None:
    rows = list(analyses.evolution(TINY["evolution"], RunOptions()))
    total = sum(p.numel() for name, p in started().model.named_parameters() if name.endswith("weight") and p.dim() > 1)
    for method in ("iter-snip", "force"):
        own = [row for row in rows if row["method"] == method]
        assert [row["round"] for row in own] == [1, 2, 3, 4, 5]
        assert total - sum(row["pruned"] - row["recovered"] for row in own) == own[-1]["keep"] == round(0.02 * total)
        assert all(row["pruned_share"] == row["pruned"] / total for row in own)
        assert any(row["recovered"] for row in own) == (method == "force")


def test_consistency_of_one_shot_and_iterated_masks() -> None:
    rows = list(analyses.consistency(TINY["consistency"], RunOptions()))
    shots = [row for row in rows if row["kind"] == "one-shot"]
    assert {(row["method"], row["sparsity"], row["seed"]) for row in shots} == {
        (method, sparsity, seed) for method in ("grasp", "snip") for sparsity in (0.5, 0.95) for seed in (0, 1)
    }
    for own in tidy.grouped(rows, "kind", "method", "sparsity", "seed", "round").values():
        share = sum(row["kept"] for row in own) / sum(row["total"] for row in own)
        assert share == pytest.approx(own[0]["density_all"])
    fates = tidy.grouped([row for row in rows if row["kind"] == "iterated"], "method")
    for some in fates.values():
        for layer in tidy.grouped(some, "layer").values():
            assert all(after["kept"] <= before["kept"] for before, after in pairwise(layer))
    emptied = {
        method: sum(row["kept"] == 0 for row in some if row["round"] == 8) for method, some in fates.items()
    }  # fmt: skip
    assert emptied["grasp-taylor"] > emptied["iter-snip"] == 0  # the paper's point: it cannot be iterated
    cut = {method: some[-1]["cut"] for method, some in fates.items()}
    assert cut == {"grasp-taylor": True, "iter-snip": False}


def test_parameters_are_those_of_the_networks() -> None:
    rows = list(analyses.parameters({"pairs": [("cifar10", "vgg19")]}, RunOptions()))
    own = parameter_table(build("vgg19", 10, 32))
    assert rows == [{"source": "ours", "data": "cifar10", "model": "vgg19", **own._asdict()}]
    source = FIGURES["parameters"].source
    assert isinstance(source, Analysis)
    assert len(source.settings["paper"]["pairs"]) == 8
    theirs = source.finish([])
    assert theirs[0]["total"] == 23_520_000
    assert theirs[0]["prunable"] == 99.78
    both = source.finish(
        list(analyses.parameters({"pairs": [(one.data, one.model) for one in paper.PARAMETERS]}, RunOptions()))
    )
    with style.styled():
        assert FIGURES["parameters"].draw(both).get_size_inches()[0] <= style.PAGE + 1e-6


def test_theory_is_that_of_the_library() -> None:
    rows = list(analyses.gaps(TINY["theory"], RunOptions()))
    direct = gaps_by_step([tanh_network([2, 2, 2], seed=seed) for seed in range(10)], 3)
    assert [(row["step"], row["gap"], row["gap_anywhere"]) for row in rows] == [
        (one.step, one.gap, one.gap_anywhere) for one in direct
    ]
    assert {row["keep"] for row in rows} == {3}
    with style.styled():
        drawn = FIGURES["theory"].draw(rows)
    assert not {line.get_color() for line in drawn.axes[0].lines} & set(COLOURS.values())


def test_analyses_leave_the_threads_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrunk(monkeypatch, "theory")
    with sources.threads(2):
        figure("theory", "smoke", tmp_path, working(tmp_path))
        assert torch.get_num_threads() == 2


@pytest.mark.slow
def test_every_figure_at_smoke_scale(tmp_path: Path) -> None:
    place = ["--runs", str(tmp_path / "runs"), "--device", "cpu", "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["figure", "all", "--scale", "smoke", *place])
    assert done.exit_code == 0, done.output
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {f"{name}.{kind}" for name in FIGURES for kind in ("csv", "png", "svg")}


def test_numbers_of_the_paper() -> None:
    of = {(one.data, one.model, one.method, one.sparsity, one.rounds): one for one in paper.ACCURACIES}
    assert len(of) == len(paper.ACCURACIES)
    assert of["imagenet", "resnet50", "force", 0.95, None][4:6] == (0.59, 0.823)
    assert of["imagenet", "vgg19", "grasp-mb", 0.95, None][4:6] == (0.676, 0.878)
    assert of["imagenet", "vgg19", "dense", 0.0, None].top1 == 0.731
    assert of["cifar10", "resnet50", "force", 0.995, 300][4:7] == (0.9, None, 11.6 * 60)
    assert of["cifar10", "resnet50", "force", 0.999, None].says == paper.ABOVE
    assert all(one.where and one.method in style.NAMES for one in paper.ACCURACIES)
    assert sum(one.data == "imagenet" for one in paper.ACCURACIES) == 22
    assert sum(one.seconds is not None for one in paper.ACCURACIES) == 8


def test_every_method_has_a_name_a_colour_and_a_mark() -> None:
    for method in (*METHODS, DENSE):
        assert method in style.NAMES
        assert style.colour(method) == COLOURS[method]
        assert style.mark(method) == MARKERS[method]
    assert len({style.colour(method) for method in METHODS}) == len(METHODS)


def test_the_users_own_settings_change_nothing(tmp_path: Path) -> None:
    source = FIGURES["accuracy-vs-rounds"].source
    assert isinstance(source, Runs)
    rows = source.rows([made_up(one) for one in source.experiments("short")])
    files = []
    for number, size in enumerate((10.0, 30.0)):
        with matplotlib.rc_context({"font.size": size, "svg.hashsalt": str(number)}):
            with style.styled():
                files.append(style.save(FIGURES["accuracy-vs-rounds"].draw(rows), tmp_path / str(number)))
            assert matplotlib.rcParams["font.size"] == size
    for one, two in zip(*files, strict=True):
        assert one.read_bytes() == two.read_bytes()


def test_unknown_names_and_folders(tmp_path: Path) -> None:
    work = working(tmp_path)
    with pytest.raises(ValueError, match="no figure 'cifar-10'; did you mean 'cifar10'"):
        figure("cifar-10", "smoke", tmp_path, work)
    with pytest.raises(ValueError, match="scale 'tiny' is unknown; choose one of smoke, short, paper"):
        figure("layers", "tiny", tmp_path, work)
    with pytest.raises(ValueError, match="there is no folder"):
        figure("layers", None, tmp_path, work, source=tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"holds neither layers\.csv"):
        figure("layers", None, tmp_path, work, source=tmp_path)
    (tmp_path / "layers.csv").write_text("")
    with pytest.raises(ValueError, match="holds no rows"):
        figure("layers", None, tmp_path, work, source=tmp_path)


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'barebones\[figures\]'"):
        figure("theory", "smoke", tmp_path, working(tmp_path))
    assert not list(tmp_path.iterdir())  # said before anything is computed


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    runner = CliRunner()
    told = runner.invoke(app, ["figure", "--list"])
    assert told.exit_code == 0
    for name in FIGURES:
        assert f"{name} " in told.output
    place = ["--runs", str(tmp_path / "runs"), "--device", "cpu", "-o", str(tmp_path / "out")]
    drawn = runner.invoke(app, ["figure", "parameters", *place])
    assert drawn.exit_code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "parameters.csv", "parameters.png", "parameters.svg",
    ]  # fmt: skip
    every = runner.invoke(app, ["figure", "all", "--from", str(tmp_path / "out"), *place])
    assert every.exit_code == 1
    assert "layers: " in every.output
    assert isinstance(runner.invoke(app, ["figure"]).exception, ValueError)
    assert isinstance(runner.invoke(app, ["figure", "consistancy"]).exception, ValueError)
