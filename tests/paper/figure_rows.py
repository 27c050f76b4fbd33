"""Rows for the tests of the figures: records of runs that never happened, and analyses with tiny settings."""

import io
import math
import random
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from barebones.lab.experiment.experiment import DENSE, Experiment
from barebones.lab.figures import plots
from barebones.lab.figures.sources import Analysis, FigureContext, Runs
from barebones.lab.records import records, tables
from barebones.lab.run.options import RunOptions
from barebones.paper import numbers
from barebones.paper.figures import FIGURES

RUNS = {name: each.source for name, each in FIGURES.items() if isinstance(each.source, Runs)}
ANALYSES = {name: each.source for name, each in FIGURES.items() if isinstance(each.source, Analysis)}
PAIR = {"pairs": [("digits", "small-vgg")], "seeds": [0]}
TINY: dict[str, dict[str, Any]] = {  # settings of the analyses that take about a second
    "saliency-vs-rounds": {
        **PAIR, "methods": ["force", "iter-snip"], "batches": 2, "sparsities": [0.9], "rounds": [1, 3],
    },
    "saliency-scatter": {**PAIR, "batches": 2, "rounds": 2, "sparsities": [0.5, 0.9, 0.99]},
    "layers": {**PAIR, "sparsity": 0.99, "methods": ["snip", "force"], "changes": {"force": {"rounds": 3}}},
    "evolution": {**PAIR, "sparsity": 0.98, "rounds": 5, "methods": ["iter-snip", "force"]},
    "consistency": {
        **PAIR, "seeds": [0, 1], "one_shot": ["grasp", "snip"], "densities": [0.5, 0.05],
        "iterated": ["grasp-taylor", "iter-snip"], "rounds": 8, "to": 0.01, "iterated_seed": 0,
    },
    "parameters": {"pairs": list(numbers.PARAMETERS)},
}  # fmt: skip
TINY_FIGURES = {
    name: replace(FIGURES[name], source=replace(ANALYSES[name], settings={"smoke": settings}))
    for name, settings in TINY.items()
}


def context(folder: Path, **options: Any) -> FigureContext:
    return FigureContext(RunOptions(folder / "runs"), Console(file=io.StringIO(), width=200), **options)


def made_up(experiment: Experiment, **changes: Any) -> dict[str, Any]:
    """Return the record of a run that never happened: the accuracy falls with the sparsity, plus noise per seed."""
    resolved = experiment.resolved()
    noise = random.Random(zlib.crc32(repr(resolved).encode())).gauss(0, 0.01)
    depth = -math.log10(1 - resolved.sparsity) if resolved.method != DENSE else 0.0
    result = {"status": "done", "top1": 0.1 + 0.83 / (1 + math.exp(2 * depth - 5)) + noise, "folder": resolved.folder}
    result |= {"prune_seconds": 0.1 * (resolved.rounds or 1), "train_seconds": 9.0, "collapsed": False}
    return dict.fromkeys(records.COLUMNS) | resolved.to_dict() | result | changes


def drawn(name: str, rows: tables.Rows) -> Any:
    with plots.styled():
        return FIGURES[name].draw(rows)


def touched(figure: Any, stem: Path) -> list[Path]:
    """Take the place of `plots.save` where a test needs no pictures: rendering them takes most of its time."""
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg", "pdf")]
    for path in paths:
        path.touch()
    return paths
