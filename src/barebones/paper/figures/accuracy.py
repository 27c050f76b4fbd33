"""Accuracy against sparsity, and against the number of rounds: what is run, its rows, and how they are drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from ...lab import plots as style
from ...lab.experiment import DENSE, Experiment
from ...lab.protocols import protocol
from ...lab.recipes import COMPARED, NETWORKS, SPARSITIES
from ...lab.tidy import grouped, spread
from .. import numbers as paper
from ..numbers import ABOVE, Reference
from .sources import COLUMNS, Row, Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

MULTI_BATCH = ("random", "snip-mb", "grasp-mb", "iter-snip", "force")  # where one batch holds too few of each class
EARLY = "magnitude"
SHORT_EPOCHS = {"resnet50": 30, "vgg19": 40, "mobilenet-v2": 30}
SHORT_DATA = {"tiny-imagenet": 10, "imagenet": 10}  # epochs, where an epoch is long
SMALL = {"resnet50": "small-resnet", "vgg19": "small-vgg", "mobilenet-v2": "small-vgg"}
SMOKE_METHODS = ("random", "snip", "iter-snip", "force", "iter-grasp", EARLY)  # of those of a figure
SMOKE_ROUNDS, SMOKE_BATCHES = 4, 3
GRID = {  # sparsities and seeds of each scale
    "smoke": ((0.9, 0.98), range(1)),
    "short": ((0.95, 0.99, 0.995, 0.999), range(2)),
    "paper": ((*SPARSITIES, 0.9999), range(3)),
}
ROUNDS = {"smoke": (2, 6), "short": (5, 20, 100, 300), "paper": (2, 5, 10, 20, 50, 100, 200, 300)}
AT = {"smoke": 0.98, "short": 0.995, "paper": 0.995}
ZOOM = 0.15  # how far below the best mean the zoomed panels go

Pair = tuple[str, str]  # data set and network


def cifar10(scale: str) -> list[Experiment]:
    """All methods on CIFAR-10."""
    return compared(scale, product(["cifar10"], _one(scale, NETWORKS)), COMPARED)


def cifar100(scale: str) -> list[Experiment]:
    """SNIP and GRASP with as many batches as the others."""
    return compared(scale, product(["cifar100"], _one(scale, NETWORKS)), MULTI_BATCH)


def tiny_imagenet(scale: str) -> list[Experiment]:
    """As CIFAR-100."""
    return compared(scale, product(["tiny-imagenet"], _one(scale, NETWORKS)), MULTI_BATCH)


def mobilenet(scale: str) -> list[Experiment]:
    """All methods on MobileNet-v2."""
    return compared(scale, [("cifar10", "mobilenet-v2")], COMPARED)


def early_pruning(scale: str) -> list[Experiment]:
    """One epoch of dense training, then magnitude; beside it what prunes at initialization."""
    return compared(scale, product(["cifar10"], _one(scale, NETWORKS)), (*MULTI_BATCH, EARLY))


def iter_grasp(scale: str) -> list[Experiment]:
    """Iterative GRASP on three data sets."""
    pairs = product(_one(scale, ("cifar10", "cifar100", "tiny-imagenet")), _one(scale, NETWORKS))
    return compared(scale, pairs, (*MULTI_BATCH, "iter-grasp"))


def vs_rounds(scale: str) -> list[Experiment]:
    """FORCE and Iter SNIP with T rounds, SNIP for T = 1, and random masks to compare with."""
    base = Experiment("vgg19" if scale == "smoke" else "resnet50", "cifar10", sparsity=AT[scale])
    found = []
    for seed in GRID[scale][1]:
        found += [replace(base, method=method, seed=seed) for method in ("random", "snip")]
        for method, rounds in product(("force", "iter-snip"), ROUNDS[scale]):
            found.append(replace(base, method=method, rounds=rounds, seed=seed))
    return [fitted(one, scale) for one in found]


def compared(scale: str, pairs: Iterable[Pair], methods: Sequence[str]) -> list[Experiment]:
    """Dense and every method at every sparsity; one whole seed comes after the other."""
    sparsities, seeds = GRID[scale]
    if scale == "smoke":
        methods = [method for method in methods if method in SMOKE_METHODS]
    found = []
    for seed, (data, model) in product(seeds, list(pairs)):
        found.append(Experiment(model, data, DENSE, 0.0, seed))
        for sparsity, method in product(sparsities, methods):
            found.append(Experiment(model, data, method, sparsity, seed, pretrain=int(method == EARLY)))
    return [fitted(one, scale) for one in found]


def fitted(experiment: Experiment, scale: str) -> Experiment:
    """An experiment of the paper as it is run at a scale: whole, shortened, or on digits with a small network."""
    if scale == "paper":
        return experiment
    if scale == "short":
        epochs = SHORT_DATA.get(experiment.data, SHORT_EPOCHS[experiment.model])
        return replace(experiment, epochs=epochs)
    small = replace(experiment, model=SMALL[experiment.model], data="digits", epochs=1)
    if experiment.method in ("force", "iter-snip", "iter-grasp"):
        return replace(small, rounds=experiment.rounds or SMOKE_ROUNDS)
    if experiment.method.endswith("-mb"):
        return replace(small, batches=experiment.batches or SMOKE_BATCHES)
    return small


def _one(scale: str, names: Sequence[str]) -> Sequence[str]:
    """All of them; the last at smoke scale."""
    return names[-1:] if scale == "smoke" else names


OURS, PAPER = "ours", "paper"


def rows(records: Sequence[Row]) -> Rows:
    """A row for each run, with the mean and deviation of its point; then the paper's numbers for these networks."""
    return [*measured(records, "data", "model", "method", "sparsity"), *references(records, _drawn)]


