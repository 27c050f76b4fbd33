"""Figures of trained networks: accuracy against sparsity (1 to 3, 5, 10 to 12), rounds (4, middle) and controls."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from ...lab.experiment.experiment import DENSE, Experiment
from ...lab.experiment.protocols import protocol
from ...lab.experiment.recipes import COMPARED, NETWORKS, SPARSITIES
from ...lab.experiment.styles import Look, look
from ...lab.figures import plots
from ...lab.figures.plots import Axes, Canvas
from ...lab.figures.registry import Figure
from ...lab.figures.sources import COLUMNS, Runs
from ...lab.records.tables import Row, Rows, grouped, one_per_seed, spread
from ...messages import counted
from ...names import CONTROLS, NONE
from ...pruning.methods import METHODS
from ..numbers import ABOVE, ACCURACIES, COST, Reference

OURS, PAPER = "ours", "paper"  # values of the column "source"
RANDOM = "random"  # the baseline of several figures
MULTI_BATCH = (RANDOM, "snip-mb", "grasp-mb", "iter-snip", "force")  # where one batch has too few images of each class
SMOKE_METHODS = (RANDOM, "snip", "iter-snip", "force", "iter-grasp", "magnitude")  # the others are left out
Grid = Mapping[str, tuple[Sequence[float], Iterable[int]]]
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
EARLY = "magnitude"  # after one epoch of dense training
LABELS = {EARLY: "Early pruning"}  # in place of a method's own
ZOOM = 0.15  # how far the zoomed panels reach below our best mean


# Experiments of each scale, and the rows of their runs


def at_scale(experiment: Experiment, scale: str) -> Experiment:
    """Return an experiment of the paper as it is run at a scale: in full, shortened, or on digits."""
    if scale == "paper":
        return experiment
    if scale == "short":
        epochs = SHORT_EPOCHS_OF_DATA.get(experiment.data, SHORT_EPOCHS[experiment.model])
        return replace(experiment, epochs=epochs, norm_scale="ones")  # all short records have these
    small = replace(experiment, model=SMALL[experiment.model], data="digits", epochs=1)
    method = METHODS.get(experiment.method)
    if method and method.rounds > 1:
        return replace(small, rounds=experiment.rounds or SMOKE_ROUNDS)
    if method and method.batches_per_round > 1:
        return replace(small, batches_per_round=experiment.batches_per_round or SMOKE_BATCHES)
    return small


def measured(records: Sequence[Row], *point: str) -> Rows:
    """Return a row for each run. `mean`, `std` and `seeds` are of all runs at the same point of the plot.

    Each seed counts once: of its copies, and its runs in several precisions or shrunk, the first row with an accuracy.
    """
    rows = []
    for group in grouped(records, *point).values():
        runs = one_per_seed(group)
        mean, deviation, number = spread(run["top1"] for run in runs)
        statistics = {"mean": float("nan") if mean is None else mean, "std": deviation, "seeds": number}
        rows += [{"source": OURS} | {name: run[name] for name in (*COLUMNS, *point)} | statistics for run in runs]
    return rows


def references(records: Sequence[Row], accepts: Callable[[Reference], bool]) -> Rows:
    """Return the paper's numbers for the data sets, networks and methods of the records."""
    measured = {(run["data"], run["model"], run["method"]) for run in records}
    return [
        {"source": PAPER, **dict.fromkeys(COLUMNS), **each._asdict(), "mean": each.top1, "std": None}
        for each in ACCURACIES
        if (each.data, each.model, each.method) in measured and accepts(each)
    ]


def beside(accepts: Callable[[Reference], bool], *point: str) -> Callable[[Sequence[Row]], Rows]:
    """Return a function from records to a row for each run, then the paper's numbers for these networks."""
    point = ("data", "model", "method", *point)
    return lambda records: [*measured(records, *point), *references(records, accepts)]


def usual(number: Reference) -> bool:
    """Whether a number of the paper is one with the data set's usual rounds."""
    return number.rounds in (None, 1, protocol(number.data, number.model).rounds)


def by_method(rows: Iterable[Row]) -> dict[str, Rows]:
    """Group the rows by method: dense first, FORCE last, so that its line is drawn on top."""
    groups = grouped(rows, "method")
    return {method: groups[method] for method in plots.in_order(groups)}


# Lines, markers and legends


