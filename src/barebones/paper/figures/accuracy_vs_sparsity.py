"""Figures 1 to 3, 5 and 10 to 12: accuracy against sparsity, of all methods and on all data sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

from ...lab.experiment.experiment import DENSE, Experiment
from ...lab.experiment.protocols import protocol
from ...lab.experiment.recipes import COMPARED, NETWORKS
from ...lab.experiment.styles import look
from ...lab.figures import plots
from ...lab.figures.registry import Figure
from ...lab.figures.sources import Runs
from ...lab.records.tables import Row, Rows
from ..accuracies import (
    DASHED,
    GRID,
    MULTI_BATCH,
    OURS,
    PAPER,
    at_scale,
    by_method,
    draw_line,
    draw_reference,
    fewer_at_smoke,
    handles,
    last_at_smoke,
    measured,
    references,
    schedule,
)
from ..numbers import Reference

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

EARLY = "magnitude"  # after one epoch of dense training
ZOOM = 0.15  # how far the zoomed panels reach below our best mean


def compared(data: Sequence[str], models: Sequence[str], methods: Sequence[str]) -> Callable[[str], list[Experiment]]:
    """Return a function from the scale to its experiments: dense and every method at every sparsity, seed by seed."""

    def experiments(scale: str) -> list[Experiment]:
        sparsities, seeds = GRID[scale]
        pairs = list(product(last_at_smoke(scale, data), last_at_smoke(scale, models)))
        listed = []
        for seed, (data_set, model) in product(seeds, pairs):
            listed.append(Experiment(model, data_set, DENSE, 0.0, seed))
            for sparsity, method in product(sparsities, fewer_at_smoke(scale, methods)):
                pretrain = int(method == EARLY)
                listed.append(Experiment(model, data_set, method, sparsity, seed, pretrain=pretrain))
        return [at_scale(experiment, scale) for experiment in listed]

    return experiments


def rows(records: Sequence[Row]) -> Rows:
    """Return a row for each run, then the paper's numbers for these networks."""
    return [*measured(records, "data", "model", "method", "sparsity"), *references(records, _by_protocol)]


def _by_protocol(reference: Reference) -> bool:
    """Whether a number was reached with the data set's usual number of rounds."""
    return reference.rounds in (None, 1, protocol(reference.data, reference.model).rounds)


def draw(rows: Rows, labels: Mapping[str, str] = {}) -> Canvas:
    """Draw two panels for each network, the second zoomed: lines and bands for ours, hollow markers for the paper's."""
    pairs = list(dict.fromkeys((row["data"], row["model"]) for row in rows))
    columns = min(len(pairs), 2)
    lines = -(-len(pairs) // columns)
    figure, grid = plots.panels(2 * lines, columns, 2.35 if columns > 1 else 2.65)
    for number, pair in enumerate(pairs):
        network_rows = [row for row in rows if (row["data"], row["model"]) == pair]
        line, column = divmod(number, columns)
        _panel(grid[line][column], network_rows, plots.title(*pair) + schedule(network_rows))
        _zoomed(grid[lines + line][column], network_rows, plots.title(*pair) + ", zoomed")
    for panels in grid:
        panels[0].set_ylabel("test accuracy (%)")
        for axes in panels[len(pairs) :]:
            axes.set_axis_off()
    plots.legend(figure, handles(rows, labels), columns=5 if columns > 1 else 3)
    return figure


def _panel(axes: Axes, rows: Rows, title: str) -> None:
    pruned = [row for row in rows if row["method"] != DENSE]
    for row in rows:
        if row["method"] == DENSE:
            axes.axhline(100 * row["mean"], color=look(DENSE).colour, **DASHED)
    for method, runs in by_method(row for row in pruned if row["source"] == OURS).items():
        draw_line(axes, look(method), runs, "sparsity", lambda sparsity: 1 - sparsity)
    for row in pruned:
        if row["source"] == PAPER:
            draw_reference(axes, row, 1 - row["sparsity"])
    if pruned:
        plots.density_axis(axes, [row["sparsity"] for row in pruned])
    axes.set_ylim(0, 100)
    axes.set_title(title)


def _zoomed(axes: Axes, rows: Rows, title: str) -> None:
    _panel(axes, rows, title)
    best, top = max(row["mean"] for row in rows if row["source"] == OURS), max(row["mean"] for row in rows)
    axes.set_ylim(100 * (best - ZOOM), min(100 * (top + ZOOM / 10), 100.5))
    plots.ticks_every(axes.yaxis, 5)


def _figure(
    about: str, data: Sequence[str], models: Sequence[str], methods: Sequence[str], labels: Mapping[str, str] = {}
) -> Figure:
    return Figure(about, Runs(compared(data, models, methods), rows), partial(draw, labels=labels))


FIGURES = {
    "cifar10": _figure(
        "Accuracy against sparsity on CIFAR-10, ResNet-50 and VGG-19, all methods; below it the upper end, zoomed.",
        ["cifar10"], NETWORKS, COMPARED,
    ),
    "cifar100": _figure(
        "Accuracy against sparsity on CIFAR-100, ResNet-50 and VGG-19, with the upper end zoomed.",
        ["cifar100"], NETWORKS, MULTI_BATCH,
    ),
    "tiny-imagenet": _figure(
        "Accuracy against sparsity on Tiny-ImageNet, ResNet-50 and VGG-19, with the upper end zoomed.",
        ["tiny-imagenet"], NETWORKS, MULTI_BATCH,
    ),
    "mobilenet": _figure(
        "Accuracy against sparsity of MobileNet-v2 on CIFAR-10: a network with a tenth of the weights.",
        ["cifar10"], ["mobilenet-v2"], COMPARED,
    ),
    "early-pruning": _figure(
        "Magnitude pruning after one epoch of training, against pruning at initialization, on CIFAR-10.",
        ["cifar10"], NETWORKS, (*MULTI_BATCH, EARLY), labels={EARLY: "Early pruning"},
    ),
    "iter-grasp": _figure(
        "Iterative GRASP against GRASP-MB, Iter SNIP and FORCE on CIFAR-10, CIFAR-100 and Tiny-ImageNet.",
        ["cifar10", "cifar100", "tiny-imagenet"], NETWORKS, (*MULTI_BATCH, "iter-grasp"),
    ),
}  # fmt: skip
