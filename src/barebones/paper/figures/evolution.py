"""Figure 9: how many weights each round prunes and recovers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...lab.experiment.styles import look
from ...lab.figures import plots
from ...lab.figures.analyses import experiment_on, identified, networks, pruned
from ...lab.figures.registry import Figure
from ...lab.figures.sources import Analysis, Settings
from ...lab.records.tables import Row, Rows, grouped
from ...lab.run.options import RunOptions
from ...scope import prunable

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

METHODS = ["iter-snip", "force"]
SETTINGS: dict[str, Settings] = {
    "smoke": {
        "pairs": [("digits", "small-vgg")], "seeds": [0], "sparsity": 0.99, "rounds": 40, "methods": METHODS,
    },
    "short": {
        "pairs": [("cifar10", "resnet50")], "seeds": [0], "sparsity": 0.995, "rounds": 60, "methods": METHODS,
    },
    "paper": {
        "pairs": [("cifar10", "resnet50"), ("cifar10", "vgg19")], "seeds": [0], "sparsity": 0.995, "rounds": 300,
        "methods": METHODS,
    },
}  # fmt: skip
COUNTS = ("pruned", "recovered", "recovered_empty")


def analyse(settings: Settings, options: RunOptions) -> Iterator[Row]:
    """Count what each round prunes and recovers, also as shares of all prunable weights."""
    for network in networks(settings, options):
        total = sum(weight.numel() for weight in prunable(network.model).values())
        for method in settings["methods"]:
            experiment = experiment_on(network, method, settings["sparsity"], rounds=settings["rounds"])
            for record in pruned(network, experiment, options).rounds:
                counts = {name: getattr(record, name) for name in COUNTS}
                shares = {f"{name}_share": count / total for name, count in counts.items()}
                yield identified(experiment) | {"round": record.index + 1, "keep": record.keep} | counts | shares


def draw(rows: Rows) -> Canvas:
    """Draw a panel for each network and method: the shares that each round prunes and recovers."""
    runs = grouped(rows, "data", "model", "method")
    columns = len(grouped(rows, "method"))
    figure, lines = plots.panels(-(-len(runs) // columns), columns, height=2.4)
    panels = [axes for line in lines for axes in line]
    for axes in panels[len(runs) :]:
        axes.set_axis_off()
    for axes, ((*_, method), rounds) in zip(panels, runs.items(), strict=False):
        x = [row["round"] for row in rounds]
        for name, label, dashes, colour in (
            ("pruned", "pruned", "-", look(method).colour),
            ("recovered", "recovered", "--", plots.INK),
            ("recovered_empty", "recovered in empty channels", ":", plots.GREY),
        ):
            y = [100 * row[f"{name}_share"] for row in rounds]
            axes.plot(x, y, color=colour, linestyle=dashes, label=label)
        axes.set_title(f"{look(method).label}: {plots.title(rounds[0]['data'], rounds[0]['model'])}")
        axes.set_xlabel(f"round (of {max(x)}, to {plots.percent(rounds[0]['sparsity'])} removed)")
        axes.legend(loc="upper right")
    high = 108 * max(row["pruned_share"] for row in rows)
    for axes in panels:
        axes.set_ylim(0, high)
    for line in lines:
        line[0].set_ylabel("share of prunable weights (%)")
    return figure


FIGURES = {
    "evolution": Figure(
        "Weights pruned and recovered in each round of Iter SNIP and FORCE, as shares of all prunable weights.",
        Analysis(
            analyse,
            SETTINGS,
            {"smoke": "3 s", "short": "15 s", "paper": "1 min"},
            ("data", "model", "method", "sparsity", "round", *(f"{name}_share" for name in COUNTS)),
        ),
        draw,
    ),
}
