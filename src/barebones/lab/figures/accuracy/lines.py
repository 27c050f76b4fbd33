"""Lines: any runs, grouped by what differs between them into panels, lines and points."""

from dataclasses import fields
from typing import Any, NamedTuple

from ....messages import counted, printable
from ....pruning.controls import NONE
from ...experiment.experiment import DENSE, FINDING, Experiment, with_role
from ...experiment.styles import look, looks, titled
from ...records.records import KEY, SETTINGS
from ...records.statistics import over_seeds
from ...records.tables import Row, Rows, grouped
from .. import plots
from .axes import Axis

DEFAULTS = {option.name: option.default for option in fields(Experiment)}
NAMED = with_role("named")  # changes of how masks are found, which are always named
COUNTED = {"rounds": ("round", "s"), "batches_per_round": ("batch", "es"), "epochs": ("epoch", "s")}


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
    """Return the rows with their panel, line and statistics; and the lines of each panel.

    A panel has one data set and one network and, unless lines go along the sparsity, one sparsity. Each seed counts
    once: of its copies the first is used.
    """
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
                seeds = [copies[0] for copies in grouped(runs, "seed").values()]
                x = over_seeds((run["seed"], run[axis.column]) for run in seeds).mean or 0.0
                mean, std, number = over_seeds((run["seed"], run["top1"]) for run in seeds)
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

    Masks of files differ from seed to seed, so they make lines of their own only where one seed has several.
    """
    names = [name for name in SETTINGS if name not in ("data", "model", "seed", "mask", *axis.along)]
    order = list(dict.fromkeys([DENSE, *reversed(looks()), *(row["method"] for row in rows)]))

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
