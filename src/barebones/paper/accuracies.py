"""Accuracies: what the figures of trained networks share, from the experiments of each scale to lines and markers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..lab.experiment.experiment import DENSE, Experiment
from ..lab.experiment.recipes import SPARSITIES
from ..lab.experiment.styles import Look, look, looks
from ..lab.figures import plots
from ..lab.figures.sources import COLUMNS
from ..lab.records.statistics import over_seeds
from ..lab.records.tables import Row, Rows, grouped
from ..messages import counted
from ..pruning.methods import METHODS
from .numbers import ABOVE, ACCURACIES, Reference

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS, PAPER = "ours", "paper"  # values of the column "source"
RANDOM = "random"  # the baseline of several figures
MULTI_BATCH = (RANDOM, "snip-mb", "grasp-mb", "iter-snip", "force")  # where one batch has too few images of each class
SMOKE_METHODS = (RANDOM, "snip", "iter-snip", "force", "iter-grasp", "magnitude")  # the others are left out
GRID = {  # sparsities and seeds by scale
    "smoke": ((0.9, 0.98), range(1)),
    "short": ((0.95, 0.99, 0.995, 0.999), range(2)),
    "paper": ((*SPARSITIES, 0.9999), range(3)),
}
HIGH_SPARSITY = {"smoke": 0.98, "short": 0.995, "paper": 0.995}  # of the figures at one sparsity
SHORT_EPOCHS = {"resnet50": 30, "vgg19": 40, "mobilenet-v2": 30}
SHORT_EPOCHS_OF_DATA = {"tiny-imagenet": 10, "imagenet": 10}  # where an epoch is long
SMALL = {"resnet50": "small-resnet", "vgg19": "small-vgg", "mobilenet-v2": "small-vgg"}
SMOKE_ROUNDS, SMOKE_BATCHES = 4, 3
DASHED: dict[str, Any] = {"linestyle": (0, (4, 2)), "linewidth": 0.9}  # the dense network


def at_scale(experiment: Experiment, scale: str) -> Experiment:
    """Return an experiment of the paper as it is run at a scale: in full, shortened, or on digits."""
    if scale == "paper":
        return experiment
    if scale == "short":
        epochs = SHORT_EPOCHS_OF_DATA.get(experiment.data, SHORT_EPOCHS[experiment.model])
        return replace(experiment, epochs=epochs, norm_scale="ones")  # all short records have these
    small = replace(experiment, model=SMALL[experiment.model], data="digits", epochs=1)
    if experiment.method in METHODS and METHODS[experiment.method].rounds > 1:
        return replace(small, rounds=experiment.rounds or SMOKE_ROUNDS)
    if experiment.method in METHODS and METHODS[experiment.method].batches_per_round > 1:
        return replace(small, batches_per_round=experiment.batches_per_round or SMOKE_BATCHES)
    return small


def last_at_smoke(scale: str, names: Sequence[str]) -> Sequence[str]:
    """Return all names, or only the last one at smoke scale."""
    return names[-1:] if scale == "smoke" else names


def fewer_at_smoke(scale: str, methods: Sequence[str]) -> Sequence[str]:
    """Return all methods, or only `SMOKE_METHODS` of them at smoke scale."""
    return [method for method in methods if scale != "smoke" or method in SMOKE_METHODS]


def measured(records: Sequence[Row], *point: str) -> Rows:
    """Return a row for each run. `mean`, `std` and `seeds` are of all runs at the same point of the plot.

    Each seed counts once: of its copies, and its runs in several precisions or shrunk, the first row with an accuracy.
    """
    rows = []
    for group in grouped(records, *point).values():
        tested = [run for run in group if run["top1"] is not None] or group
        runs = [copies[0] for copies in grouped(tested, "seed").values()]
        mean, deviation, _ = over_seeds((run["seed"], run["top1"]) for run in runs)
        statistics = {"mean": float("nan") if mean is None else mean, "std": deviation, "seeds": len(runs)}
        rows += [{"source": OURS} | {name: run[name] for name in (*COLUMNS, *point)} | statistics for run in runs]
    return rows


def references(records: Sequence[Row], accepts: Callable[[Reference], bool]) -> Rows:
    """Return the paper's numbers for the data sets, networks and methods of the records."""
    measured = {(run["data"], run["model"], run["method"]) for run in records}
    return [
        {"source": PAPER}
        | dict.fromkeys(COLUMNS)
        | {name: value for name, value in number._asdict().items() if name in COLUMNS}
        | {
            "prune_seconds": number.seconds,
            "mean": number.top1,
            "std": None,
            "says": number.says,
            "where": number.where,
        }
        for number in ACCURACIES
        if (number.data, number.model, number.method) in measured and accepts(number)
    ]


