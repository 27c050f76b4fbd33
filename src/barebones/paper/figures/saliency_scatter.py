"""Figure 7: the saliency of the sparsified network against that of the pruned network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import log
from statistics import correlation, fmean
from typing import TYPE_CHECKING, Any

from ...lab.experiment.styles import look
from ...lab.figures import plots
from ...lab.figures.analyses import evaluation_batches, experiment_on, identified, networks, pruned
from ...lab.figures.registry import Figure
from ...lab.figures.sources import Analysis, Settings
from ...lab.records.tables import Row, Rows, grouped
from ...lab.run.options import RunOptions
from ...pruning.saliency import saliency

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

METHOD = "force"
SETTINGS: dict[str, Settings] = {
    "smoke": {
        "pairs": [("digits", "small-vgg")], "seeds": [0], "batches": 4, "rounds": 5,
        "sparsities": [0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99],
    },
    "short": {
        "pairs": [("cifar10", "resnet50")], "seeds": [0], "batches": 10, "rounds": 20,
        "sparsities": [0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999],
    },
    "paper": {
        "pairs": [("cifar10", "resnet50"), ("cifar10", "vgg19")], "seeds": [0, 1, 2], "batches": 30, "rounds": 60,
        "sparsities": [0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995],
    },
}  # fmt: skip
OVER = {"pruned": "kept", "sparsified": "all"}  # the weights over which the saliency is summed


def analyse(settings: Settings, options: RunOptions) -> Iterator[Row]:
    """Compute both saliencies of FORCE's masks at many sparsities."""
    for network in networks(settings, options):
        batches = evaluation_batches(network, settings["batches"])
        for sparsity in settings["sparsities"]:
            experiment = experiment_on(network, METHOD, sparsity, rounds=settings["rounds"])
            masks = pruned(network, experiment, options).masks
            both = {name: saliency(network.model, masks, batches, over=over) for name, over in OVER.items()}
            yield identified(experiment) | {"rounds": settings["rounds"], **both}


def draw(rows: Rows) -> Canvas:
    """Draw a panel for each network, and in it each mask as a dot, coloured by its sparsity."""
    networks = grouped(rows, "data", "model")
    figure, [panels] = plots.panels(1, len(networks), height=2.9)
    colours = plots.shades(sorted(grouped(rows, "sparsity")))
    for axes, ((data, model), masks) in zip(panels, networks.items(), strict=True):
        _draw(axes, masks, colours)
        axes.set_title(plots.title(data, model))
    panels[0].set_ylabel("saliency S of the sparsified network")
    handles = [plots.line_handle(colour, "o", "none", markersize=4.5, markeredgewidth=0) for colour in colours.values()]
    labels = [plots.percent(sparsity) for sparsity in colours]
    panels[-1].legend(
        handles, labels, title="weights removed", title_fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5),
        handlelength=1,
    )  # fmt: skip
    return figure


def _draw(axes: Axes, rows: Rows, colours: Mapping[float, Any]) -> None:
    """Draw the masks of one network, and print the correlations of the logarithms: of all, and within a sparsity."""
    positive = [row for row in rows if row["pruned"] > 0 and row["sparsified"] > 0]
    for sparsity, masks in sorted(grouped(positive, "sparsity").items()):
        x, y = [row["pruned"] for row in masks], [row["sparsified"] for row in masks]
        axes.plot(x, y, "o", color=colours[sparsity], markersize=4.5, markeredgewidth=0)
    values = [value for row in positive for value in (row["pruned"], row["sparsified"])] or [1.0]
    ends = [min(values) / 1.3, max(values) * 1.3]
    axes.plot(ends, ends, color=plots.GREY, linewidth=0.6, linestyle="--", zorder=1)
    axes.annotate("equal", (ends[1], ends[1]), (-9, -1), textcoords="offset points", ha="right", color=plots.GREY)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.set_xlabel("saliency S of the pruned network")
    notes = [f"{len(positive)} masks of {look(METHOD).label}"]
    if len(positive) < len(rows):
        notes.append(f"{len(rows) - len(positive)} more with S = 0")
    for words, pairs in (("of logs", [_logs(positive)]), ("within a sparsity", _within(positive))):
        x, y = ([value for pair in pairs for value in pair[axis]] for axis in (0, 1))
        if len(x) > 2 and min(len(set(x)), len(set(y))) > 1:
            notes.append(f"r = {correlation(x, y):.3f} ({words})")
    axes.text(0.97, 0.05, "\n".join(notes), transform=axes.transAxes, ha="right", va="bottom")


def _logs(rows: Rows) -> tuple[list[float], list[float]]:
    """Return the logarithms of both saliencies."""
    return [log(row["pruned"]) for row in rows], [log(row["sparsified"]) for row in rows]


def _within(rows: Rows) -> list[tuple[list[float], list[float]]]:
    """Return, for each sparsity with several masks, by how much the logarithms differ from their means."""
    groups = [_logs(masks) for masks in grouped(rows, "sparsity").values() if len(masks) > 1]
    return [([a - fmean(x) for a in x], [b - fmean(y) for b in y]) for x, y in groups]


FIGURES = {
    "saliency-scatter": Figure(
        "Saliency of the sparsified against that of the pruned network, over masks of many sparsities.",
        Analysis(
            analyse,
            SETTINGS,
            {"smoke": "5 s", "short": "30 s", "paper": "5 min"},
            ("data", "model", "sparsity", "pruned", "sparsified"),
        ),
        draw,
    ),
}