def rows_vs_rounds(records: Sequence[Row]) -> Rows:
    """The same by rounds."""
    own = measured(records, "data", "model", "method", "rounds")
    return [*own, *references(records, lambda r: r.where == paper.COST and r.batches == 1 and r.method != "grasp")]


def _drawn(reference: Reference) -> bool:
    """Whether it belongs to the accuracy-sparsity plots: made with the data set's own number of rounds."""
    return reference.rounds in (None, 1, protocol(reference.data, reference.model).rounds)


def measured(records: Sequence[Row], *point: str) -> Rows:
    """The runs as rows, one for each seed; `mean`, `std` and `seeds` are of those that share a point of the plot.

    Of several runs of one seed, copies or those of another precision, it is the first that has an accuracy.
    """
    found = []
    for group in grouped(records, *point).values():
        some = [run for run in group if run["top1"] is not None] or group
        runs = [same[0] for same in grouped(some, "seed").values()]
        mean, std = spread(run["top1"] for run in runs)
        about = {"mean": mean, "std": std if len(runs) > 1 else None, "seeds": len(runs)}
        found += [{"source": OURS} | {name: run[name] for name in COLUMNS} | about for run in runs]
    return found


def references(records: Sequence[Row], wanted: Callable[[Reference], bool]) -> Rows:
    """The paper's numbers for the data sets, networks and methods that are there."""
    there = {(run["data"], run["model"], run["method"]) for run in records}
    return [
        {"source": PAPER}
        | dict.fromkeys(COLUMNS)
        | {name: value for name, value in one._asdict().items() if name in COLUMNS}
        | {"prune_seconds": one.seconds, "mean": one.top1, "std": None, "says": one.says, "where": one.where}
        for one in paper.ACCURACIES
        if (one.data, one.model, one.method) in there and wanted(one)
    ]


