"""The figures without training: their numbers are those of the library, computed once, and the pictures repeat."""

from collections.abc import Mapping
from itertools import pairwise, product
from math import log, nan
from typing import Any

import pytest
import torch
from figure_rows import context, drawn

from barebones.lab.figures import sources
from barebones.lab.records import tables
from barebones.lab.records.tables import spread
from barebones.lab.run.run import Stopped
from barebones.models import build, parameter_table
from barebones.paper.figures import FIGURES
from barebones.paper.figures import saliency as saliencies
from barebones.pruning.prune import prune
from barebones.pruning.saliency import saliency


def counting(seeds: list[int], asked: list[Any]) -> sources.Analysis:
    """Return an analysis of made-up numbers that notes the networks it was asked for."""

    def analyse(settings: Mapping[str, Any], options: Any) -> Any:
        for (data, model), seed in product(settings["pairs"], settings["seeds"]):
            asked.append((model, seed))
            yield from ({"data": data, "model": model, "seed": seed, "value": 10 * seed + i} for i in range(3))

    settings = {"pairs": [("digits", "a"), ("digits", "b")], "seeds": seeds}
    return sources.Analysis(analyse, {"short": settings}, ("value", "sum"), lambda rows: [
        row | {"sum": sum(each["value"] for each in rows)} for row in rows
    ])  # fmt: skip


def test_a_stopped_analysis_resumes_with_the_networks_that_are_missing(tmp_path):
    asked: list[Any] = []
    whole = counting([0, 1], asked).compute("made-up", "short", context(tmp_path / "whole"))
    assert [(row["model"], row["seed"], row["value"], row["sum"]) for row in whole[:4]] == [
        ("a", 0, 0, 3), ("a", 0, 1, 3), ("a", 0, 2, 3), ("a", 1, 10, 33),
    ]  # fmt: skip
    assert asked == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    asked.clear()
    stopping = context(tmp_path, stopping=lambda: asked[-1] == ("b", 0))
    with pytest.raises(Stopped):
        counting([0, 1], asked).compute("made-up", "short", stopping)
    assert counting([0, 1], asked).load("made-up", "short", tmp_path / "runs") == (whole[:6], False)
    asked.clear()
    assert counting([0, 1], asked).compute("made-up", "short", context(tmp_path)) == whole
    assert asked == [("b", 0), ("b", 1)]
    assert counting([0, 1], asked).load("made-up", "short", tmp_path / "runs") == (whole, True)


def test_other_settings_are_computed_anew(tmp_path):
    asked: list[Any] = []
    counting([0], asked).compute("made-up", "short", context(tmp_path))
    counting([0, 1], asked).compute("made-up", "short", context(tmp_path))
    assert asked == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    with pytest.raises(ValueError, match=r"holds neither made-up\.csv nor files such as made-up-short-"):
        counting([2], asked).load("made-up", "short", tmp_path / "runs")


def test_analyses_use_deterministic_algorithms(tmp_path, monkeypatch):
    cudnn = torch.backends.cudnn
    monkeypatch.setattr(cudnn, "benchmark", True)  # as training on a GPU sets it
    analysis = sources.Analysis(
        lambda settings, options: iter([{"value": int(cudnn.deterministic and not cudnn.benchmark)}]),
        {"short": {}}, ("value",),
    )  # fmt: skip
    with sources.threads(2):
        assert analysis.compute("made-up", "short", context(tmp_path)) == [{"value": 1}]
        assert torch.get_num_threads() == 2
    assert (cudnn.benchmark, cudnn.deterministic) == (True, False)


def test_saliency_against_rounds_is_that_of_the_masks(rows_of, network):
    rows, start = rows_of("saliency-vs-rounds"), network
    batches = saliencies.evaluation_batches(start, 2)
    scoring = start.data.train.scoring(64, 0)
    direct = {
        (method, rounds): saliency(
            start.model, prune(start.model, scoring, 0.9, method, rounds=rounds, on_collapse="ignore").masks, batches
        )
        for method, rounds in (("snip", 1), ("force", 3), ("iter-snip", 3))
    }
    assert [(row["method"], row["rounds"]) for row in rows] == [
        ("force", 1), ("force", 3), ("iter-snip", 1), ("iter-snip", 3),
    ]  # fmt: skip
    for row in rows:
        method = "snip" if row["rounds"] == 1 else row["method"]
        assert row["saliency"] == direct[method, row["rounds"]]
        assert row["relative"] == row["saliency"] / direct["snip", 1]


