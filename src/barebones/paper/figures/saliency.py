"""The FORCE saliency: against the number of rounds, and of sparsified against pruned networks."""

from __future__ import annotations

from math import log
from statistics import correlation, fmean
from typing import TYPE_CHECKING

from ...lab import plots as style
from ...lab.tidy import grouped
from . import analyses
from .sources import Analysis, Rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

DIGITS, CIFAR10 = [("digits", "small-vgg")], [("cifar10", "resnet50")]

ROUNDS = Analysis(
    analyses.saliency_against_rounds,
    {
        "smoke": {
            "pairs": DIGITS, "seeds": [0], "methods": ["force", "iter-snip"], "batches": 4,
            "sparsities": [0.8, 0.9, 0.96], "rounds": [1, 3, 10],
        },
        "short": {
            "pairs": CIFAR10, "seeds": [0], "methods": ["force", "iter-snip"], "batches": 10,
            "sparsities": [0.9, 0.98, 0.99, 0.995], "rounds": [1, 2, 5, 20, 60, 300],
        },
        "paper": {
            "pairs": CIFAR10, "seeds": [0, 1, 2], "methods": ["force", "iter-snip"], "batches": 30,
            "sparsities": [0.9, 0.95, 0.98, 0.99, 0.995, 0.999], "rounds": [1, 2, 5, 10, 20, 50, 100, 200, 300],
        },
    },
    {"smoke": "10 s", "short": "3 min", "paper": "30 min"},
    ("data", "model", "method", "sparsity", "rounds", "relative"),
    analyses.relative,
)  # fmt: skip

SCATTER = Analysis(
    analyses.saliency_both_ways,
    {
        "smoke": {
            "pairs": DIGITS, "seeds": [0], "batches": 4, "rounds": 5,
            "sparsities": [0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99],
        },
        "short": {
            "pairs": CIFAR10, "seeds": [0], "batches": 10, "rounds": 20,
            "sparsities": [0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999],
        },
        "paper": {
            "pairs": CIFAR10, "seeds": [0, 1, 2], "batches": 30, "rounds": 60,
            "sparsities": [0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995],
        },
    },
    {"smoke": "5 s", "short": "30 s", "paper": "4 min"},
    ("data", "model", "sparsity", "pruned", "sparsified"),
)  # fmt: skip


def draw_rounds(rows: Rows) -> Canvas:
    """A panel for each method: S(T) / S(1) on logarithmic axes, darker lines for higher sparsities, with names."""
    methods = list(grouped(rows, "method"))
    sparsities = sorted(grouped(rows, "sparsity"))
    figure, [panels] = style.panels(1, len(methods), height=2.6)
    ink = style.shades(sparsities)
    for axes, method in zip(panels, methods, strict=True):
        own = [row for row in rows if row["method"] == method and row["relative"] is not None]
        for sparsity, group in sorted(grouped(own, "sparsity").items()):
            points = sorted((t, fmean(row["relative"] for row in some)) for t, some in grouped(group, "rounds").items())
            x, y = zip(*points, strict=True)
            axes.plot(x, y, color=ink[sparsity], marker="o")
        axes.axhline(1, color=style.GREY, linewidth=0.6)
        axes.set_yscale("log")
        style.count_axis(axes, grouped(rows, "rounds"), "pruning rounds T (1 is SNIP)")
        axes.set_title(f"{style.NAMES[method]}: {style.title(rows[0]['data'], rows[0]['model'])}")
    there = [row["relative"] for row in rows if row["relative"]] or [1.0]
    for axes in panels:
        low, high = min(there) / 1.15, max(there) * 1.15
        style.plain_log(axes.yaxis, low, high)
        axes.set_ylim(low, high)
    panels[0].set_ylabel("saliency S relative to T = 1")
    names = {f"{style.percent(s)} removed": style.handle("", color=ink[s], marker="o") for s in sparsities}
    style.legend(figure, names, columns=6)
    return figure


def draw_scatter(rows: Rows) -> Canvas:
    """Each mask one dot, coloured by its sparsity; the correlation of the logarithms is told."""
    shown = [row for row in rows if row["pruned"] > 0 and row["sparsified"] > 0]
    figure, [[axes]] = style.panels(1, 1, height=2.9)
    sparsities = sorted(grouped(rows, "sparsity"))
    ink = style.shades(sparsities)
    for sparsity, own in sorted(grouped(shown, "sparsity").items()):
        x, y = [row["pruned"] for row in own], [row["sparsified"] for row in own]
        axes.plot(x, y, "o", color=ink[sparsity], markersize=4.5, markeredgewidth=0, label=style.percent(sparsity))
    both = [value for row in shown for value in (row["pruned"], row["sparsified"])] or [1.0]
    ends = [min(both) / 1.3, max(both) * 1.3]
    axes.plot(ends, ends, color=style.GREY, linewidth=0.6, linestyle="--", zorder=1)
    axes.annotate("equal", (ends[1], ends[1]), (-9, -1), textcoords="offset points", ha="right", color=style.GREY)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.set_xlabel("saliency S of the pruned network")
    axes.set_ylabel("saliency S of the sparsified network")
    told = [f"{len(shown)} masks of FORCE"]
    told += [f"{len(rows) - len(shown)} more with S = 0"] * (len(shown) < len(rows))
    told += [f"r = {agreement(shown):.3f} (of logs)"] * (len(shown) > 2)
    axes.text(0.97, 0.05, "\n".join(told), transform=axes.transAxes, ha="right", va="bottom")
    axes.set_title(style.title(rows[0]["data"], rows[0]["model"]))
    axes.legend(title="weights removed", title_fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=1)
    return figure


def agreement(rows: Rows) -> float:
    """Pearson's correlation of the logarithms."""
    return correlation([log(row["pruned"]) for row in rows], [log(row["sparsified"]) for row in rows])