def draw_line(
    axes: Axes, shown: Look, runs: Rows, column: str, position: Callable[[Any], Any] = lambda value: value
) -> None:
    """Draw means over a column, with a band of one standard deviation; a single seed has no band."""
    points = sorted(grouped(runs, column).items())
    x = [position(value) for value, _ in points]
    firsts = [seeds[0] for _, seeds in points]
    low, means, high = ([100 * (row["mean"] + sign * (row["std"] or 0)) for row in firsts] for sign in (-1, 0, 1))
    if low != high:
        axes.fill_between(x, low, high, color=shown.color, alpha=0.16, linewidth=0)
    axes.plot(x, means, color=shown.color, marker=shown.marker, markeredgewidth=0, zorder=3)


def draw_reference(axes: Axes, row: Row, x: float) -> None:
    """Draw a number of the paper as a hollow marker; an arrow points up from a lower bound."""
    color, y = look(row["method"]).color, 100 * row["mean"]
    axes.plot([x], [y], **plots.hollow(color, look(row["method"]).marker))
    if row["says"] == ABOVE:
        arrow = {
            "arrowstyle": "<-", "color": color, "linewidth": 0.9, "shrinkA": 0, "shrinkB": 3.4, "mutation_scale": 6,
        }  # fmt: skip
        axes.annotate("", (x, y), (0, 11), textcoords="offset points", annotation_clip=True, arrowprops=arrow)


def handles(rows: Rows) -> dict[str, Any]:
    """Return the legend: the methods of the rows, and the paper's markers."""
    entries = {}
    for method in by_method(rows):
        label, color, marker = look(method)
        style = {"marker": "", **DASHED} if method == DENSE else {"marker": marker, "markeredgewidth": 0}
        entries[LABELS.get(method, label)] = plots.handle(color, **style)
    if any(row["source"] == PAPER for row in rows):
        entries["paper"] = plots.handle(plots.GRAY, **plots.hollow(plots.GRAY))
    if any(row.get("says") == ABOVE for row in rows):
        entries["paper: at least"] = plots.handle(plots.GRAY, **plots.hollow(plots.GRAY, r"$\uparrow$"))
    return entries


def schedule(rows: Rows) -> str:
    """Return the epochs, if all runs have the same, and the smallest and largest number of seeds, in brackets."""
    epochs = {row["epochs"] for row in rows if row["source"] == OURS}
    seeds = [row["seeds"] or 0 for row in rows if row["source"] == OURS]
    words = [counted(epochs.pop(), "epoch")] if len(epochs) == 1 else []
    fewest = f"{min(seeds)} to " * (min(seeds) < max(seeds))
    return f" ({', '.join([*words, fewest + counted(max(seeds), 'seed')])})"


# Accuracy against sparsity, of all methods and on all data sets


def compared(
    data: Sequence[str], models: Sequence[str], methods: Sequence[str], grid: Grid = GRID
) -> Callable[[str], list[Experiment]]:
    """Return a function from the scale to its experiments: dense and every method at every sparsity, seed by seed."""

    def experiments(scale: str) -> list[Experiment]:
        sparsities, seeds = grid[scale]
        pairs = list(product(data, models))[-1 if scale == "smoke" else None :]
        shown = [method for method in methods if scale != "smoke" or method in SMOKE_METHODS]
        listed = []
        for seed, (data_set, model) in product(seeds, pairs):
            listed.append(Experiment(model, data_set, DENSE, 0.0, seed))
            for sparsity, method in product(sparsities, shown):
                pretrain = int(method == EARLY)
                listed.append(Experiment(model, data_set, method, sparsity, seed, pretrain=pretrain))
        return [at_scale(experiment, scale) for experiment in listed]

    return experiments


