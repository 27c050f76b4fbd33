"""One function and one row: a method that is registered at run time works everywhere."""

import base64
import gzip
import json
from pathlib import Path

import pytest
from torch import nn

import barebones as bb
from barebones.lab.records import records, tables
from barebones.paper.figures import FIGURES

RECIPE = """
from barebones import METHODS, Method
from barebones.lab.experiment.experiment import Experiment

def smallest(probe):
    return {name: -weight.abs() for name, weight in probe.weights.items()}

METHODS["smallest"] = Method(smallest, needs_data=False, label="Smallest first", colour="#12ab34", marker="*")

def experiments():
    for method in ("smallest", "random"):
        yield Experiment("nets_for_cli:tiny", "digits", method, sparsity=0.5, epochs=1, batch_size=256)
"""
METHOD, LABEL, COLOUR = "smallest", "Smallest first", "#12ab34"


@pytest.fixture
def recipe(tiny, monkeypatch) -> Path:
    """Write the recipe file that registers the method; forget the method at the end of the test."""
    monkeypatch.setitem(bb.METHODS, METHOD, bb.METHODS["random"])  # so that it is removed again
    (path := tiny / "my_recipe.py").write_text(RECIPE)
    exec(RECIPE, {})
    return path


def test_prune_knows_it(recipe):
    model = nn.Linear(4, 3)
    result = bb.prune(model, None, 0.5, METHOD, on_collapse="ignore")
    kept = model.weight.abs()[result.masks["weight"]]
    assert kept.max() <= model.weight.abs()[~result.masks["weight"]].min()


def test_the_command_line_knows_it(recipe, command, monkeypatch):
    done = command("prune", "--model", "nets_for_cli:tiny", "--data", "digits", "--method", METHOD, "-o", "mask")
    assert done.code == 0, done.err
    assert bb.load_masks("mask").about["method"] == METHOD
    assert "did you mean 'smallest'?" in command("run", "--method", "smalest").err
    monkeypatch.setenv("_BAREBONES_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "barebones run --method smal")
    monkeypatch.setenv("COMP_CWORD", "3")
    monkeypatch.setattr("__main__.__package__", "", raising=False)  # as for an installed command
    assert command().out.split() == [METHOD]


@pytest.mark.slow
def test_a_sweep_a_figure_and_the_report_know_it(recipe, command, forkserver):
    done = command("sweep", f"{recipe}:experiments", "--device", "cpu", "--jobs", "1")
    assert done.code == 0, done
    rows = records.records(Path("runs"))
    assert {row["method"]: row["status"] for row in rows} == {METHOD: "done", "random": "done"}

    tables.write([{"scale": "smoke"} | row for row in FIGURES["cifar10"].source.rows(rows)], Path("runs/cifar10.csv"))
    done = command("figure", "cifar10", "--from", "runs", "--out", ".")
    assert done.code == 0, done
    drawing = Path("cifar10.svg").read_text()
    assert f"<!-- {LABEL} -->" in drawing
    assert f"stroke: {COLOUR}" in drawing

    done = command("report", "runs", "-o", "report.html")
    assert done.code == 0, done
    page = Path("report.html").read_text()
    packed = page.split('id="data">')[1].split("</script>")[0]
    content = json.loads(gzip.decompress(base64.b64decode(packed)))
    assert METHOD in [group["method"] for group in content["groups"]]
    assert (content["looks"][METHOD]["light"], content["looks"][METHOD]["glyph"][0]) == (COLOUR, "★")
