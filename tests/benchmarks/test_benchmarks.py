"""The benchmarks of the library itself: each prints its tables."""

import re
import sys
from itertools import product
from pathlib import Path
from warnings import catch_warnings

import pytest
import torch
import zoo

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import core
import lab
import settling
import sharded
import speed
import steps

import barebones as bb
from barebones.lab.experiment.experiment import Experiment
from barebones.lab.records import tables
from barebones.lab.run import loading
from barebones.models import SmallVGG


def test_the_core_benchmark_prints_its_three_tables(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "120")
    core.print_peak("small-vgg", "force", 2, "cpu")
    assert int(capsys.readouterr().out) > 10_000_000
    monkeypatch.setattr(core, "_peak", lambda model, what, batch, device: 10_000_000 + len(what) * 1_000_000)
    for name, value in {"REPEATS": 1, "BATCH": 2, "SCORES": 10_000}.items():
        monkeypatch.setattr(core, name, value)
    core.main(model="small-vgg", rounds=2)
    text = capsys.readouterr().out
    assert re.search(r"force, 2 rounds .*\d\.\d{3}.*≤ 1\.05", text)
    assert re.search(r"grasp, 1 batch .*≤ 1\.10", text)
    assert re.search(r"snip-mb .*x the weights .*≤ 2\.5", text)
    assert re.search(r"k = 0\.5% .*x .*≥ 2\.5 x", text)


def test_the_lab_benchmark_prints_its_tables(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)  # and put it back
    for name, value in {"REPEATS": 1, "BATCH": 4, "SPARSITY": 0.9}.items():  # weights are left to be others in bf16
        monkeypatch.setattr(lab, name, value)
    monkeypatch.setattr(lab, "build", lambda name, classes, size: SmallVGG(classes, width=2, channels=3))
    lab.main(["small-vgg"], "cpu", images=8, rounds=2, seeds=1)
    text = capsys.readouterr().out
    assert re.search(r"holding costs .*%", text)
    assert re.search(r"epoch with validation .* s", text)
    assert re.search(r"FORCE / bare +│ \d", text)
    assert re.search(r"bf16 +│ 0\.\d{4}", text)
    lab.main(["small-vgg"], "cpu", images=8, grasp=2)
    text = capsys.readouterr().out
    assert re.search(r"GRASP-MB, 2 batches.*fp32 +│ \d\.\d{3} +│ 1\.0000.*fp32, other", text, re.DOTALL)


def test_the_speed_benchmark_prints_its_tables(monkeypatch, tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(speed, "SECONDS", 0.0)
    experiment = Experiment("small-resnet", "digits", "random", 0.97, rounds=1, epochs=1).resolved()
    masks = zoo.random_masks(loading.initial(experiment, loading.known_inputs(experiment)), 0.03)
    bb.save_masks(masks, tmp_path / "mask", method="random", experiment=experiment.to_dict())
    speed.main(tmp_path / "mask", [1, 2], 2)
    printed = capsys.readouterr().out
    for batch in (1, 2):
        assert f"| inference, batch {batch} | ms |" in printed
    for name in ("dense, PyTorch", "dense, onnxruntime", "shrunk, PyTorch", "shrunk, onnxruntime", "shrunk, int8"):
        assert len(re.findall(rf"^\| {name} \| [\d.e-]+ \| [\d.]+ \| [\d.]+ \|$", printed, re.MULTILINE)) == 2
    assert "| training step, batch 2 |" in printed


@pytest.mark.slow
def test_the_benchmark_of_training_steps_prints_one_row_for_each_network_and_its_masks(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)  # and put it back
    small = dict(device="cpu", rounds=1, batch_size=2, steps=1, turns=1)
    steps.main(["small-vgg"], [0.5], **small)
    table = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[4:]]
    shares = {label: (flops, weights) for _, label, _, flops, weights, *_ in table}
    assert shares.pop("none") == ("100.00%", "100.00%")
    assert shares.pop("force, held") == shares.pop("force 2:4, held") == ("100.00%", "50.00%")
    assert list(shares) == ["force, shrunk", "force channels by weights, shrunk", "force channels by flops, shrunk"]
    flops, weights = zip(*((float(share.strip("%")) for share in pair) for pair in shares.values()), strict=True)
    assert 100 >= flops[0] > flops[1] > flops[2] == pytest.approx(50, abs=5)
    assert weights[:2] == pytest.approx((50, 50), abs=1)
    masks = zoo.random_masks(lab.network("small-vgg", lab.random_images(256, "cpu")), 0.1)
    about = dict(method="mine", sparsity=0.9, experiment={"model": "small-vgg"})
    bb.save_masks(masks, tmp_path / "mask", **about)
    steps.main(["small-vgg"], masks=[tmp_path / "mask"], **small)
    assert re.findall(r"small-vgg \| (.*?) \| (\d*)", capsys.readouterr().out) == [
        ("none", ""), ("mine, shrunk", "90"), ("mine, held", "90")
    ]  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="it reads the memory of a process from /proc")
def test_the_benchmark_of_sharded_networks_prints_its_table(monkeypatch, capsys):
    monkeypatch.setattr(sharded, "WORLDS", (1, 2))
    sharded.main(width=16, depth=2, rounds=2)
    assert re.search(r"2 +│ 682 +│ 341 +│ .*MiB", capsys.readouterr().out)


@pytest.mark.parametrize(("way", "empty"), [("snip", 4), ("snip, at_least", 0), ("erk", 0)])
def test_a_transformer_keeps_its_queries_and_keys_only_with_a_minimum_for_each_layer(way, empty, monkeypatch):
    attention = pytest.importorskip("attention", reason="needs transformers", exc_type=ImportError)
    monkeypatch.setattr(attention, "STEPS", {"BERT": 10, "Llama": 10})
    with catch_warnings():
        for network in attention.NETWORKS:
            accuracy, empties, effective = attention.case(network, 0.9, way, seed=0)
            assert (empties, effective) == (empty, pytest.approx(90.5, abs=1))
            assert 0 < accuracy < 100


def test_the_script_about_settling_follows_the_masks_and_draws_a_table_that_is_there(monkeypatch, tmp_path):
    monkeypatch.setitem(settling.SETTINGS["smoke"], "rounds", 4)
    table, picture = tmp_path / "settling.csv", tmp_path / "settling.png"
    settling.main(table, picture, "smoke")
    rows, stored = tables.read(table), tables.read(Path(__file__).parents[2] / "results" / "settling.csv")
    assert list(rows[0]) == list(stored[0])
    assert [(row["statistics"], row["scored_on"], row["round"]) for row in rows] == list(
        product(("batch", "eval"), ("new batches", "one batch"), (3, 4))
    )
    assert all((row["gradients"] is None) == (row["round"] == 3) for row in rows)
    picture.unlink()
    settling.main(table, picture, "smoke", device="none")
    assert picture.exists()
