"""Figure 4 (middle): accuracy against the number of pruning rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from ...lab.experiment.experiment import Experiment
from ...lab.experiment.styles import look
from ...lab.figures import plots
from ...lab.figures.registry import Figure
from ...lab.figures.sources import Runs
from ...lab.records.tables import Row, Rows
from ..accuracies import (
    GRID,
    HIGH_SPARSITY,
    OURS,
    PAPER,
    RANDOM,
    at_scale,
    draw_line,
    draw_reference,
    handles,
    measured,
    references,
    schedule,
)
from ..numbers import COST

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

ROUNDS = {"smoke": (2, 6), "short": (5, 20, 100, 300), "paper": (2, 5, 10, 20, 50, 100, 200, 300)}
ITERATED = ("force", "iter-snip")
ONE_ROUND = "snip"  # what both of them are with T = 1


def experiments(scale: str) -> list[Experiment]:
    """Return FORCE and Iter SNIP with T rounds, SNIP for T = 1, and random masks as a baseline."""
    base = Experiment("vgg19" if scale == "smoke" else "resnet50", "cifar10", sparsity=HIGH_SPARSITY[scale])
    listed = []
    for seed in GRID[scale][1]:
        listed += [replace(base, method=method, seed=seed) for method in (RANDOM, ONE_ROUND)]
        for method, rounds in product(ITERATED, ROUNDS[scale]):
            listed.append(replace(base, method=method, rounds=rounds, seed=seed))
    return [at_scale(experiment, scale) for experiment in listed]


def rows(records: Sequence[Row]) -> Rows:
    """Return a row for each run, then the paper's numbers with one batch per round."""
    theirs = references(records, lambda number: number.where == COST and number.batches_per_round == 1)
    return [*measured(records, "data", "model", "method", "rounds"), *theirs]


def draw(rows: Rows) -> Canvas:
    """Draw both methods from their common start T = 1, SNIP; random masks are a horizontal line."""
    figure, [[axes]] = plots.panels(1, 1, height=2.7)
    ours, theirs = ([row for row in rows if row["source"] == source] for source in (OURS, PAPER))
    start = [row for row in ours if row["method"] == ONE_ROUND]
    for method in ITERATED:
        draw_line(axes, look(method), [*start, *(row for row in ours if row["method"] == method)], "rounds")
    baseline = [row for row in ours if row["method"] == RANDOM]
    for row in baseline:
        axes.axhline(100 * row["mean"], color=look(RANDOM).colour, linestyle=":", linewidth=1.1)
    for row in theirs:
        draw_reference(axes, row, row["rounds"])
    counts = [row["rounds"] for row in rows if row["method"] != RANDOM]
    plots.count_axis(axes, counts, "pruning rounds T (1 is SNIP)")
    axes.set_ylim(0, 100)
    axes.set_ylabel("test accuracy (%)")
    first = ours[0]
    where = f"{plots.title(first['data'], first['model'])}, {plots.percent(first['sparsity'])}"
    axes.set_title(where + schedule(ours))
    entries = handles([row for row in rows if row["method"] in ITERATED])
    if baseline:
        entries[look(RANDOM).label] = plots.handle(RANDOM, marker="", linestyle=":")
    plots.legend(figure, entries, columns=4)
    return figure


FIGURES = {
    "accuracy-vs-rounds": Figure(
        "Accuracy at 99.5 % sparsity against the number of pruning rounds T, for FORCE and Iter SNIP.",
        Runs(experiments, rows, free=("rounds", "seed")),
        draw,
    ),
}
