"""Figure 8: how many weights each method keeps in each layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ...lab.experiment.styles import look
from ...lab.figures import plots
from ...lab.figures.analyses import experiment_on, identified, layer_rows, networks, pruned
from ...lab.figures.registry import Figure
from ...lab.figures.sources import Analysis, Settings
from ...lab.records.tables import Row, Rows, grouped
from ...lab.run.options import RunOptions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

PAPER = [("cifar10", "resnet50"), ("cifar10", "vgg19")]
METHODS = ["snip-mb", "grasp-mb", "iter-snip", "force"]
SETTINGS: dict[str, Settings] = {
    "smoke": {
        "pairs": [("digits", "small-resnet"), ("digits", "small-vgg")], "seeds": [0], "sparsity": 0.99,
        "methods": METHODS, "changes": {
            "snip-mb": {"batches_per_round": 5}, "grasp-mb": {"batches_per_round": 5}, "iter-snip": {"rounds": 15},
            "force": {"rounds": 15},
        },
    },
    "short": {
        "pairs": PAPER, "seeds": [0], "sparsity": 0.999, "methods": METHODS, "changes": {
            "snip-mb": {"batches_per_round": 60}, "grasp-mb": {"batches_per_round": 60}, "iter-snip": {"rounds": 60},
            "force": {"rounds": 60},
        },
    },
    "paper": {"pairs": PAPER, "seeds": [0], "sparsity": 0.999, "methods": METHODS, "changes": {}},
}  # fmt: skip
STRIP = 0.07  # height of one row of crosses, as a fraction of the zoomed axis


def analyse(settings: Settings, options: RunOptions) -> Iterator[Row]:
    """Count how many weights each method keeps in each layer."""
    for network in networks(settings, options):
        for method in settings["methods"]:
            changes = settings["changes"].get(method, {})
            experiment = experiment_on(network, method, settings["sparsity"], **changes)
            masks = pruned(network, experiment, options).masks
            sizes = {name: mask.numel() for name, mask in masks.items()}
            kept = {name: int(mask.count_nonzero()) for name, mask in masks.items()}
            yield from (identified(experiment) | row for row in layer_rows(sizes, kept))


def draw(rows: Rows) -> Canvas:
    """Draw three panels for each network: density, count, and small counts with crosses for empty layers."""
    pairs = grouped(rows, "data", "model")
    figure, grid = plots.panels(len(pairs), 3, height=2.35)
    for panels, ((data, model), network_rows) in zip(grid, pairs.items(), strict=True):
        _draw_network(panels, network_rows)
        panels[0].set_title(f"{plots.title(data, model)}, {plots.percent(network_rows[0]['sparsity'])}")
    handles = {look(method).label: plots.handle(method, markeredgewidth=0) for method in grouped(rows, "method")}
    plots.legend(figure, handles)
    return figure


def _draw_network(panels: list[Axes], rows: Rows) -> None:
    methods = grouped(rows, "method")
    counts = sorted(row["kept"] for row in rows if row["kept"])
    zoom = max(2 * counts[len(counts) // 3], 10)
    for number, (method, layers) in enumerate(methods.items(), 1):
        x = [row["layer"] for row in layers]
        style: dict[str, Any] = {"color": look(method).colour, "marker": look(method).marker, "markeredgewidth": 0}
        style |= plots.thickness(len(layers), line=0.8, marker=2.8)
        panels[0].plot(x, [row["density"] or float("nan") for row in layers], **style)
        for axes in panels[1:]:
            axes.plot(x, [row["kept"] for row in layers], **style)
        if emptied := [row["layer"] for row in layers if row["kept"] == 0]:
            y = [-zoom * STRIP * number] * len(emptied)
            panels[2].plot(emptied, y, "x", color=look(method).colour, markersize=3, markeredgewidth=0.9)
    panels[0].set_yscale("log")
    panels[0].minorticks_off()
    panels[0].set_ylabel("share of weights left")
    panels[1].set_ylabel("weights left")
    panels[2].set_ylabel("weights left")
    panels[1].set_ylim(bottom=0)
    strips = STRIP * zoom * (len(methods) + 0.7) if len(counts) < len(rows) else 0
    panels[2].set_ylim(-strips, zoom)
    plots.whole_ticks(panels[2].yaxis)
    panels[2].set_yticks([tick for tick in panels[2].get_yticks() if 0 <= tick <= zoom])
    panels[2].spines["left"].set_bounds(0, zoom)
    panels[1].set_title("counts")
    panels[2].set_title("counts, zoomed; × empty")
    for axes in panels:
        axes.set_xlabel("layer, from input to output")
        axes.set_xlim(0, max(row["layer"] for row in rows) + 1)


FIGURES = {
    "layers": Figure(
        "What each method leaves of every layer at 99.9 %: density, count, and small counts; empty layers marked.",
        Analysis(
            analyse,
            SETTINGS,
            {"smoke": "5 s", "short": "1 min", "paper": "5 min"},
            ("data", "model", "method", "sparsity", "layer", "kept", "density"),
        ),
        draw,
    ),
}
