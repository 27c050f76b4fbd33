"""Figures 4 (left), 6 and 7: the FORCE saliency that T rounds reach, and that of the sparsified network."""

from collections.abc import Iterator, Mapping
from itertools import islice, product
from math import log, nan
from operator import itemgetter
from statistics import correlation, fmean
from typing import Any

from ...data import Batch
from ...lab.experiment.styles import look
from ...lab.figures import plots
from ...lab.figures.plots import Axes, Canvas
from ...lab.figures.registry import Figure
from ...lab.figures.sources import Analysis, Settings
from ...lab.records.tables import Row, Rows, grouped
from ...lab.run.network import Network, pruned
from ...lab.run.options import RunOptions
from ...pruning.saliency import saliency
from .layers import CIFAR10, DIGITS, experiment_on, identified, networks

EVALUATION_SEED = 10_000  # masks are compared on batches of this seed: other batches of the same training images


def evaluation_batches(network: Network, count: int) -> list[Batch]:
    """Return the batches on which all masks of a network are compared."""
    size, seed = network.experiment.plan().batch_size, network.experiment.seed
    return list(islice(network.data.train.epoch(size, EVALUATION_SEED, seed, shuffle=True, augment=True), count))


# The saliency of the pruned network against the number of rounds

METHODS = ["force", "iter-snip"]
ROUNDS: dict[str, Settings] = {
    "smoke": {
        "pairs": DIGITS, "seeds": [0], "methods": METHODS, "batches": 4,
        "sparsities": [0.8, 0.9, 0.96], "rounds": [1, 3, 10],
    },
    "short": {
        "pairs": CIFAR10, "seeds": [0], "methods": METHODS, "batches": 10,
        "sparsities": [0.9, 0.98, 0.99, 0.995], "rounds": [1, 2, 5, 20, 60, 300],
    },
    "paper": {
        "pairs": CIFAR10, "seeds": [0, 1, 2], "methods": METHODS, "batches": 30,
        "sparsities": [0.9, 0.95, 0.98, 0.99, 0.995, 0.999], "rounds": [1, 2, 5, 10, 20, 50, 100, 200, 300],
    },
}  # fmt: skip


def over_rounds(settings: Settings, options: RunOptions) -> Iterator[Row]:
    """Compute S(theta, c) for each T, sparsity and method on the same batches; T = 1 is SNIP for both methods."""
    for network in networks(settings, options):
        batches = evaluation_batches(network, settings["batches"])
        for sparsity, method, rounds in product(settings["sparsities"], settings["methods"], settings["rounds"]):
            experiment = experiment_on(network, method, sparsity, rounds=rounds)
            result = pruned(network, experiment, options)
            reached = saliency(network.model, result.masks, batches)
            found = {"rounds": rounds, "saliency": reached, "collapsed": bool(result.collapsed)}
            yield identified(experiment) | found


def relative(rows: Rows) -> Rows:
    """Add the saliency relative to that of T = 1 with the same weights; it is empty where the latter is 0."""
    key = itemgetter("data", "model", "method", "sparsity", "seed")
    first = {key(row): row["saliency"] for row in rows if row["rounds"] == 1}
    shares = [row["saliency"] / start if (start := first.get(key(row))) else None for row in rows]
    return [row | {"relative": share} for row, share in zip(rows, shares, strict=True)]


def draw_rounds(rows: Rows) -> Canvas:
    """Draw a panel for each network and method: S(T) on logarithmic axes, with a shade for each sparsity.

    Lines are means over the seeds whose masks let a signal pass. The others have S = 0, which such an axis does not
    have: where there are any, there is a cross at the bottom.
    """
    runs = grouped(rows, "data", "model", "method")
    columns = len(grouped(rows, "method"))
    sparsities = sorted(grouped(rows, "sparsity"))
    figure, panels = plots.grid(len(runs), columns, "saliency S of the pruned network", height=2.6)
    colors = plots.shades(sparsities)
    cut = sorted({row["sparsity"] for row in rows if not row["saliency"]})
    heights = {sparsity: 0.04 + min(0.05, 0.2 / len(cut)) * place for place, sparsity in enumerate(cut)}
    drawn: list[float] = []
    for axes, ((data, model, method), masks) in zip(panels, runs.items(), strict=True):
        for sparsity, group in sorted(grouped(masks, "sparsity").items()):
            values = {t: [row["saliency"] for row in seeds] for t, seeds in sorted(grouped(group, "rounds").items())}
            means = [fmean(filter(None, seeds)) if any(seeds) else nan for seeds in values.values()]
            axes.plot(list(values), means, color=colors[sparsity], marker="o")
            drawn += [mean for mean in means if mean > 0]
            if some := [t for t, seeds in values.items() if not all(seeds)]:
                axes.plot(
                    some, [heights[sparsity]] * len(some), transform=axes.get_xaxis_transform(),
                    color=colors[sparsity], marker="x", linestyle="none", markersize=5, markeredgewidth=1.4,
                )  # fmt: skip
        plots.count_axis(axes, grouped(rows, "rounds"), "pruning rounds T (1 is SNIP)")
        axes.set_title(f"{look(method).label}: {plots.title(data, model)}")
    low, high = min(drawn, default=1.0), max(drawn, default=1.0)
    margin = max(1.15, (high / low) ** 0.04)  # so that no marker is clipped
    low, high = low / margin, high * margin
    room = 1.5 * max(heights.values(), default=0)
    bottom = high * (low / high) ** (1 / (1 - room))  # so that no line crosses the crosses
    for axes in panels:
        plots.log_axis(axes.yaxis, bottom, high)
        axes.yaxis.minorticks_off()
        axes.set_yticks([tick for tick in axes.get_yticks() if low < tick < high])
    handles = {f"{plots.percent(s)} removed": plots.handle(colors[s], "o") for s in sparsities}
    if cut:
        handles["disconnected with at least one seed: S = 0"] = plots.handle(plots.GRAY, "x", "none", markersize=5)
    plots.legend(figure, handles, columns=6)
    return figure