def test_relative_saliency_of_nothing_is_empty():
    row = {"data": "d", "model": "m", "method": "force", "sparsity": 0.9, "seed": 0}
    rows = saliencies.relative([row | {"rounds": 1, "saliency": 0.0}, row | {"rounds": 2, "saliency": 1.0}])
    assert [each["relative"] for each in rows] == [None, None]


def test_masks_without_saliency_are_crosses_below_all_lines():
    row = {"data": "digits", "model": "small-vgg", "method": "force"}
    values = {(0.9, 1): [4.0, 4.0], (0.9, 2): [0.5, 0.7], (0.98, 1): [0.0, 0.0], (0.98, 2): [0.1, 0.0], (0.99, 2): [0]}
    rows = [
        row | {"sparsity": sparsity, "rounds": rounds, "seed": seed, "saliency": value}
        for (sparsity, rounds), seeds in values.items()
        for seed, value in enumerate(seeds)
    ]
    picture = drawn("saliency-vs-rounds", rows)
    [axes] = picture.axes
    lines, crosses = ([each for each in axes.lines if each.get_marker() == marker] for marker in "ox")
    assert [list(line.get_ydata()) for line in lines] == [
        [4.0, 0.6], [pytest.approx(nan, nan_ok=True), 0.1], [pytest.approx(nan, nan_ok=True)],
    ]  # fmt: skip
    assert [list(each.get_xdata()) for each in crosses] == [[1, 2], [2]]  # with two rounds, one of two seeds is cut
    assert [each.get_color() for each in crosses] == [line.get_color() for line in lines[1:]]
    heights = [each.get_ydata()[0] for each in crosses]
    low, high = map(log, axes.get_ylim())
    assert 0 < heights[0] < heights[1] < (log(0.1) - low) / (high - low)
    [legend] = picture.legends
    assert [text.get_text() for text in legend.texts][-1] == "disconnected with at least one seed: S = 0"


def test_both_saliencies(rows_of, network):
    rows, start = rows_of("saliency-scatter"), network
    assert all(row["pruned"] <= row["sparsified"] for row in rows)
    masks = prune(start.model, start.data.train.scoring(64, 0), 0.5, "force", rounds=2).masks
    batches = saliencies.evaluation_batches(start, 2)
    assert rows[0]["pruned"] == saliency(start.model, masks, batches)
    assert rows[0]["sparsified"] == saliency(start.model, masks, batches, over="all")


def test_saliencies_are_also_correlated_within_a_sparsity():
    row = {"data": "digits", "model": "small-vgg", "method": "force"}
    pairs = {0.5: [(1.0, 16.0), (2.0, 8.0)], 0.9: [(16.0, 256.0), (32.0, 128.0)]}  # with the sparsity up, within down
    rows = [
        row | {"sparsity": sparsity, "seed": seed, "pruned": x, "sparsified": y}
        for sparsity, masks in pairs.items()
        for seed, (x, y) in enumerate(masks)
    ]
    [*_, note] = drawn("saliency-scatter", rows).axes[0].texts
    assert note.get_text() == "4 masks of FORCE\nr = 0.882 (of logs)\nr = -1.000 (within a sparsity)"
    [*_, note] = drawn("saliency-scatter", [row for row in rows if row["seed"] == 0]).axes[0].texts
    assert note.get_text() == "2 masks of FORCE"


def test_layers_are_those_of_the_masks(rows_of, network):
    rows, start = rows_of("layers"), network
    masks = prune(start.model, start.data.train.scoring(64, 0), 0.99, "snip", on_collapse="ignore").masks
    snip = [row for row in rows if row["method"] == "snip"]
    assert [(row["name"] + ".weight", row["kept"], row["total"]) for row in snip] == [
        (name, int(mask.sum()), mask.numel()) for name, mask in masks.items()
    ]
    assert [row["layer"] for row in snip] == list(range(1, len(masks) + 1))
    assert all(row["density"] == row["kept"] / row["total"] for row in rows)


def test_empty_layers_are_marked():
    row = {"data": "digits", "model": "small-vgg", "method": "snip", "sparsity": 0.999, "seed": 0, "total": 100}
    rows = [row | {"layer": n, "name": f"l{n}", "kept": kept, "density": kept / 100} for n, kept in ((1, 9), (2, 0))]
    crosses = [line for axes in drawn("layers", rows).axes for line in axes.lines if line.get_marker() == "x"]
    assert [list(line.get_xdata()) for line in crosses] == [[2]]


