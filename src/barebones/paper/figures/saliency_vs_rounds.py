"""Figures 4 (left) and 6: the FORCE saliency S(theta, c) that T rounds reach."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import nan
from statistics import fmean
from typing import TYPE_CHECKING

from ...lab.experiment.styles import look
from ...lab.figures import plots
from ...lab.figures.analyses import evaluation_batches, experiment_on, identified, networks, pruned
from ...lab.figures.registry import Figure
from ...lab.figures.sources import Analysis, Settings
from ...lab.records.tables import Row, Rows, grouped
from ...lab.run.options import RunOptions
from ...pruning.saliency import saliency

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

METHODS = ["force", "iter-snip"]
SETTINGS: dict[str, Settings] = {
    "smoke": {
        "pairs": [("digits", "small-vgg")], "seeds": [0], "methods": METHODS, "batches": 4,
        "sparsities": [0.8, 0.9, 0.96], "rounds": [1, 3, 10],
    },
    "short": {
        "pairs": [("cifar10", "resnet50"), ("cifar10", "vgg19")], "seeds": [0], "methods": METHODS, "batches": 10,
        "sparsities": [0.9, 0.98, 0.99, 0.995], "rounds": [1, 2, 5, 20, 60, 300],
    },
    "paper": {
        "pairs": [("cifar10", "resnet50"), ("cifar10", "vgg19")], "seeds": [0, 1, 2], "methods": METHODS, "batches": 30,
        "sparsities": [0.9, 0.95, 0.98, 0.99, 0.995, 0.999], "rounds": [1, 2, 5, 10, 20, 50, 100, 200, 300],
    },
}  # fmt: skip


def analyse(settings: Settings, options: RunOptions) -> Iterator[Row]:
    """Compute S(theta, c) for each T, sparsity and method on the same batches; T = 1 is SNIP for both methods."""
    for network in networks(settings, options):
        batches = evaluation_batches(network, settings["batches"])
        for sparsity, method, rounds in product(settings["sparsities"], settings["methods"], settings["rounds"]):
            experiment = experiment_on(network, method, sparsity, rounds=rounds)
            result = pruned(network, experiment, options)
            reached = saliency(network.model, result.masks, batches)
            yield identified(experiment) | {
                "rounds": rounds, "saliency": reached, "collapsed": bool(result.collapsed),
            }  # fmt: skip


def relative(rows: Rows) -> Rows:
    """Add the saliency relative to that of T = 1 with the same weights; it is empty where the latter is 0."""
    key = ("data", "model", "method", "sparsity", "seed")
    first = {tuple(row[name] for name in key): row["saliency"] for row in rows if row["rounds"] == 1}
    starts = [first.get(tuple(row[name] for name in key)) for row in rows]
    return [
        row | {"relative": row["saliency"] / start if start else None} for row, start in zip(rows, starts, strict=True)
    ]


def draw(rows: Rows) -> Canvas:
    """Draw a panel for each network and method: S(T) on logarithmic axes, with a shade for each sparsity.

    Lines are means over the seeds whose masks let a signal pass. The others have S = 0, which such an axis does not
    have: where there are any, there is a cross at the bottom.
    """
    runs = grouped(rows, "data", "model", "method")
    columns = len(grouped(rows, "method"))
    sparsities = sorted(grouped(rows, "sparsity"))
    figure, lines = plots.panels(-(-len(runs) // columns), columns, height=2.6)
    panels = [axes for line in lines for axes in line]
    for axes in panels[len(runs) :]:
        axes.set_axis_off()
    colours = plots.shades(sparsities)
    cut = sorted({row["sparsity"] for row in rows if not row["saliency"]})
    heights = {sparsity: 0.04 + min(0.05, 0.2 / len(cut)) * place for place, sparsity in enumerate(cut)}
    drawn: list[float] = []
    for axes, ((data, model, method), masks) in zip(panels, runs.items(), strict=False):
        for sparsity, group in sorted(grouped(masks, "sparsity").items()):
            values = {t: [row["saliency"] for row in seeds] for t, seeds in sorted(grouped(group, "rounds").items())}
            means = [fmean(filter(None, seeds)) if any(seeds) else nan for seeds in values.values()]
            axes.plot(list(values), means, color=colours[sparsity], marker="o")
            drawn += [mean for mean in means if mean > 0]
            if some := [t for t, seeds in values.items() if not all(seeds)]:
                axes.plot(
                    some, [heights[sparsity]] * len(some), transform=axes.get_xaxis_transform(),
                    color=colours[sparsity], marker="x", linestyle="none", markersize=5, markeredgewidth=1.4,
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
    for line in lines:
        line[0].set_ylabel("saliency S of the pruned network")
    handles = {f"{plots.percent(s)} removed": plots.line_handle(colours[s], "o") for s in sparsities}
    if cut:
        handles["disconnected with at least one seed: S = 0"] = plots.line_handle(plots.GREY, "x", "none", markersize=5)
    plots.legend(figure, handles, columns=6)
    return figure


FIGURES = {
    "saliency-vs-rounds": Figure(
        "FORCE saliency reached with T rounds, on the same batches, for each sparsity; T = 1 is SNIP.",
        Analysis(
            analyse,
            SETTINGS,
            {"smoke": "10 s", "short": "4 min", "paper": "48 min"},
            ("data", "model", "method", "sparsity", "rounds", "saliency"),
            relative,
        ),
        draw,
    ),
}
