"""Controls: each method against its masks shuffled or inverted within each layer, and against reinitialized weights."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

from ...lab.experiment.experiment import Experiment
from ...lab.experiment.styles import Look, look
from ...lab.figures import plots
from ...lab.figures.registry import Figure
from ...lab.figures.sources import COLUMNS, Runs
from ...lab.records.tables import Row, Rows, grouped
from ...pruning.controls import CONTROLS, NONE
from ..accuracies import GRID, OURS, at_scale, draw_line, measured, schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

METHODS = {"smoke": ("force",), "short": ("force", "iter-snip", "hybrid"), "paper": ("force", "iter-snip", "hybrid")}
SPARSITIES = {"smoke": (0.9, 0.98), "short": (0.98, 0.995, 0.999), "paper": (0.98, 0.995, 0.999)}
LOOKS = {  # of the controls; the method itself has its own
    "shuffle": Look("masks shuffled in each layer", "#000000", "X"),
    "reinitialize": Look("weights reinitialized", "#009E73", "^"),
    "invert": Look("masks of the lowest scores", "#888888", "v"),
}


def experiments(scale: str) -> list[Experiment]:
    """Return each method with and without its controls, seed by seed."""
    choices = product(GRID[scale][1], METHODS[scale], SPARSITIES[scale], CONTROLS)
    return [
        at_scale(Experiment("vgg19", "cifar10", method, sparsity, seed, control=control), scale)
        for seed, method, sparsity, control in choices
    ]


def rows(records: Sequence[Row]) -> Rows:
    """Return a row for each run at a sparsity at which its method has a control; for each run if none has."""
    point = ("data", "model", "method", "sparsity")
    compared = {tuple(run[name] for name in point) for run in records if run["control"] != NONE}
    shown = [run for run in records if tuple(run[name] for name in point) in compared]
    return measured(shown or records, *point, "control")


def draw(rows: Rows) -> Canvas:
    """Draw one row of panels for each network, and in each panel a method and its controls."""
    networks = grouped([row for row in rows if row["source"] == OURS], "data", "model")
    methods = list(dict.fromkeys(row["method"] for row in rows))
    figure, grid = plots.panels(len(networks), len(methods), height=2.5)
    for panels, ((data, model), of_network) in zip(grid, networks.items(), strict=True):
        panels[0].set_ylabel(f"{plots.title(data, model)}\ntest accuracy (%)")
        for axes, method in zip(panels, methods, strict=True):
            _panel(axes, method, [row for row in of_network if row["method"] == method])
    shown = [look(method) for method in methods]
    shown += [LOOKS[control] for control in LOOKS if any(row["control"] == control for row in rows)]
    entries = {each.label: plots.line_handle(each.colour, each.marker, markeredgewidth=0) for each in shown}
    plots.legend(figure, entries, columns=3)
    return figure


def _panel(axes: Axes, method: str, runs: Rows) -> None:
    if not runs:
        axes.set_axis_off()
        return
    sparsities = sorted({row["sparsity"] for row in runs})
    for control, members in sorted(grouped(runs, "control").items(), key=lambda item: item[0] == NONE):
        draw_line(axes, _look(method, control), members, "sparsity", sparsities.index)
    axes.set_xticks(range(len(sparsities)), [f"{round(100 * sparsity, 6):g}" for sparsity in sparsities])
    axes.set_xlabel("weights removed (%)")
    axes.set_ylim(0, 100)
    axes.set_title(look(method).label + schedule(runs))


def _look(method: str, control: str) -> Look:
    return look(method) if control == NONE else LOOKS[control]


FIGURES = {
    "controls": Figure(
        "Methods against their controls on CIFAR-10: masks shuffled or inverted in each layer, weights reinitialized.",
        Runs(experiments, rows, columns=("source", *COLUMNS, "control", "mean", "std", "seeds")),
        draw,
    ),
}
