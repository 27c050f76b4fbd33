"""Figures 8, 9 and 13: what masks leave of each layer, and what each round prunes and recovers."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import torch

from ...lab.experiment.experiment import Experiment
from ...lab.experiment.styles import look
from ...lab.figures import plots
from ...lab.figures.plots import Axes, Canvas
from ...lab.figures.registry import Figure
from ...lab.figures.sources import Analysis, Settings
from ...lab.records.tables import Row, Rows, grouped, spread
from ...lab.run.network import Network, pruned
from ...lab.run.options import RunOptions
from ...pruning.round import Record, Round
from ...scope import prunable

DIGITS = [("digits", "small-vgg")]
CIFAR10 = [("cifar10", "resnet50"), ("cifar10", "vgg19")]

# What analyses share: networks at their initial weights, and rows about their masks


def networks(settings: Mapping[str, Any], options: RunOptions) -> Iterator[Network]:
    """Yield each network at its initial weights, as a run has it: all `pairs` of data and model, with all `seeds`."""
    for (data, model), seed in product(settings["pairs"], settings["seeds"]):
        experiment = Experiment(model, data, seed=seed).resolved(options.device)
        yield Network(experiment, options, torch.device(options.device))


def experiment_on(network: Network, method: str, sparsity: float, **changes: Any) -> Experiment:
    """Return the experiment of a run with this network; an analysis only prunes, and does not train."""
    base = network.experiment
    return Experiment(base.model, base.data, method, sparsity, base.seed, **changes).resolved(network.device.type)


def identified(experiment: Experiment) -> Row:
    """Return the columns with which every row of an analysis begins."""
    return {name: getattr(experiment, name) for name in ("data", "model", "method", "sparsity", "seed")}


def layer_rows(sizes: Mapping[str, int], kept: Mapping[str, int]) -> Iterator[Row]:
    """Yield a row for each layer, from the input to the output.

    >>> list(layer_rows({"conv.weight": 8}, {"conv.weight": 2}))
    [{'layer': 1, 'name': 'conv', 'total': 8, 'kept': 2, 'density': 0.25}]
    """
    for number, (name, size) in enumerate(sizes.items(), 1):
        about = {"layer": number, "name": name.removesuffix(".weight")}
        yield about | {"total": size, "kept": kept[name], "density": kept[name] / size}


# Figure 8: how many weights each method keeps in each layer

METHODS = ["snip-mb", "grasp-mb", "iter-snip", "force"]


def _fewer(batches: int, rounds: int) -> Settings:
    one_shot, iterated = {"batches_per_round": batches}, {"rounds": rounds}
    return {"snip-mb": one_shot, "grasp-mb": one_shot, "iter-snip": iterated, "force": iterated}


LAYERS: dict[str, Settings] = {
    "smoke": {
        "pairs": [("digits", "small-resnet"), *DIGITS], "seeds": [0], "sparsity": 0.99, "methods": METHODS,
        "changes": _fewer(5, 15),
    },
    "short": {"pairs": CIFAR10, "seeds": [0], "sparsity": 0.999, "methods": METHODS, "changes": _fewer(60, 60)},
    "paper": {"pairs": CIFAR10, "seeds": [0], "sparsity": 0.999, "methods": METHODS, "changes": {}},
}  # fmt: skip
FINE = {"linewidth": 0.6, "markersize": 2.0}  # lines over many layers
STRIP = 0.07  # height of one row of crosses, as a fraction of the zoomed axis


def layers(settings: Settings, options: RunOptions) -> Iterator[Row]:
    """Count how many weights each method keeps in each layer."""
    for network in networks(settings, options):
        sizes = {name: weight.numel() for name, weight in prunable(network.model).items()}
        for method in settings["methods"]:
            changes = settings["changes"].get(method, {})
            experiment = experiment_on(network, method, settings["sparsity"], **changes)
            kept = pruned(network, experiment, options).rounds[-1].layers
            yield from (identified(experiment) | row for row in layer_rows(sizes, kept))


def draw_layers(rows: Rows) -> Canvas:
    """Draw three panels for each network: density, count, and small counts with crosses for empty layers."""
    pairs = grouped(rows, "data", "model")
    figure, grid = plots.panels(len(pairs), 3, height=2.35)
    for panels, ((data, model), network_rows) in zip(grid, pairs.items(), strict=True):
        _draw_network(panels, network_rows)
        panels[0].set_title(f"{plots.title(data, model)}, {plots.percent(network_rows[0]['sparsity'])}")
    shown = [look(method) for method in grouped(rows, "method")]
    handles = {each.label: plots.handle(each.color, each.marker, markeredgewidth=0) for each in shown}
    plots.legend(figure, handles)
    return figure


def _draw_network(panels: list[Axes], rows: Rows) -> None:
    methods = grouped(rows, "method")
    counts = sorted(row["kept"] for row in rows if row["kept"])
    zoom = max(2 * counts[len(counts) // 3], 10)
    for number, (method, layers) in enumerate(methods.items(), 1):
        x = [row["layer"] for row in layers]
        style: dict[str, Any] = {"color": look(method).color, "marker": look(method).marker, "markeredgewidth": 0}
        style |= FINE
        panels[0].plot(x, [row["density"] or float("nan") for row in layers], **style)
        for axes in panels[1:]:
            axes.plot(x, [row["kept"] for row in layers], **style)
        if emptied := [row["layer"] for row in layers if row["kept"] == 0]:
            y = [-zoom * STRIP * number] * len(emptied)
            panels[2].plot(emptied, y, "x", color=look(method).color, markersize=3, markeredgewidth=0.9)
    panels[0].set_yscale("log")
    panels[0].minorticks_off()
    panels[0].set_ylabel("share of weights left")
    panels[1].set_ylabel("weights left")
    panels[2].set_ylabel("weights left")
    panels[1].set_ylim(bottom=0)
    strips = STRIP * zoom * (len(methods) + 0.7) if len(counts) < len(rows) else 0
    panels[2].set_ylim(-strips, zoom)
    panels[2].locator_params(axis="y", nbins=6, integer=True)
    panels[2].set_yticks([tick for tick in panels[2].get_yticks() if 0 <= tick <= zoom])
    panels[2].spines["left"].set_bounds(0, zoom)
    panels[1].set_title("counts")
    panels[2].set_title("counts, zoomed; × empty")
    for axes in panels:
        axes.set_xlabel("layer, from input to output")
        axes.set_xlim(0, max(row["layer"] for row in rows) + 1)


# Figure 9: how many weights each round prunes and recovers

FEW = {"seeds": [0], "methods": ["iter-snip", "force"]}
EVOLUTION: dict[str, Settings] = {
    "smoke": {"pairs": DIGITS, "sparsity": 0.99, "rounds": 40, **FEW},
    "short": {"pairs": CIFAR10[:1], "sparsity": 0.995, "rounds": 60, **FEW},
    "paper": {"pairs": CIFAR10, "sparsity": 0.995, "rounds": 300, **FEW},
}
COUNTS = ("pruned", "recovered", "recovered_empty")


def evolution(settings: Settings, options: RunOptions) -> Iterator[Row]:
    """Count what each round prunes and recovers, also as shares of all prunable weights."""
    for network in networks(settings, options):
        total = sum(weight.numel() for weight in prunable(network.model).values())
        for method in settings["methods"]:
            experiment = experiment_on(network, method, settings["sparsity"], rounds=settings["rounds"])
            for record in pruned(network, experiment, options).rounds:
                counts = {name: getattr(record, name) for name in COUNTS}
                shares = {f"{name}_share": count / total for name, count in counts.items()}
                yield identified(experiment) | {"round": record.index + 1, "keep": record.keep} | counts | shares


def draw_evolution(rows: Rows) -> Canvas:
    """Draw a panel for each network and method: the shares that each round prunes and recovers."""
    runs = grouped(rows, "data", "model", "method")
    columns = len(grouped(rows, "method"))
    figure, panels = plots.grid(len(runs), columns, "share of prunable weights (%)", height=2.4)
    for axes, ((*_, method), rounds) in zip(panels, runs.items(), strict=True):
        x = [row["round"] for row in rounds]
        for name, label, dashes, color in (
            ("pruned", "pruned", "-", look(method).color),
            ("recovered", "recovered", "--", plots.INK),
            ("recovered_empty", "recovered in empty channels", ":", plots.GRAY),
        ):
            y = [100 * row[f"{name}_share"] for row in rounds]
            axes.plot(x, y, color=color, linestyle=dashes, label=label)
        axes.set_title(f"{look(method).label}: {plots.title(rounds[0]['data'], rounds[0]['model'])}")
        axes.set_xlabel(f"round (of {max(x)}, to {plots.percent(rounds[0]['sparsity'])} removed)")
        axes.legend(loc="upper right")
    high = 108 * max(row["pruned_share"] for row in rows)
    for axes in panels:
        axes.set_ylim(0, high)
    return figure


# Figure 13: what is left of each layer as the whole network gets sparser, in one shot and round by round

SINGLE, ITERATED = "one-shot", "iterated"
EXAMINED: Settings = {
    "one_shot": ["grasp", "snip"], "iterated": ["grasp-taylor", "iter-grasp", "iter-snip"], "iterated_seed": 0,
}  # fmt: skip
CONSISTENCY: dict[str, Settings] = {
    "smoke": {
        "pairs": DIGITS, "seeds": [0, 1], "densities": [0.9, 0.5, 0.2, 0.05, 0.01],
        "rounds": 20, "to": 0.01, **EXAMINED,
    },
    "short": {
        "pairs": [("cifar10", "vgg19")], "seeds": [0, 1, 2],
        "densities": [0.9, 0.7, 0.5, 0.3, 0.1, 0.05, 0.02, 0.01], "rounds": 60, "to": 0.01, **EXAMINED,
    },
    "paper": {
        "pairs": CIFAR10, "seeds": [0, 1, 2],
        "densities": [0.95, 0.9, 0.8, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01], "rounds": 300, "to": 0.01, **EXAMINED,
    },
}  # fmt: skip


def consistency(settings: Settings, options: RunOptions) -> Iterator[Row]:
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
        rounds, cut = [step for step in rounds if not step.not_finite.any()], True
    return [step.record for step in rounds], cut


def draw_consistency(rows: Rows) -> Canvas:
    """Draw two lines of panels for each network, with a panel for each method, and in it a line for each layer."""
    networks = grouped(rows, "data", "model")
    shown = [grouped(rows, "method") for network in networks.values() for rows in _kinds(network)]
    figure, grid = plots.panels(len(shown), max(map(len, shown)), height=2.4)
    floor = min(row["density"] for row in rows if row["kept"]) / 2
    lines = iter(grid)
    for (data, model), network in networks.items():
        depth = sorted(grouped(network, "layer"))
        colors = plots.shades(depth)
        for kind, kind_rows in zip((SINGLE, ITERATED), _kinds(network), strict=True):
            methods, panels = grouped(kind_rows, "method"), next(lines)
            for axes, (method, method_rows) in zip(panels, methods.items(), strict=False):
                for layer, points in grouped(method_rows, "layer").items():
                    style = FINE | {"color": colors[layer]}
                    _draw_layer(axes, points, floor, with_errors=kind == SINGLE, **style)
                _frame(axes, method_rows, floor)
                axes.set_title(f"{look(method).label}, " + ("one-shot" if kind == SINGLE else "every round"))
            panels[0].set_ylabel(f"{plots.title(data, model)}\nshare left of the layer")
            for axes in panels[len(methods) :]:
                axes.set_axis_off()
                _scale_bar(figure, axes, depth, "layer, from input to output")
    return figure


def _scale_bar(figure: Canvas, axes: Axes, values: Sequence[float], label: str) -> None:
    """Draw the meaning of `plots.shades` in the place of an empty panel."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    colors = ListedColormap(list(plots.shades(range(256)).values()))
    inside = axes.inset_axes((0.1, 0.5, 0.8, 0.06))
    meaning = ScalarMappable(Normalize(min(values), max(values)), colors)
    figure.colorbar(meaning, cax=inside, orientation="horizontal", label=label)