def draw_sparsities(rows: Rows) -> Canvas:
    """Draw two panels for each network, the second zoomed: lines and bands for ours, hollow markers for the paper's."""
    networks = grouped(rows, "data", "model")
    columns = min(len(networks), 2)
    lines = -(-len(networks) // columns)
    figure, grid = plots.panels(2 * lines, columns, 2.35 if columns > 1 else 2.65)
    for number, (pair, network_rows) in enumerate(networks.items()):
        line, column = divmod(number, columns)
        _panel(grid[line][column], network_rows, plots.title(*pair) + schedule(network_rows))
        _panel(grid[lines + line][column], network_rows, plots.title(*pair) + ", zoomed", zoomed=True)
    for panels in grid:
        panels[0].set_ylabel("test accuracy (%)")
        for axes in panels:
            if not axes.has_data():
                axes.set_axis_off()
    plots.legend(figure, handles(rows), columns=5 if columns > 1 else 3)
    return figure


def _panel(axes: Axes, rows: Rows, title: str, zoomed: bool = False) -> None:
    pruned = [row for row in rows if row["method"] != DENSE]
    for row in rows:
        if row["method"] == DENSE:
            axes.axhline(100 * row["mean"], color=look(DENSE).color, **DASHED)
    for method, runs in by_method(row for row in pruned if row["source"] == OURS).items():
        draw_line(axes, look(method), runs, "sparsity", lambda sparsity: 1 - sparsity)
    for row in pruned:
        if row["source"] == PAPER:
            draw_reference(axes, row, 1 - row["sparsity"])
    if pruned:
        plots.density_axis(axes, [row["sparsity"] for row in pruned])
    axes.set_title(title)
    axes.set_ylim(0, 100)
    if zoomed:
        best, top = max(row["mean"] for row in rows if row["source"] == OURS), max(row["mean"] for row in rows)
        axes.set_yticks(range(0, 101, 5))
        axes.set_ylim(100 * (best - ZOOM), min(100 * (top + ZOOM / 10), 100.5))


def _sparsities(
    about: str, data: Sequence[str], models: Sequence[str], methods: Sequence[str], costs: tuple[str, str, str]
) -> Figure:
    return Figure(about, Runs(compared(data, models, methods), beside(usual, "sparsity")), draw_sparsities, costs)


# Accuracy against the number of pruning rounds

ROUNDS = {"smoke": (2, 6), "short": (5, 20, 100, 300), "paper": (2, 5, 10, 20, 50, 100, 200, 300)}
ITERATED = ("force", "iter-snip")
ONE_ROUND = "snip"  # what both of them are with T = 1


def at_high_sparsity(scale: str, variants: Sequence[dict[str, Any]]) -> list[Experiment]:
    """Return the variants of one experiment on CIFAR-10, seed by seed."""
    base = Experiment("vgg19" if scale == "smoke" else "resnet50", "cifar10", sparsity=HIGH_SPARSITY[scale])
    pairs = product(GRID[scale][1], variants)
    return [at_scale(replace(base, seed=seed, **variant), scale) for seed, variant in pairs]


def iterations(rounds: Iterable[int]) -> list[dict[str, Any]]:
    return [{"method": method, "rounds": number} for method, number in product(ITERATED, rounds)]


def iterated(scale: str) -> list[Experiment]:
    """Return FORCE and Iter SNIP with T rounds, SNIP for T = 1, and random masks as a baseline."""
    once = [{"method": method} for method in (RANDOM, ONE_ROUND)]
    return at_high_sparsity(scale, [*once, *iterations(ROUNDS[scale])])


def draw_rounds(rows: Rows) -> Canvas:
    """Draw both methods from their common start T = 1, SNIP; random masks are a horizontal line."""
    figure, [axes] = plots.grid(1, 1, "test accuracy (%)", height=2.7)
    ours, theirs = ([row for row in rows if row["source"] == source] for source in (OURS, PAPER))
    for method in ITERATED:
        draw_line(axes, look(method), [row for row in ours if row["method"] in (ONE_ROUND, method)], "rounds")
    baseline = [row for row in ours if row["method"] == RANDOM]
    for row in baseline:
        axes.axhline(100 * row["mean"], color=look(RANDOM).color, linestyle=":", linewidth=1.1)
    for row in theirs:
        draw_reference(axes, row, row["rounds"])
    counts = [row["rounds"] for row in rows if row["method"] != RANDOM]
    plots.count_axis(axes, counts, "pruning rounds T (1 is SNIP)")
    axes.set_ylim(0, 100)
    first = ours[0]
    where = f"{plots.title(first['data'], first['model'])}, {plots.percent(first['sparsity'])}"
    axes.set_title(where + schedule(ours))
    entries = handles([row for row in rows if row["method"] in ITERATED])
    if baseline:
        entries[look(RANDOM).label] = plots.handle(look(RANDOM).color, "", ":")
    plots.legend(figure, entries, columns=4)
    return figure


# Each method against its masks shuffled or inverted within each layer, and against reinitialized weights

CONTROLLED = ("force", "iter-snip", "hybrid")
LOOKS = {  # of the controls; the method itself has its own
    "shuffle": Look("masks shuffled in each layer", "#000000", "X"),
    "reinitialize": Look("weights reinitialized", "#009E73", "^"),
    "invert": Look("masks of the lowest scores", "#888888", "v"),
}


def controlled(scale: str) -> list[Experiment]:
    """Return each method with and without its controls, seed by seed."""
    smoke = scale == "smoke"
    methods, sparsities = (CONTROLLED[:1], (0.9, 0.98)) if smoke else (CONTROLLED, (0.98, 0.995, 0.999))
    return [
        at_scale(Experiment("vgg19", "cifar10", method, sparsity, seed, control=control), scale)
        for seed, method, sparsity, control in product(GRID[scale][1], methods, sparsities, CONTROLS)
    ]


def control_rows(records: Sequence[Row]) -> Rows:
    """Return a row for each run at a sparsity at which its method has a control; for each run if none has."""
    point = ("data", "model", "method", "sparsity")
    groups = grouped(records, *point).values()
    shown = [run for runs in groups if any(run["control"] != NONE for run in runs) for run in runs]
    return measured(shown or records, *point, "control")


def draw_controls(rows: Rows) -> Canvas:
    """Draw one row of panels for each network, and in each panel a method and its controls."""
    networks = grouped([row for row in rows if row["source"] == OURS], "data", "model")
    methods = list(grouped(rows, "method"))
    figure, grid = plots.panels(len(networks), len(methods), height=2.5)
    for panels, ((data, model), of_network) in zip(grid, networks.items(), strict=True):
        panels[0].set_ylabel(f"{plots.title(data, model)}\ntest accuracy (%)")
        for axes, method in zip(panels, methods, strict=True):
            _draw_method(axes, method, [row for row in of_network if row["method"] == method])
    shown = [look(method) for method in methods]
    shown += [LOOKS[control] for control in LOOKS if any(row["control"] == control for row in rows)]
    entries = {each.label: plots.handle(each.color, each.marker, markeredgewidth=0) for each in shown}
    plots.legend(figure, entries, columns=3)
    return figure


def _draw_method(axes: Axes, method: str, runs: Rows) -> None:
    if not runs:
        axes.set_axis_off()
        return
    sparsities = sorted(grouped(runs, "sparsity"))
    for control, members in sorted(grouped(runs, "control").items(), key=lambda item: item[0] == NONE):
        shown = look(method) if control == NONE else LOOKS[control]
        draw_line(axes, shown, members, "sparsity", sparsities.index)
    axes.set_xticks(range(len(sparsities)), [plots.removed(sparsity) for sparsity in sparsities])
    axes.set_xlabel("weights removed (%)")
    axes.set_ylim(0, 100)
    axes.set_title(look(method).label + schedule(runs))


FIGURES = {
    "cifar10": _sparsities(
        "Accuracy against sparsity on CIFAR-10, ResNet-50 and VGG-19, all methods; below it the upper end, zoomed.",
        ["cifar10"], NETWORKS, COMPARED, ("11 s", "2.4 h", "55 h"),
    ),
    "cifar100": _sparsities(
        "Accuracy against sparsity on CIFAR-100, ResNet-50 and VGG-19, with the upper end zoomed.",
        ["cifar100"], NETWORKS, MULTI_BATCH, ("10 s", "1.7 h", "39 h"),
    ),
    "tiny-imagenet": _sparsities(
        "Accuracy against sparsity on Tiny-ImageNet, ResNet-50 and VGG-19, with the upper end zoomed.",
        ["tiny-imagenet"], NETWORKS, MULTI_BATCH, ("10 s", "4.2 h", "298 h"),
    ),
    "mobilenet": _sparsities(
        "Accuracy against sparsity of MobileNet-v2 on CIFAR-10: a network with a tenth of the weights.",
        ["cifar10"], ["mobilenet-v2"], COMPARED, ("11 s", "1.1 h", "27 h"),
    ),
    "early-pruning": _sparsities(
        "Magnitude pruning after one epoch of training, against pruning at initialization, on CIFAR-10.",
        ["cifar10"], NETWORKS, (*MULTI_BATCH, EARLY), ("11 s", "2 h", "47 h"),
    ),
    "iter-grasp": _sparsities(
        "Iterative GRASP against GRASP-MB, Iter SNIP and FORCE on CIFAR-10, CIFAR-100 and Tiny-ImageNet.",
        ["cifar10", "cifar100", "tiny-imagenet"], NETWORKS, (*MULTI_BATCH, "iter-grasp"), ("11 s", "9.1 h", "450 h"),
    ),
    "accuracy-vs-rounds": Figure(
        "Accuracy at 99.5 % sparsity against the number of pruning rounds T, for FORCE and Iter SNIP.",
        Runs(
            iterated, beside(lambda number: number.where == COST and number.batches_per_round == 1, "rounds"),
            free=("rounds", "seed"),
        ), draw_rounds, ("10 s", "35 min", "16 h"),
    ),
    "controls": Figure(
        "Methods against their controls on CIFAR-10: masks shuffled or inverted in each layer, weights reinitialized.",
        Runs(controlled, control_rows, columns=("source", *COLUMNS, "control", "mean", "std", "seeds")), draw_controls,
        ("11 s", "50 min", "7.4 h"),
    ),
}  # fmt: skip