# The saliency of the sparsified network against that of the pruned one

SCATTER: dict[str, Settings] = {
    "smoke": {
        "pairs": DIGITS, "seeds": [0], "batches": 4, "rounds": 5,
        "sparsities": [0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99],
    },
    "short": {
        "pairs": CIFAR10[:1], "seeds": [0], "batches": 10, "rounds": 20,
        "sparsities": [0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999],
    },
    "paper": {
        "pairs": CIFAR10, "seeds": [0, 1, 2], "batches": 30, "rounds": 60,
        "sparsities": [0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995],
    },
}  # fmt: skip
OVER = {"pruned": "kept", "sparsified": "all"}  # the weights over which the saliency is summed


def both_saliencies(settings: Settings, options: RunOptions) -> Iterator[Row]:
    for network in networks(settings, options):
        batches = evaluation_batches(network, settings["batches"])
        for sparsity in settings["sparsities"]:
            experiment = experiment_on(network, "force", sparsity, rounds=settings["rounds"])
            masks = pruned(network, experiment, options).masks
            both = {name: saliency(network.model, masks, batches, over=over) for name, over in OVER.items()}
            yield identified(experiment) | {"rounds": settings["rounds"], **both}


def draw_scatter(rows: Rows) -> Canvas:
    """Draw a panel for each network, and in it each mask as a dot, colored by its sparsity."""
    networks = grouped(rows, "data", "model")
    figure, panels = plots.grid(len(networks), len(networks), "saliency S of the sparsified network", height=2.9)
    colors = plots.shades(sorted(grouped(rows, "sparsity")))
    for axes, ((data, model), masks) in zip(panels, networks.items(), strict=True):
        _draw_masks(axes, masks, colors)
        axes.set_title(plots.title(data, model))
    handles = [plots.handle(color, "o", "none", markersize=4.5, markeredgewidth=0) for color in colors.values()]
    labels = [plots.percent(sparsity) for sparsity in colors]
    panels[-1].legend(
        handles, labels, title="weights removed", title_fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5),
        handlelength=1,
    )  # fmt: skip
    return figure


def _draw_masks(axes: Axes, rows: Rows, colors: Mapping[float, Any]) -> None:
    """Draw the masks of one network, and print the correlations of the logarithms: of all, and within a sparsity."""
    positive = [row for row in rows if row["pruned"] > 0 and row["sparsified"] > 0]
    for sparsity, masks in sorted(grouped(positive, "sparsity").items()):
        x, y = [row["pruned"] for row in masks], [row["sparsified"] for row in masks]
        axes.plot(x, y, "o", color=colors[sparsity], markersize=4.5, markeredgewidth=0)
    values = [value for row in positive for value in (row["pruned"], row["sparsified"])] or [1.0]
    ends = [min(values) / 1.3, max(values) * 1.3]
    axes.plot(ends, ends, color=plots.GRAY, linewidth=0.6, linestyle="--", zorder=1)
    axes.annotate("equal", (ends[1], ends[1]), (-9, -1), textcoords="offset points", ha="right", color=plots.GRAY)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.set_xlabel("saliency S of the pruned network")
    notes = [f"{len(positive)} masks of {look('force').label}"]
    if len(positive) < len(rows):
        notes.append(f"{len(rows) - len(positive)} more with S = 0")
    for words, pairs in (("of logs", [_logs(positive)]), ("within a sparsity", _within(positive))):
        x, y = ([value for pair in pairs for value in pair[axis]] for axis in (0, 1))
        if len(x) > 2 and min(len(set(x)), len(set(y))) > 1:
            notes.append(f"r = {correlation(x, y):.3f} ({words})")
    axes.text(0.97, 0.05, "\n".join(notes), transform=axes.transAxes, ha="right", va="bottom")


def _logs(rows: Rows) -> tuple[list[float], list[float]]:
    return [log(row["pruned"]) for row in rows], [log(row["sparsified"]) for row in rows]


def _within(rows: Rows) -> list[tuple[list[float], list[float]]]:
    """Return, for each sparsity with several masks, by how much the logarithms differ from their means."""
    groups = [_logs(masks) for masks in grouped(rows, "sparsity").values() if len(masks) > 1]
    return [([a - fmean(x) for a in x], [b - fmean(y) for b in y]) for x, y in groups]


FIGURES = {
    "saliency-scatter": Figure(
        "Saliency of the sparsified against that of the pruned network, over masks of many sparsities.",
        Analysis(both_saliencies, SCATTER, ("data", "model", "sparsity", "pruned", "sparsified")),
        draw_scatter, ("5 s", "30 s", "5 min"),
    ),
    "saliency-vs-rounds": Figure(
        "FORCE saliency reached with T rounds, on the same batches, for each sparsity; T = 1 is SNIP.",
        Analysis(over_rounds, ROUNDS, ("data", "model", "method", "sparsity", "rounds", "saliency"), relative),
        draw_rounds, ("10 s", "4 min", "48 min"),
    ),
}  # fmt: skip