def draw(found: Rows) -> Canvas:
    """A panel for each network, and one of its upper end: lines and bands of ours, hollow marks of the paper's."""
    pairs = list(dict.fromkeys((row["data"], row["model"]) for row in found))
    columns = min(len(pairs), 2)
    lines = -(-len(pairs) // columns)
    figure, grid = style.panels(2 * lines, columns, 2.35 if columns > 1 else 2.65)
    for number, pair in enumerate(pairs):
        own = [row for row in found if (row["data"], row["model"]) == pair]
        line, column = divmod(number, columns)
        _panel(grid[line][column], own, style.title(*pair) + _schedule(own))
        _zoom(grid[lines + line][column], own, style.title(*pair) + ", zoomed")
    for row in grid:
        row[0].set_ylabel("test accuracy (%)")
        for axes in row[len(pairs) :]:
            axes.set_axis_off()
    style.legend(figure, _handles(found), columns=5 if columns > 1 else 3)
    return figure


def _schedule(own: Rows) -> str:
    """Epochs and seeds, where all have the same."""
    epochs = {row["epochs"] for row in own if row["source"] == OURS}
    seeds = max(row["seeds"] or 0 for row in own if row["source"] == OURS)
    words = [f"{epochs.pop()} epochs"] if len(epochs) == 1 else []
    return f" ({', '.join([*words, f'{seeds} seed' + 's' * (seeds != 1)])})".replace("(1 epochs", "(1 epoch")


def _panel(axes: Axes, own: Rows, title: str) -> None:
    pruned = [row for row in own if row["method"] != DENSE]
    for row in own:
        if row["method"] == DENSE:
            axes.axhline(100 * row["mean"], color=style.colour(DENSE), linestyle=(0, (4, 2)), linewidth=0.9)
    for method, runs in by_method(row for row in pruned if row["source"] == OURS).items():
        line(axes, method, runs, "sparsity", lambda sparsity: 1 - sparsity)
    for row in pruned:
        if row["source"] == PAPER:
            mark(axes, row, 1 - row["sparsity"])
    if pruned:
        style.density_axis(axes, [row["sparsity"] for row in pruned])
    axes.set_ylim(0, 100)
    axes.set_title(title)


def _zoom(axes: Axes, own: Rows, title: str) -> None:
    _panel(axes, own, title)
    top = max(row["mean"] for row in own if row["source"] == OURS)
    axes.set_ylim(100 * (top - ZOOM), min(100 * (top + ZOOM / 10), 100.5))
    style.steps(axes.yaxis, 5)


def by_method(found: Iterable[Row]) -> dict[str, Rows]:
    """The rows of each method, in the order of the names."""
    groups = grouped(found, "method")
    return {method: groups[method] for method in style.NAMES if method in groups}


def line(axes: Axes, method: str, runs: Rows, along: str, place: Callable[[Any], Any] = lambda x: x) -> None:
    """Means with a band of one standard deviation; a single seed has none."""
    points = sorted(grouped(runs, along).items())
    x = [place(value) for value, _ in points]
    mean = [100 * own[0]["mean"] for _, own in points]
    std = [100 * (own[0]["std"] or 0) for _, own in points]
    ink = style.colour(method)
    if any(std):
        low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=ink, alpha=0.16, linewidth=0)
    axes.plot(x, mean, color=ink, marker=style.mark(method), markeredgewidth=0, zorder=3)


def mark(axes: Axes, row: Row, x: float) -> None:
    """A number of the paper's: hollow; from a lower bound an arrow points up."""
    ink, y = style.colour(row["method"]), 100 * row["mean"]
    axes.plot([x], [y], **style.hollow(ink, style.mark(row["method"])))
    if row["says"] == ABOVE:
        arrow = {"arrowstyle": "<-", "color": ink, "linewidth": 0.9, "shrinkA": 0, "shrinkB": 3.4, "mutation_scale": 6}
        axes.annotate("", (x, y), (0, 11), textcoords="offset points", annotation_clip=True, arrowprops=arrow)


def _handles(found: Rows) -> dict[str, Any]:
    handles = {style.NAMES[method]: style.handle(method, markeredgewidth=0) for method in by_method(found)}
    if "Dense" in handles:
        handles["Dense"] = style.handle(DENSE, marker="", linestyle=(0, (4, 2)), linewidth=0.9)
    if any(row["source"] == PAPER for row in found):
        handles["paper"] = style.handle(DENSE, **style.hollow(style.GREY))
    if any(row.get("says") == ABOVE for row in found):
        handles["paper: at least"] = style.handle(DENSE, **style.hollow(style.GREY, r"$\uparrow$"))
    return handles


def draw_vs_rounds(found: Rows) -> Canvas:
    """Both methods from SNIP, their common T = 1, on; random masks as a line across."""
    figure, [[axes]] = style.panels(1, 1, height=2.7)
    ours, theirs = ([row for row in found if row["source"] == source] for source in (OURS, PAPER))
    start = [row for row in ours if row["method"] == "snip"]
    for method in ("force", "iter-snip"):
        line(axes, method, [*start, *(row for row in ours if row["method"] == method)], "rounds")
    for row in ours:
        if row["method"] == "random":
            axes.axhline(100 * row["mean"], color=style.colour("random"), linestyle=":", linewidth=1.1)
    for row in theirs:
        mark(axes, row, row["rounds"])
    first = ours[0]
    style.count_axis(
        axes, [row["rounds"] for row in found if row["method"] != "random"], "pruning rounds T (1 is SNIP)"
    )
    axes.set_ylim(0, 100)
    axes.set_ylabel("test accuracy (%)")
    axes.set_title(f"{style.title(first['data'], first['model'])}, {style.percent(first['sparsity'])}{_schedule(ours)}")
    handles = _handles([row for row in found if row["method"] in ("force", "iter-snip")])
    if any(row["method"] == "random" for row in ours):
        handles["Random"] = style.handle("random", marker="", linestyle=":")
    style.legend(figure, handles, columns=4)
    return figure
