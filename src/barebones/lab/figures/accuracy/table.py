"""The accuracies of a figure as a LaTeX table."""

from __future__ import annotations

from ...experiment.experiment import DENSE
from .. import plots
from .axes import AXES, Axis
from .latex import tabular
from .lines import Panels, Point

MOST_SPARSITIES = 8  # side by side


def table(panels: Panels, axis: Axis) -> str:
    """Return a LaTeX table: sparsities side by side if they are the axis and few, otherwise a row for each point."""
    pruned = [point for lines in panels.values() for line in lines if line.method != DENSE for point in line.points]
    sparsities = sorted({point.sparsity for point in pruned})
    if wide := axis.column == "sparsity" and 0 < len(sparsities) <= MOST_SPARSITIES:
        head = [f"{plots.removed(sparsity)} %" for sparsity in sparsities]
    else:
        head = [*dict.fromkeys([AXES["sparsity"].label, axis.label]), "accuracy"]
    blocks: dict[str, list[list[str]]] = {}
    for title, lines in panels.items():
        rows = blocks[title] = []
        for line in lines:
            if line.method == DENSE:
                rows.append([line.label, _accuracy(line.points[0])])
            elif wide:
                cells = {point.sparsity: _accuracy(point) for point in line.points}
                rows.append([line.label, *(cells.get(sparsity, "–") for sparsity in sparsities)])
            else:
                rows += [[line.label, *_places(point, axis), _accuracy(point)] for point in line.points]
    note = "Test accuracy in %, mean ± standard deviation over seeds."
    note += " †: collapsed, no signal passes." if any(point.collapsed for point in pruned) else ""
    return tabular(["method", *head], blocks, note)


def _places(point: Point, axis: Axis) -> list[str]:
    sparsity = plots.removed(point.sparsity)
    return [sparsity] if axis.column == "sparsity" else [sparsity, axis.text(axis.position(point.x))]


def _accuracy(point: Point) -> str:
    return f"{point.mean:.2f}{'' if point.std is None else f' ± {point.std:.2f}'}{'†' * point.collapsed}"