def by_method(rows: Iterable[Row]) -> dict[str, Rows]:
    """Group the rows by method: dense first, FORCE last, so that its line is drawn on top."""
    groups = grouped(rows, "method")
    order = dict.fromkeys([DENSE, *reversed(looks()), *groups])
    return {method: groups[method] for method in order if method in groups}


def draw_line(
    axes: Axes, shown: Look, runs: Rows, column: str, position: Callable[[Any], Any] = lambda value: value
) -> None:
    """Draw means over a column, with a band of one standard deviation; a single seed has no band."""
    points = sorted(grouped(runs, column).items())
    x = [position(value) for value, _ in points]
    means = [100 * seeds[0]["mean"] for _, seeds in points]
    deviations = [100 * (seeds[0]["std"] or 0) for _, seeds in points]
    colour = shown.colour
    if any(deviations):
        low, high = ([m + sign * d for m, d in zip(means, deviations, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0)
    axes.plot(x, means, color=colour, marker=shown.marker, markeredgewidth=0, zorder=3)


def draw_reference(axes: Axes, row: Row, x: float) -> None:
    """Draw a number of the paper as a hollow marker; an arrow points up from a lower bound."""
    colour, y = look(row["method"]).colour, 100 * row["mean"]
    axes.plot([x], [y], **plots.hollow(colour, look(row["method"]).marker))
    if row["says"] == ABOVE:
        arrow = {
            "arrowstyle": "<-", "color": colour, "linewidth": 0.9, "shrinkA": 0, "shrinkB": 3.4, "mutation_scale": 6,
        }  # fmt: skip
        axes.annotate("", (x, y), (0, 11), textcoords="offset points", annotation_clip=True, arrowprops=arrow)


def handles(rows: Rows, labels: Mapping[str, str] = {}) -> dict[str, Any]:
    """Return the legend: the methods of the rows, under these labels or their own, and the paper's markers."""
    entries = {}
    for method in by_method(rows):
        changes = {"marker": "", **DASHED} if method == DENSE else {"markeredgewidth": 0}
        entries[labels.get(method, look(method).label)] = plots.handle(method, **changes)
    if any(row["source"] == PAPER for row in rows):
        entries["paper"] = plots.handle(DENSE, **plots.hollow(plots.GREY))
    if any(row.get("says") == ABOVE for row in rows):
        entries["paper: at least"] = plots.handle(DENSE, **plots.hollow(plots.GREY, r"$\uparrow$"))
    return entries


def schedule(rows: Rows) -> str:
    """Return the epochs, if all runs have the same, and the smallest and largest number of seeds, in brackets."""
    epochs = {row["epochs"] for row in rows if row["source"] == OURS}
    seeds = [row["seeds"] or 0 for row in rows if row["source"] == OURS]
    words = [counted(epochs.pop(), "epoch")] if len(epochs) == 1 else []
    fewest = f"{min(seeds)} to " * (min(seeds) < max(seeds))
    return f" ({', '.join([*words, fewest + counted(max(seeds), 'seed')])})"
