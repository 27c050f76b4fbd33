"""Drawing: panels of lines with bands over seeds, on pages that can be printed."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

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


class Style(NamedTuple):
    """How a line is drawn."""

    colour: Any
    marker: str
    linestyle: Any


def draw(panels: Panels, axis: Axis) -> Iterator[Canvas]:
    """Draw the panels, page by page; if they are few, the upper end of those with points far below also by itself."""
    styles = _styles(panels)
    zoom = len(panels) <= MOST_PANELS // 2
    cells = [(title, zoomed) for title in panels for zoomed in ([False, True] if zoom else [False])]
    cells = [(title, zoomed) for title, zoomed in cells if not zoomed or _crowded(panels[title])]
    for start in range(0, len(cells), MOST_PANELS):
        page = cells[start : start + MOST_PANELS]
        columns = min(len(page), 2)
        entries = _entries([line for title, _ in page for line in panels[title]], styles, LONGEST_LABEL * columns)
        figure, grid = plots.panels(rows := -(-len(page) // columns), columns)
        for number, axes in enumerate(axes for line in grid for axes in line):
            if number >= len(page):
                axes.set_axis_off()
                continue
            title, zoomed = page[number]
            _panel(axes, panels[title], axis, styles, zoomed)
            place, _, schedule = title.rpartition(" (")
            axes.set_title(fill(place + ", zoomed" if zoomed else f"{place} ({_unbroken(schedule)}", LONGEST_TITLE))
            axes.set_ylabel("" if number % columns else "test accuracy (%)")
        below = plots.legend(figure, entries)  # if it is very long, the page is taller
        figure.set_figheight(max(min(figure.get_figheight() + below, plots.TALLEST), plots.LOWEST * rows + below))
        yield figure


def _unbroken(words: str) -> str:
    return words.replace(" ", "\N{NO-BREAK SPACE}")


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
        styles[label] = Style(variants.get(label, colour), marker, DASHES[dashes])
        markers.append(marker)
    return styles


def _entries(lines: list[Line], styles: dict[str, Style], longest: int) -> dict[str, Any]:
    """Return the entries of the legend, in the order of the styles; labels of more letters have several lines."""
    methods = {line.label: line.method for line in lines}
    entries = {}
    for label, (colour, marker, linestyle) in styles.items():
        if label in methods:
            mark = "" if methods[label] == DENSE else marker
            entries[fill(label, longest)] = plots.line_handle(colour, mark, linestyle, markeredgewidth=0)
    if any(point.collapsed for point in _points(lines)):
        entries["collapsed"] = plots.line_handle(plots.ALARM, "x", "none")
    return entries


def _panel(axes: Axes, lines: list[Line], axis: Axis, styles: dict[str, Style], zoomed: bool) -> None:
    dense, pruned = ([line for line in lines if (line.method == DENSE) == which] for which in (True, False))
    places = {axis.position(point.x) for point in _points(pruned)}
    left = sorted(place for place in places if place > 0) or [1.0]
    nothing = left[0] / 4  # a logarithmic axis has no 0, so it stands here
    alone = len(places) == 1
    for line in dense:
        [point], (colour, _, linestyle) = line.points, styles[line.label]
        axes.axhline(point.mean, color=colour, linestyle=linestyle, linewidth=0.9)
        if point.std:
            axes.axhspan(point.mean - point.std, point.mean + point.std, color=colour, alpha=0.08, linewidth=0)
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
    ends = [point.mean + sign * (point.std or 0) for point in _points(lines) for sign in (-1, 1)]
    best, margin = max(point.mean for point in _points(lines)), max(0.06 * (max(ends) - min(ends)), 0.5)
    low, high = (best - ZOOM, best + ZOOM / 10) if zoomed else (min(ends) - margin, max(ends) + margin)
    axes.set_ylim(max(low, -2), min(high, 102))


def _draw(axes: Axes, line: Line, style: Style, x: list[float]) -> None:
    """Draw means with a band of one standard deviation, a single point with a bar; a cross marks a collapse."""
    means, deviations = [point.mean for point in line.points], [point.std or 0.0 for point in line.points]
    if len(x) == 1 and deviations[0]:
        axes.errorbar(x, means, deviations, color=style.colour, elinewidth=0.9, capsize=2, linestyle="none")
    elif any(deviations):
        low, high = ([m + sign * d for m, d in zip(means, deviations, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=style.colour, alpha=0.16, linewidth=0)
    look = {"color": style.colour, "marker": style.marker, "linestyle": style.linestyle}
    axes.plot(x, means, **look, markeredgewidth=0, zorder=3)
    for place, point in zip(x, line.points, strict=True):
        if point.collapsed:
            axes.plot([place], [point.mean], "x", color=plots.ALARM, zorder=4)
