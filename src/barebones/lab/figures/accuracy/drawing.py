"""Drawing: panels of lines with bands over seeds, on pages that can be printed."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import fill
from typing import TYPE_CHECKING, Any

from ...experiment.experiment import DENSE
from ...experiment.styles import look, looks
from .. import plots
from .axes import Axis
from .lines import Line, Panels, Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

ZOOM = 15  # points that the zoomed panels reach below the best accuracy
MOST_PANELS = 8  # on a page
LONGEST_TITLE = 46  # letters in a line of a panel's title
LONGEST_LABEL = 50  # letters in a line of a legend that is one column wide
BESIDE = 1.06  # the factor between lines that have one place only, and the same
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (2.5, 1)))
MARKERS = "osD^vPX<>hp*d"  # of lines that would look alike without
COLLAPSED = "collapsed"

Style = dict[str, Any]  # how a line is drawn: its colour, marker and dashes, by the names of Matplotlib


def draw(panels: Panels, axis: Axis) -> Iterator[Canvas]:
    """Draw the panels, page by page; if they are few, the upper end of those with points far below also by itself."""
    styles = _styles(panels)
    few = len(panels) <= MOST_PANELS // 2
    cells = [(title, zoomed) for title in panels for zoomed in (False, True)[: 1 + (few and _crowded(panels[title]))]]
    for start in range(0, len(cells), MOST_PANELS):
        page = cells[start : start + MOST_PANELS]
        columns = min(len(page), 2)
        figure, grid = plots.panels(rows := -(-len(page) // columns), columns)
        if len(page) < rows * columns:
            grid[-1][-1].set_axis_off()
        for number, (title, zoomed) in enumerate(page):
            axes = grid[number // columns][number % columns]
            _panel(axes, panels[title], axis, styles, zoomed)
            place, _, schedule = title.rpartition(" (")
            schedule = schedule.replace(" ", "\N{NO-BREAK SPACE}")
            axes.set_title(fill(f"{place}, zoomed" if zoomed else f"{place} ({schedule}", LONGEST_TITLE))
            axes.set_ylabel("" if number % columns else "test accuracy (%)")
        marks = {str(mark.get_label()): mark for axes in figure.axes for mark in axes.get_legend_handles_labels()[0]}
        shown = [label for label in (*styles, COLLAPSED) if label in marks]
        below = plots.legend(figure, {fill(label, LONGEST_LABEL * columns): marks[label] for label in shown})
        # If the legend is very long, the page is taller.
        figure.set_figheight(max(min(figure.get_figheight() + below, plots.TALLEST), plots.LOWEST * rows + below))
        yield figure


def _crowded(lines: list[Line]) -> bool:
    """Whether lines of several points leave little room for the best of them."""
    points = _points(lines)
    means = [point.mean for point in points]
    return max(means) - min(means) > ZOOM and len({point.x for point in points}) > 2


def _points(lines: list[Line]) -> list[Point]:
    return [point for line in lines for point in line.points]


def _styles(panels: Panels) -> dict[str, Style]:
    """Return how to draw the line of each label: a method in its colour, variants of the only one in shades.

    No two lines look alike.
    """
    methods = {line.label: line.method for lines in panels.values() for line in lines}
    order = list(dict.fromkeys([DENSE, *reversed(looks()), *methods.values()]))
    pruned = [label for label, method in methods.items() if method != DENSE]
    variants = plots.shades(pruned) if len({methods[label] for label in pruned}) == 1 < len(pruned) else {}
    styles: dict[str, Style] = {}
    used: dict[str, list[str]] = {}  # markers by colour
    for label, method in sorted(methods.items(), key=lambda item: order.index(item[1])):
        _, colour, marker = look(method)
        markers = used.setdefault(colour, [])
        if marker in markers:
            marker = next((other for other in MARKERS if other not in markers), marker)
        dashes = 0 if label in variants else (len(markers) + (method == DENSE)) % len(DASHES)
        styles[label] = {"color": variants.get(label, colour), "marker": marker, "linestyle": DASHES[dashes]}
        markers.append(marker)
    return styles


def _panel(axes: Axes, lines: list[Line], axis: Axis, styles: dict[str, Style], zoomed: bool) -> None:
    dense, pruned = ([line for line in lines if (line.method == DENSE) == which] for which in (True, False))
    places = {axis.position(point.x) for point in _points(pruned)}
    left = sorted(place for place in places if place > 0) or [1.0]
    nothing = left[0] / 4  # a logarithmic axis has no 0, so it stands here
    alone = len(places) == 1
    for line in dense:
        [point], style = line.points, styles[line.label] | {"marker": ""}
        axes.axhline(point.mean, **style, linewidth=0.9, label=line.label)
        if point.std:
            axes.axhspan(point.mean - point.std, point.mean + point.std, color=style["color"], alpha=0.08, linewidth=0)
    for number, line in enumerate(pruned):
        aside = BESIDE ** (number - (len(pruned) - 1) / 2) if alone else 1.0
        _draw(axes, line, styles[line.label], [(axis.position(point.x) or nothing) * aside for point in line.points])
    room = 1.25 * BESIDE ** (alone * len(pruned) / 2)
    plots.log_axis(axes.xaxis, (nothing if 0.0 in places else left[0]) / room, left[-1] * room, axis.text)
    axes.set_xlabel(axis.label)
    if 0.0 in places:
        axes.set_xticks([nothing], [axis.text(0.0)], minor=True)
    if axis.removed:
        axes.invert_xaxis()
    best = max(point.mean for point in _points(lines))
    low, high = (best - ZOOM, best + ZOOM / 10) if zoomed else axes.get_ylim()
    axes.set_ylim(max(low, -2), min(high, 102))


def _draw(axes: Axes, line: Line, style: Style, x: list[float]) -> None:
    """Draw means with a band of one standard deviation, a single point with a bar; a cross marks a collapse."""
    low, means, high = ([point.mean + sign * (point.std or 0.0) for point in line.points] for sign in (-1, 0, 1))
    if low != high and len(x) == 1:
        axes.errorbar(x, means, line.points[0].std, color=style["color"], elinewidth=0.9, capsize=2, linestyle="none")
    elif low != high:
        axes.fill_between(x, low, high, color=style["color"], alpha=0.16, linewidth=0)
    axes.plot(x, means, **style, markeredgewidth=0, zorder=3, label=line.label)
    if collapsed := [(place, point.mean) for place, point in zip(x, line.points, strict=True) if point.collapsed]:
        axes.plot(*zip(*collapsed, strict=True), "x", color=plots.ALARM, zorder=4, label=COLLAPSED)
