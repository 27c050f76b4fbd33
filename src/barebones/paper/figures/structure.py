"""The structure of masks: what is left of each layer, how masks change from round to round, and how consistently."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...lab import plots as style
from ...lab.tidy import grouped, spread
from . import analyses
from .sources import Analysis, Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

DIGITS, CIFAR10 = [("digits", "small-vgg")], [("cifar10", "resnet50")]
BOTH = [("cifar10", "resnet50"), ("cifar10", "vgg19")]
FOUR = ["snip-mb", "grasp-mb", "iter-snip", "force"]

LAYERS = Analysis(
    analyses.layers,
    {
        "smoke": {
            "pairs": [("digits", "small-resnet"), ("digits", "small-vgg")], "seeds": [0], "sparsity": 0.99,
            "methods": FOUR, "given": {
                "snip-mb": {"batches": 5}, "grasp-mb": {"batches": 5}, "iter-snip": {"rounds": 15},
                "force": {"rounds": 15},
            },
        },
        "short": {
            "pairs": BOTH, "seeds": [0], "sparsity": 0.999, "methods": FOUR, "given": {
                "snip-mb": {"batches": 60}, "grasp-mb": {"batches": 60}, "iter-snip": {"rounds": 60},
                "force": {"rounds": 60},
            },
        },
        "paper": {"pairs": BOTH, "seeds": [0], "sparsity": 0.999, "methods": FOUR, "given": {}},
    },
    {"smoke": "5 s", "short": "1 min", "paper": "5 min"},
    ("data", "model", "method", "sparsity", "layer", "kept", "density"),
)  # fmt: skip

EVOLUTION = Analysis(
    analyses.evolution,
    {
        "smoke": {"pairs": DIGITS, "seeds": [0], "sparsity": 0.99, "rounds": 40, "methods": ["iter-snip", "force"]},
        "short": {"pairs": CIFAR10, "seeds": [0], "sparsity": 0.995, "rounds": 60, "methods": ["iter-snip", "force"]},
        "paper": {"pairs": CIFAR10, "seeds": [0], "sparsity": 0.995, "rounds": 300, "methods": ["iter-snip", "force"]},
    },
    {"smoke": "3 s", "short": "15 s", "paper": "1 min"},
    ("data", "model", "method", "sparsity", "round", "pruned_share", "recovered_share", "recovered_empty_share"),
)

CONSISTENCY = Analysis(
    analyses.consistency,
    {
        "smoke": {
            "pairs": DIGITS, "seeds": [0, 1], "one_shot": ["grasp", "snip"], "densities": [0.9, 0.5, 0.2, 0.05, 0.01],
            "iterated": ["grasp-taylor", "iter-grasp", "iter-snip"], "rounds": 20, "to": 0.01,
        },
        "short": {
            "pairs": [("cifar10", "vgg19")], "seeds": [0, 1, 2], "one_shot": ["grasp", "snip"],
            "densities": [0.9, 0.7, 0.5, 0.3, 0.1, 0.05, 0.02, 0.01],
            "iterated": ["grasp-taylor", "iter-grasp", "iter-snip"], "rounds": 60, "to": 0.01,
        },
        "paper": {
            "pairs": CIFAR10, "seeds": [0, 1, 2], "one_shot": ["grasp", "snip"],
            "densities": [0.95, 0.9, 0.8, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01],
            "iterated": ["grasp-taylor", "iter-grasp", "iter-snip"], "rounds": 300, "to": 0.01,
        },
    },
    {"smoke": "8 s", "short": "1 min", "paper": "5 min"},
    ("data", "model", "method", "seed", "kind", "layer", "kept", "density", "density_all", "cut"),
)  # fmt: skip


def draw_layers(rows: Rows) -> Canvas:
    """A line of panels for each network: density, count, small counts; a strip of crosses tells emptied layers."""
    pairs = grouped(rows, "data", "model")
    figure, grid = style.panels(len(pairs), 3, height=2.35)
    for panels, ((data, model), own) in zip(grid, pairs.items(), strict=True):
        methods = grouped(own, "method")
        counts = sorted(row["kept"] for row in own if row["kept"])
        zoom = max(2 * counts[len(counts) // 3], 10)
        for number, (method, layers) in enumerate(methods.items()):
            x = [row["layer"] for row in layers]
            how: dict[str, Any] = {"color": style.colour(method), "marker": style.mark(method), "markeredgewidth": 0}
            how |= _weight(len(layers), line=0.8, mark=2.8)
            panels[0].plot(x, [row["density"] or float("nan") for row in layers], **how)
            for axes in panels[1:]:
                axes.plot(x, [row["kept"] for row in layers], **how)
            _strip(panels[2], [row["layer"] for row in layers if row["kept"] == 0], style.colour(method), number, zoom)
        panels[0].set_yscale("log")
        panels[0].minorticks_off()
        panels[0].set_ylabel("share of weights left")
        panels[1].set_ylabel("weights left")
        panels[2].set_ylabel("weights left")
        panels[1].set_ylim(bottom=0)
        room = 0.07 * zoom * (len(methods) + 0.7) if len(counts) < len(own) else 0
        panels[2].set_ylim(-room, zoom)
        style.whole(panels[2].yaxis)
        panels[2].set_yticks([tick for tick in panels[2].get_yticks() if 0 <= tick <= zoom])
        panels[2].spines["left"].set_bounds(0, zoom)
        panels[0].set_title(f"{style.title(data, model)}, {style.percent(own[0]['sparsity'])}")
        panels[1].set_title("counts")
        panels[2].set_title("counts, zoomed; × emptied")
        for axes in panels:
            axes.set_xlabel("layer, from input to output")
            axes.set_xlim(0, max(row["layer"] for row in own) + 1)
    handles = {style.NAMES[method]: style.handle(method, markeredgewidth=0) for method in grouped(rows, "method")}
    style.legend(figure, handles)
    return figure


def _strip(axes: Axes, emptied: list[int], ink: str, number: int, zoom: float) -> None:
    """Crosses below the axis for the layers that a method empties."""
    if emptied:
        y = -zoom * 0.07 * (number + 1)
        axes.plot(emptied, [y] * len(emptied), "x", color=ink, markersize=3, markeredgewidth=0.9)


def draw_evolution(rows: Rows) -> Canvas:
    """A panel for each method: shares pruned and recovered in each round."""
    methods = grouped(rows, "method")
    figure, [panels] = style.panels(1, len(methods), height=2.4)
    for axes, (method, own) in zip(panels, methods.items(), strict=True):
        ink, x = style.colour(method), [row["round"] for row in own]
        kinds = {"pruned": ("-", ink), "recovered": ("--", style.INK), "recovered_empty": (":", style.GREY)}
        for name, (dashes, own_ink) in kinds.items():
            label = name.replace("recovered_empty", "recovered in empty channels")
            y = [100 * row[f"{name}_share"] for row in own]
            axes.plot(x, y, color=own_ink, linestyle=dashes, label=label)
        axes.set_title(f"{style.NAMES[method]}: {style.title(own[0]['data'], own[0]['model'])}")
        axes.set_xlabel(f"round (of {max(x)}, to {style.percent(own[0]['sparsity'])} removed)")
        axes.legend(loc="upper right")
    high = 108 * max(row["pruned_share"] for row in rows)
    for axes in panels:
        axes.set_ylim(0, high)
    panels[0].set_ylabel("share of prunable weights (%)")
    return figure


def draw_consistency(rows: Rows) -> Canvas:
    """One-shot methods above, iterated ones below; a line for each layer, from the first (dark) to the last (light)."""
    kinds = grouped(rows, "kind")
    lines = [list(grouped(kinds.get(kind, []), "method")) for kind in ("one-shot", "iterated")]
    figure, grid = style.panels(2, max(map(len, lines)), height=2.4)
    depth = sorted(grouped(rows, "layer"))
    ink = style.shades(depth)
    floor = min(row["density"] for row in rows if row["kept"]) / 2
    for panels, methods, kind in zip(grid, lines, ("one-shot", "iterated"), strict=True):
        for axes, method in zip(panels, methods, strict=False):
            own = [row for row in kinds[kind] if row["method"] == method]
            for layer, some in grouped(own, "layer").items():
                thin = _weight(len(depth), line=0.8, mark=2.4)
                _fate(axes, some, floor, dotted=kind == "one-shot", color=ink[layer], **thin)
            _frame(axes, own, floor)
            axes.set_title(f"{style.NAMES[method]}, " + ("one-shot" if kind == "one-shot" else "every round"))
        panels[0].set_ylabel("share left of the layer")
        for axes in panels[len(methods) :]:
            axes.set_axis_off()
            style.scale_bar(figure, axes, depth, "layer, from input to output")
    figure.suptitle(style.title(rows[0]["data"], rows[0]["model"]), x=0.01, ha="left", fontsize=8.5)
    return figure


def _weight(layers: int, line: float, mark: float) -> dict[str, float]:
    """How thick: deep networks are drawn finer."""
    fine = 1.0 if layers <= 20 else 0.65
    return {"linewidth": fine * line, "markersize": fine * mark}


def _fate(axes: Axes, some: Rows, floor: float, dotted: bool, **how: Any) -> None:
    """What is left of one layer: a line as long as anything is, a cross where nothing is any more."""
    points = sorted(grouped(some, "density_all").items(), reverse=True)
    spreads = [(x, *spread(row["density"] for row in own)) for x, own in points]
    left = [(x, mean, std) for x, mean, std in spreads if mean > 0]
    axes.errorbar(
        [x for x, _, _ in left],
        [mean for _, mean, _ in left],
        [[min(std, 0.95 * mean) for _, mean, std in left], [std for *_, std in left]] if dotted else None,
        marker="o" if dotted else None,
        markeredgewidth=0,
        elinewidth=0.6,
        **how,
    )
    gone = [x for x, mean, _ in spreads if mean == 0]
    if gone:
        axes.plot(gone[:1], [floor], "x", color=style.ALARM, markersize=3.5, markeredgewidth=0.9, clip_on=False)


FATE = {True: ":\nno signal passes", False: ""}


def _frame(axes: Axes, own: Rows, floor: float) -> None:
    """Axes, the diagonal on which all layers lose alike, and how many layers are empty in the end."""
    last = min(row["density_all"] for row in own)
    axes.plot([1, last], [1, last], color=style.GREY, linewidth=0.7, linestyle="--", zorder=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(1.15, last / 1.15)
    axes.set_ylim(floor / 1.3, 1.4)
    axes.minorticks_off()
    axes.set_xlabel("share left of all weights")
    ends = [row for row in own if row["density_all"] == last]
    seeds = len({row["seed"] for row in ends})
    empty = sum(row["kept"] == 0 for row in ends) / seeds
    if empty:
        told = f"{round(empty, 1):g} of {len(ends) // seeds} layers emptied" + FATE[any(row["cut"] for row in ends)]
        axes.text(0.04, 0.06, told, transform=axes.transAxes, color=style.ALARM)