def test_only_the_lower_error_bar_is_cut():
    row = {"data": "digits", "model": "small-vgg", "method": "snip", "kind": "one-shot", "layer": 1}
    row |= {"disconnected": False}
    shares = (0.0, 0.0, 0.9)
    rows = [row | {"seed": s, "kept": 9 * (d > 0), "density": d, "density_all": 0.5} for s, d in enumerate(shares)]
    rows += [each | {"density": 0.9, "density_all": 0.9, "kept": 9} for each in rows]
    [bars] = [bars for axes in drawn("consistency", rows).axes for bars in axes.containers]
    mean, deviation, _ = spread(shares)
    ends = bars[2][0].get_segments()[1][:, 1]
    assert list(ends) == pytest.approx([0.05 * mean, mean + deviation])


def test_evolution_adds_up(rows_of, network):
    rows = rows_of("evolution")
    weights = network.model.named_parameters()
    total = sum(p.numel() for name, p in weights if name.endswith("weight") and p.dim() > 1)
    for method, rounds in tables.grouped(rows, "method").items():
        assert [row["round"] for row in rounds] == [1, 2, 3, 4, 5]
        changed = sum(row["pruned"] - row["recovered"] for row in rounds)
        assert total - changed == rounds[-1]["keep"] == round(0.02 * total)
        assert all(row["pruned_share"] == row["pruned"] / total for row in rounds)
        assert any(row["recovered"] for row in rounds) == (method == "force")


@pytest.mark.nightly
def test_consistency_of_one_shot_and_iterated_masks(rows_of):
    rows = rows_of("consistency")
    kinds = tables.grouped(rows, "kind")
    assert {(row["method"], row["sparsity"], row["seed"]) for row in kinds["one-shot"]} == {
        (method, sparsity, seed) for method in ("grasp", "snip") for sparsity in (0.5, 0.95) for seed in (0, 1)
    }
    for layers in tables.grouped(rows, "kind", "method", "sparsity", "seed", "round").values():
        share = sum(row["kept"] for row in layers) / sum(row["total"] for row in layers)
        assert share == pytest.approx(layers[0]["density_all"])
    for layer in tables.grouped(kinds["iterated"], "method", "layer").values():
        assert all(after["kept"] <= before["kept"] for before, after in pairwise(layer))


def test_consistency_says_how_many_seeds_are_cut(rows_of):
    rows = tables.grouped(rows_of("consistency"), "kind", "method")["one-shot", "snip"]
    rows = [row | {"density": 0.1} for row in rows if row["sparsity"] == 0.95]

    def text(cut: set[int], empty: dict[int, int]) -> str:
        """The text in the panel, if these seeds are cut and lose this many layers."""
        changed = [
            row | {"kept": int(row["layer"] > empty.get(row["seed"], 0)), "disconnected": row["seed"] in cut}
            for row in rows
        ]
        [axes] = [axes for axes in FIGURES["consistency"].draw(changed).axes if axes.get_title()]
        return axes.texts[0].get_text()

    layers = len(tables.grouped(rows, "layer"))
    assert text(set(), {}) == ""
    assert text({0, 1}, {}) == "no signal passes"
    assert text({1}, {1: 2}) == f"0 to 2 of {layers} layers empty:\nno signal passes (1 of 2 seeds)"
    assert text({0, 1}, {0: 3, 1: 3}) == f"3 of {layers} layers empty:\nno signal passes"


def test_parameters_are_those_of_the_networks(rows_of):
    rows = rows_of("parameters")
    ours, theirs = tables.grouped(rows, "source").values()
    assert len(ours) == len(theirs) == 8
    shares = parameter_table(build("vgg19", 10, 32))._asdict()
    assert shares.items() <= ours[1].items()
    assert (ours[1]["data"], ours[1]["model"]) == ("cifar10", "vgg19")
    assert (theirs[0]["total"], theirs[0]["prunable"]) == (23_520_000, 99.78)
    assert drawn("parameters", rows).count("CIFAR-10, VGG-19") == 2


@pytest.mark.parametrize("name", ["saliency-scatter", "saliency-vs-rounds", "evolution", "layers", "consistency"])
def test_each_network_has_panels_of_its_own(name, rows_of):
    def shown(rows: tables.Rows) -> list[str]:
        """The title and the lines of each panel."""
        panels = [axes for axes in FIGURES[name].draw(rows).axes if axes.axison and axes.get_title()]
        return [str([axes.get_title(), *(line.get_xydata().tolist() for line in axes.lines)]) for axes in panels]

    rows = [
        row | {"kept": row["kept"] or 1, "density": row["density"] or 0.5} if "kept" in row else row
        for row in rows_of(name)
    ]
    other = [row | {"model": "my net"} for row in rows]
    alone = shown(rows)
    assert shown([*rows, *other]) == [*alone, *(panel.replace("small VGG", "my net") for panel in alone)]
    fewer = [row for row in other if row["method"] != rows[0]["method"]]
    assert shown([*rows, *fewer])[: len(alone)] == alone
