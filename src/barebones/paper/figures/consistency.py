"""Figure 13: what is left of each layer as the whole network gets sparser, in one shot and round by round."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

from ...lab.experiment.experiment import Experiment
from ...lab.experiment.styles import look
from ...lab.figures import plots
from ...lab.figures.analyses import experiment_on, identified, layer_rows, networks, pruned
from ...lab.figures.registry import Figure
from ...lab.figures.sources import Analysis, Settings
from ...lab.records.statistics import spread
from ...lab.records.tables import Row, Rows, grouped
from ...lab.run.network import Network
from ...lab.run.options import RunOptions
from ...pruning.round import Record, Round
from ...scope import prunable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

SINGLE, ITERATED = "one-shot", "iterated"
METHODS: Settings = {
    "one_shot": ["grasp", "snip"], "iterated": ["grasp-taylor", "iter-grasp", "iter-snip"], "iterated_seed": 0,
}  # fmt: skip
SETTINGS: dict[str, Settings] = {
    "smoke": {
        "pairs": [("digits", "small-vgg")], "seeds": [0, 1], "densities": [0.9, 0.5, 0.2, 0.05, 0.01],
        "rounds": 20, "to": 0.01, **METHODS,
    },
    "short": {
        "pairs": [("cifar10", "vgg19")], "seeds": [0, 1, 2],
        "densities": [0.9, 0.7, 0.5, 0.3, 0.1, 0.05, 0.02, 0.01], "rounds": 60, "to": 0.01, **METHODS,
    },
    "paper": {
        "pairs": [("cifar10", "resnet50"), ("cifar10", "vgg19")], "seeds": [0, 1, 2],
        "densities": [0.95, 0.9, 0.8, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01], "rounds": 300, "to": 0.01, **METHODS,
    },
}  # fmt: skip


def analyse(settings: Settings, options: RunOptions) -> Iterator[Row]:
    """Count what is left of each layer: in one-shot masks of many sparsities, and after each round of an iteration."""
    for network in networks(settings, options):
        sizes = {name: weight.numel() for name, weight in prunable(network.model).items()}
        total = sum(sizes.values())
        for method, density in product(settings["one_shot"], settings["densities"]):
            experiment = experiment_on(network, method, 1 - density)
            result = pruned(network, experiment, options)
            [only] = result.rounds
            where = {"kind": SINGLE, "round": 1, "density_all": only.keep / total}
            where |= {"disconnected": bool(result.collapsed)}
            yield from (identified(experiment) | where | row for row in layer_rows(sizes, only.layers))
        if network.experiment.seed != settings["iterated_seed"]:  # they are shown for one initialization
            continue
        for method in settings["iterated"]:
            experiment = experiment_on(network, method, 1 - settings["to"], rounds=settings["rounds"])
            records, cut = _all_rounds(network, experiment, options)
            for number, record in enumerate(records, 1):
                where = {"kind": ITERATED, "round": number, "density_all": record.keep / total}
                where |= {"disconnected": cut if number == len(records) else None}
                yield from (identified(experiment) | where | row for row in layer_rows(sizes, record.layers))


def _all_rounds(network: Network, experiment: Experiment, options: RunOptions) -> tuple[list[Record], bool]:
    """Return the rounds up to the first with infinite scores, and whether the last mask disconnects the network."""
    rounds: list[Round] = []
    try:
        result = pruned(network, experiment, options, lambda step: rounds.append(step.without_masks()))
        cut = bool(result.collapsed)
    except FloatingPointError:
        rounds, cut = [step for step in rounds if step.finite], True
    return [step.record for step in rounds], cut


def draw(rows: Rows) -> Canvas:
    """Draw two lines of panels for each network, with a panel for each method, and in it a line for each layer."""
    networks = grouped(rows, "data", "model")
    shown = [grouped(rows, "method") for network in networks.values() for rows in _kinds(network)]
    figure, grid = plots.panels(len(shown), max(map(len, shown)), height=2.4)
    floor = min(row["density"] for row in rows if row["kept"]) / 2
    lines = iter(grid)
    for (data, model), network in networks.items():
        depth = sorted(grouped(network, "layer"))
        colours = plots.shades(depth)
        for kind, kind_rows in zip((SINGLE, ITERATED), _kinds(network), strict=True):
            methods, panels = grouped(kind_rows, "method"), next(lines)
            for axes, (method, method_rows) in zip(panels, methods.items(), strict=False):
                for layer, points in grouped(method_rows, "layer").items():
                    style = plots.thickness(len(depth), line=0.8, marker=2.4) | {"color": colours[layer]}
                    _draw_layer(axes, points, floor, with_errors=kind == SINGLE, **style)
                _frame(axes, method_rows, floor)
                axes.set_title(f"{look(method).label}, " + ("one-shot" if kind == SINGLE else "every round"))
            panels[0].set_ylabel(f"{plots.title(data, model)}\nshare left of the layer")
            for axes in panels[len(methods) :]:
                axes.set_axis_off()
                plots.scale_bar(figure, axes, depth, "layer, from input to output")
    return figure


def _kinds(rows: Rows) -> list[Rows]:
    """Return the rows of one-shot methods, and those of iterated ones."""
    kinds = grouped(rows, "kind")
    return [kinds.get(kind, []) for kind in (SINGLE, ITERATED)]


def _draw_layer(axes: Axes, rows: Rows, floor: float, with_errors: bool, **style: Any) -> None:
    """Draw a line while the layer keeps weights, and a cross where it is empty."""
    points = sorted(grouped(rows, "density_all").items(), reverse=True)
    spreads = [(x, spread(row["density"] for row in seeds)) for x, seeds in points]
    shown = [(x, density.mean, density.deviation or 0.0) for x, density in spreads if density.mean]
    axes.errorbar(
        [x for x, _, _ in shown],
        [mean for _, mean, _ in shown],
        [[min(std, 0.95 * mean) for _, mean, std in shown], [std for *_, std in shown]] if with_errors else None,
        marker="o" if with_errors else None,
        markeredgewidth=0,
        elinewidth=0.6,
        **style,
    )
    emptied = [x for x, density in spreads if density.mean == 0]
    if emptied:
        axes.plot(emptied[:1], [floor], "x", color=plots.ALARM, markersize=3.5, markeredgewidth=0.9, clip_on=False)


def _frame(axes: Axes, rows: Rows, floor: float) -> None:
    """Draw the axes and the diagonal where all layers lose alike; say how many layers end up empty."""
    last = min(row["density_all"] for row in rows)
    axes.plot([1, last], [1, last], color=plots.GREY, linewidth=0.7, linestyle="--", zorder=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(1.15, last / 1.15)
    axes.set_ylim(floor / 1.3, 1.4)
    axes.minorticks_off()
    axes.set_xlabel("share left of all weights")
    ends = grouped([row for row in rows if row["density_all"] == last], "seed").values()
    emptied = sorted({sum(row["kept"] == 0 for row in seed) for seed in ends})
    numbers = " to ".join(map(str, sorted({emptied[0], emptied[-1]})))
    layers = f"{numbers} of {max(map(len, ends))} layers empty" if emptied[-1] else ""
    cut = sum(any(row["disconnected"] for row in seed) for seed in ends)
    signal = "no signal passes" + (f" ({cut} of {len(ends)} seeds)" if cut < len(ends) else "") if cut else ""
    text = ":\n".join(filter(None, [layers, signal]))
    pale = {"facecolor": "white", "edgecolor": "none", "alpha": 0.5, "pad": 0}  # lines may cross the words
    axes.text(0.04, 0.06, text, transform=axes.transAxes, color=plots.ALARM, bbox=pale, zorder=5)


FIGURES = {
    "consistency": Figure(
        "What is left of each layer against the global density: one-shot methods, and rounds of iterated ones.",
        Analysis(
            analyse,
            SETTINGS,
            {"smoke": "8 s", "short": "1 min", "paper": "6 min"},
            ("data", "model", "method", "seed", "kind", "layer", "kept", "density", "density_all", "disconnected"),
        ),
        draw,
    ),
}
