"""The figure "accuracy": accuracy of any runs, against sparsity, effective sparsity, FLOPs left, or time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

from ...messages import counted, printable, shortened, unknown
from ...names import NONE
from ..experiment.experiment import DENSE, FINDING, Experiment, with_role
from ..experiment.styles import look, titled
from ..records import records, tables
from ..records.records import DONE, KEY, SETTINGS
from ..records.tables import Row, Rows, grouped, one_per_seed, spread
from ..run.folder import EXPERIMENT
from . import plots
from .plots import Axes, Canvas

NAME = "accuracy"
ABOUT = "Accuracy of your own runs against sparsity, or against what --x names. It runs nothing."
NEEDED = ("data", "model", "method", "sparsity", "seed", "top1")  # columns of a table that can be drawn
DEFAULTS = Experiment.settings({})
NAMED = with_role("named")  # changes of how masks are found, which are always named
COUNTED = {"rounds": ("round", "s"), "batches_per_round": ("batch", "es"), "epochs": ("epoch", "s")}
ZOOM = 15  # points that the zoomed panels reach below the best accuracy
MOST_PANELS = 8  # on a page
LONGEST_TITLE = 46  # letters in a line of a panel's title
LONGEST_LABEL = 50  # letters in a line of a legend that is one column wide
BESIDE = 1.06  # the factor between lines that have one place only, and the same
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (2.5, 1)))
MARKERS = "osD^vPX<>hp*d"  # of lines that would look alike without
COLLAPSED = "collapsed"


@dataclass(frozen=True)
class Axis:
    """A column of the records, its label, and the settings that change along a line."""

    label: str
    column: str
    along: tuple[str, ...] = ("sparsity",)
    removed: bool = False  # a share of the weights that was removed: the axis is that of the share that is left
    percent: bool = True

    def position(self, value: float) -> float:
        """Return where a value is drawn; 0 is where nothing is left."""
        return max(1 - value if self.removed else value, 0.0)

    def text(self, position: float) -> str:
        """Return a position as the label of its tick.

        >>> AXES["sparsity"].text(0.005), AXES["flops"].text(0.005), AXES["time"].text(0.005)
        ('99.5', '0.5', '0.005')
        """
        return plots.removed(1 - position) if self.removed else f"{100 * position if self.percent else position:.3g}"


AXES = {
    "sparsity": Axis("weights removed (%)", "sparsity", removed=True),
    "effective": Axis("effective sparsity (%)", "effective_sparsity", removed=True),
    "flops": Axis("FLOPs left (%)", "flops_left"),
    "time": Axis("pruning time (s)", "prune_seconds", along=("rounds", "batches_per_round"), percent=False),
    "epoch": Axis("training time of an epoch (s)", "epoch_seconds", percent=False),
}


def write(folder: Path, x: str, out: Path, only: Sequence[str] = ()) -> tuple[list[Path], list[str]]:
    """Draw the `chosen` runs of a folder, or of its accuracy.csv; return what was written, and what was left out."""
    if x not in AXES:
        raise ValueError(unknown("axis", x, AXES))
    plots.require_matplotlib()
    rows, left_out = _read(folder, AXES[x], only)
    shown, panels = arranged(rows, AXES[x])
    out.mkdir(parents=True, exist_ok=True)
    written = []
    with plots.styled():
        for number, picture in enumerate(draw(panels, AXES[x]), 1):
            written += plots.save(picture, out / (NAME if number == 1 else f"{NAME}-{number}"))
    tables.write(shown, out / f"{NAME}.csv")
    return [*written, out / f"{NAME}.csv"], left_out


def _read(folder: Path, axis: Axis, only: Sequence[str]) -> tuple[Rows, list[str]]:
    """Return the rows of a folder that can be drawn, and a sentence about each other run."""
    alone = records.record(folder) if (folder / EXPERIMENT).exists() else None
    found = chosen(records.records(folder) if alone is None else [alone], only)
    left_out = records.lost(found)
    rows = [row for row in found if row["status"] == DONE]
    if not rows and (path := folder / f"{NAME}.csv").exists():
        table = tables.read(path, NEEDED)
        rows = chosen(records.arranged({name: row.get(name) for name in records.COLUMNS} for row in table), only)
    if not rows:
        why = shortened(left_out, most=2) or "barebones run and barebones sweep make some"
        raise ValueError(f"{folder} holds no finished run; {why}")
    known = []
    for row in rows:
        seconds, epochs = row["train_seconds"], row["epochs_trained"]
        row["epoch_seconds"] = seconds / epochs if seconds and epochs else None
        needed = ("top1",) if row["method"] == DENSE else ("top1", axis.column)
        if missing := [name for name in needed if not isinstance(row[name], (int, float)) or not isfinite(row[name])]:
            left_out.append(f"{row['folder']} has no number of {missing[0].replace('_', ' ')}")
        else:
            known.append(row)
    if not known:
        raise ValueError(f"no run in {folder} can be drawn: {left_out[-1]}; choose another --x")
    return known, left_out


def chosen(rows: Rows, only: Sequence[str]) -> Rows:
    """Return the rows with these settings, each like method=force,hybrid.

    >>> chosen([{"seed": 0, "method": "snip"}, {"seed": 1, "method": "snip"}], ["seed=1", "method=snip"])
    [{'seed': 1, 'method': 'snip'}]
    """
    for condition in only:
        name, _, values = condition.partition("=")
        if (column := name.replace("-", "_")) not in SETTINGS:
            raise ValueError(unknown("setting", name, SETTINGS))
        there = {_plain(row[column]) for row in rows}
        wanted = set(values.lower().split(","))
        if rows and (missing := wanted - there):
            raise ValueError(f"no run has {name}={min(missing)}; there are {', '.join(sorted(there))}")
        rows = [row for row in rows if _plain(row[column]) in wanted]
    return rows


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


# Runs are grouped by what differs between them: into panels, lines and points


class Point(NamedTuple):
    """Runs that differ in the seed alone: the mean and standard deviation of their accuracy, in percent."""

    sparsity: float
    x: float
    mean: float
    std: float | None
    collapsed: bool


class Line(NamedTuple):
    """The points of a method with equal settings, but for those that change along the line."""

    label: str
    method: str
    points: list[Point]


Panels = dict[str, list[Line]]  # by title


def arranged(rows: Rows, axis: Axis) -> tuple[Rows, Panels]:
    """Return the rows with their panel, line and statistics, in which each seed counts once; and the lines by panel."""
    shown: Rows = []
    panels: Panels = {}
    for place, members in _panels(rows, axis).items():
        lines = _lines(members, axis)
        title = plots.title(*place[:2]) + "".join(f", {plots.removed(share)} % removed" for share in place[2:])
        title = printable(title + _schedule(members))
        panels[title] = []
        for label, line in zip(_labels(lines, axis), lines, strict=True):
            points = []
            for runs in grouped(line, *axis.along).values():
                seeds = one_per_seed(runs)
                x = spread(run[axis.column] for run in seeds).mean or 0.0
                mean, std, number = spread(run["top1"] for run in seeds)
                assert mean is not None  # every row has an accuracy
                names = {"panel": title, "line": label, "x": x}
                shown += [names | run | {"seeds": number, "top1_mean": mean, "top1_std": std} for run in seeds]
                collapsed = any(run["collapsed"] for run in seeds)
                points.append(Point(runs[0]["sparsity"], x, 100 * mean, std and 100 * std, collapsed))
            panels[title].append(Line(label, line[0]["method"], sorted(points)))
    return shown, panels


def _panels(rows: Rows, axis: Axis) -> dict[tuple[Any, ...], Rows]:
    """Group the rows by panel; dense runs stand in all panels of their network."""
    fixed = [] if "sparsity" in axis.along else ["sparsity"]
    panels = grouped((row for row in rows if row["method"] != DENSE), "data", "model", *fixed)
    for row in rows:
        if row["method"] == DENSE:
            place = row["data"], row["model"]
            for home in [panel for panel in panels if panel[:2] == place] or [place]:
                panels.setdefault(home, []).append(row)
    return panels


def _lines(rows: Rows, axis: Axis) -> list[Rows]:
    """Group the rows of a panel by line, in the order in which they are drawn: dense first, FORCE last.

    Masks of files differ by the seed, so they make lines of their own only where one seed has several.
    """
    names = [name for name in SETTINGS if name not in ("data", "model", "seed", "mask", *axis.along)]
    order = plots.in_order(row["method"] for row in rows)

    def place(row: Row) -> Any:
        plain_first = row["control"] != NONE
        values = [row[name] ^ DEFAULTS[name] if SETTINGS[name] is bool else row[name] for name in names]
        return order.index(row["method"]), plain_first, [(value is None, value) for value in values]

    rows = sorted(rows, key=place)
    lines: list[Rows] = []
    for line in grouped(rows, *names).values():
        same = grouped(line, "seed", *axis.along).values()
        several = any(len({run["mask"] for run in runs}) > 1 for runs in same)
        lines += grouped(line, "mask").values() if several else [line]
    return lines


def _labels(lines: list[Rows], axis: Axis) -> list[str]:
    """Return the method of each line and the settings in which it differs from others in the panel.

    How masks are found differs by the method anyway, so it is compared with lines of the same method alone. What is off
    by default is named only where it is on; a change of how masks are found is always named.
    """
    names = [name for name in SETTINGS if name not in (*KEY, "seed", "mask", *axis.along)]
    labels = []
    for line in lines:
        first, words = line[0], [titled(look(line[0]["method"]).label, line[0]["control"])]
        alike = [other for other in lines if other[0]["method"] == first["method"]]
        for name in names:
            others = alike if name in FINDING else lines
            differs = len({other[0][name] for other in others} - {None}) > 1
            if (differs or name in NAMED) and first[name] not in (None, DEFAULTS[name]):
                words.append(_setting(name, first[name]))
        if len({other[0]["mask"] for other in alike}) > 1 and first["mask"] is not None:
            several = len({run["mask"] for run in line}) > 1
            words.append("masks of files" if several else f"mask {str(first['mask'])[:8]}")
        labels.append(printable(", ".join(words)))
    return labels


def _setting(name: str, value: Any) -> str:
    """Return a setting in words.

    >>> _setting("rounds", 60), _setting("weight_decay", 5e-4), _setting("shrink", True), _setting("shrink", False)
    ('60 rounds', 'weight decay 0.0005', 'shrink', 'no shrink')
    """
    words = name.replace("_", " ")
    if isinstance(value, bool):
        return words if value else f"no {words}"
    if name in COUNTED:
        return counted(value, *COUNTED[name])
    return f"{words} {value:g}" if isinstance(value, float) else f"{words} {value}"


def _schedule(rows: Rows) -> str:
    """Return the epochs, if all runs have the same, and the number of seeds, in brackets."""
    epochs, seeds = {row["epochs"] for row in rows}, len({row["seed"] for row in rows})
    words = [counted(epochs.pop(), "epoch")] if len(epochs) == 1 else []
    return f" ({', '.join([*words, counted(seeds, 'seed')])})"


# Panels of lines with bands over seeds, on pages that can be printed

Style = dict[str, Any]  # how a line is drawn: its color, marker and dashes, by the names of Matplotlib


def draw(panels: Panels, axis: Axis) -> Iterator[Canvas]:
    """Draw the panels, page by page; if they are few, the upper end of those with points far below also by itself."""
    styles = _styles(panels)
    few = len(panels) <= MOST_PANELS // 2
    cells = [(title, zoomed) for title in panels for zoomed in (False, True)[: 1 + (few and _crowded(panels[title]))]]
    for start in range(0, len(cells), MOST_PANELS):
        page = cells[start : start + MOST_PANELS]
        columns = min(len(page), 2)
        figure, grid = plots.grid(len(page), columns, "test accuracy (%)")
        for axes, (title, zoomed) in zip(grid, page, strict=True):
            _draw_panel(axes, panels[title], axis, styles, zoomed)
            place, _, schedule = title.rpartition(" (")
            schedule = schedule.replace(" ", "\N{NO-BREAK SPACE}")
            axes.set_title(fill(f"{place}, zoomed" if zoomed else f"{place} ({schedule}", LONGEST_TITLE))
        marks = {str(mark.get_label()): mark for axes in figure.axes for mark in axes.get_legend_handles_labels()[0]}
        shown = [label for label in (*styles, COLLAPSED) if label in marks]
        below = plots.legend(figure, {fill(label, LONGEST_LABEL * columns): marks[label] for label in shown})
        # If the legend is very long, the page is taller.
        lowest = plots.LOWEST * -(-len(page) // columns)
        figure.set_figheight(max(min(figure.get_figheight() + below, plots.TALLEST), lowest + below))
        yield figure


def _crowded(lines: list[Line]) -> bool:
    """Whether lines of several points leave little room for the best of them."""
    points = _points(lines)
    means = [point.mean for point in points]
    return max(means) - min(means) > ZOOM and len({point.x for point in points}) > 2


def _points(lines: list[Line]) -> list[Point]:
    return [point for line in lines for point in line.points]


def _styles(panels: Panels) -> dict[str, Style]:
    """Return how to draw the line of each label: methods in their colors, variants of one in shades, none alike."""
    methods = {line.label: line.method for lines in panels.values() for line in lines}
    order = plots.in_order(methods.values())
    pruned = [label for label, method in methods.items() if method != DENSE]
    variants = plots.shades(pruned) if len({methods[label] for label in pruned}) == 1 < len(pruned) else {}
    styles: dict[str, Style] = {}
    used: dict[str, list[str]] = {}  # markers by color
    for label, method in sorted(methods.items(), key=lambda item: order.index(item[1])):
        _, color, marker = look(method)
        markers = used.setdefault(color, [])
        if marker in markers:
            marker = next((other for other in MARKERS if other not in markers), marker)
        dashes = 0 if label in variants else (len(markers) + (method == DENSE)) % len(DASHES)
        styles[label] = {"color": variants.get(label, color), "marker": marker, "linestyle": DASHES[dashes]}
        markers.append(marker)
    return styles


def _draw_panel(axes: Axes, lines: list[Line], axis: Axis, styles: dict[str, Style], zoomed: bool) -> None:
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
        x = [(axis.position(point.x) or nothing) * aside for point in line.points]
        _draw_line(axes, line, styles[line.label], x)
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


def _draw_line(axes: Axes, line: Line, style: Style, x: list[float]) -> None:
    """Draw means with a band of one standard deviation, a single point with a bar; a cross marks a collapse."""
    low, means, high = ([point.mean + sign * (point.std or 0.0) for point in line.points] for sign in (-1, 0, 1))
    if low != high and len(x) == 1:
        axes.errorbar(x, means, line.points[0].std, color=style["color"], elinewidth=0.9, capsize=2, linestyle="none")
    elif low != high:
        axes.fill_between(x, low, high, color=style["color"], alpha=0.16, linewidth=0)
    axes.plot(x, means, **style, markeredgewidth=0, zorder=3, label=line.label)
    if collapsed := [(place, point.mean) for place, point in zip(x, line.points, strict=True) if point.collapsed]:
        axes.plot(*zip(*collapsed, strict=True), "x", color=plots.ALARM, zorder=4, label=COLLAPSED)