def _kinds(rows: Rows) -> list[Rows]:
    kinds = grouped(rows, "kind")
    return [kinds.get(kind, []) for kind in (SINGLE, ITERATED)]


def _draw_layer(axes: Axes, rows: Rows, floor: float, with_errors: bool, **style: Any) -> None:
    """Draw a line while the layer keeps weights, and a cross where it is empty."""
    points = sorted(grouped(rows, "density_all").items(), reverse=True)
    spreads = [(x, spread(row["density"] for row in seeds)) for x, seeds in points]
    shown = [(x, density.mean, density.deviation or 0.0) for x, density in spreads if density.mean]
    places, means, above = ([point[part] for point in shown] for part in range(3))
    below = [min(std, 0.95 * mean) for _, mean, std in shown]  # such an axis has no 0
    errors, marker = ([below, above], "o") if with_errors else (None, None)
    axes.errorbar(places, means, errors, marker=marker, markeredgewidth=0, elinewidth=0.6, **style)
    if emptied := [x for x, density in spreads if density.mean == 0]:
        axes.plot(emptied[:1], [floor], "x", color=plots.ALARM, markersize=3.5, markeredgewidth=0.9, clip_on=False)


def _frame(axes: Axes, rows: Rows, floor: float) -> None:
    """Draw the axes and the diagonal where all layers lose alike; say how many layers end up empty."""
    last = min(row["density_all"] for row in rows)
    axes.plot([1, last], [1, last], color=plots.GRAY, linewidth=0.7, linestyle="--", zorder=1)
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
    "layers": Figure(
        "What each method leaves of every layer at 99.9 %: density, count, and small counts; empty layers marked.",
        Analysis(layers, LAYERS, ("data", "model", "method", "sparsity", "layer", "kept", "density")),
        draw_layers, ("5 s", "1 min", "5 min"),
    ),
    "evolution": Figure(
        "Weights pruned and recovered in each round of Iter SNIP and FORCE, as shares of all prunable weights.",
        Analysis(
            evolution, EVOLUTION, ("data", "model", "method", "sparsity", "round", *(f"{n}_share" for n in COUNTS))
        ),
        draw_evolution, ("3 s", "15 s", "1 min"),
    ),
    "consistency": Figure(
        "What is left of each layer against the global density: one-shot methods, and rounds of iterated ones.",
        Analysis(
            consistency, CONSISTENCY,
            ("data", "model", "method", "seed", "kind", "layer", "kept", "density", "density_all", "disconnected"),
        ),
        draw_consistency, ("8 s", "1 min", "6 min"),
    ),
}  # fmt: skip
