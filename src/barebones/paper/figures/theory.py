"""Appendix D: the local-optimality gap of a mask against the size of the step that made it."""

from collections.abc import Iterator

from ...lab.figures import plots
from ...lab.figures.plots import Canvas
from ...lab.figures.registry import Figure
from ...lab.figures.sources import Analysis, Settings
from ...lab.records.tables import Row, Rows, grouped
from ...lab.run.options import RunOptions
from ..theory import gaps_by_step, tanh_network

SETTINGS: dict[str, Settings] = {
    "smoke": {"widths": [2, 3, 2], "keeps": [4], "networks": 60, "swaps": 1},
    "short": {"widths": [3, 2, 3], "keeps": [4], "networks": 300, "swaps": 1},
    "paper": {"widths": [3, 2, 3], "keeps": [3, 4, 5], "networks": 1000, "swaps": 1},
}
LINES = {  # columns of the gap and its error, colour, marker and dashes
    "exchanges within the mask before the step": ("gap", "error", plots.INK, "o", "-"),
    "exchanges with any weight": ("gap_anywhere", "error_anywhere", plots.GREY, "s", "--"),
}


def analyse(settings: Settings, options: RunOptions) -> Iterator[Row]:
    """Compute the gap for each size of the step, on many small tanh networks."""
    for keep in settings["keeps"]:
        landscapes = [tanh_network(settings["widths"], seed=seed) for seed in range(settings["networks"])]
        for row in gaps_by_step(landscapes, keep, swaps=settings["swaps"]):
            yield {"widths": "-".join(map(str, settings["widths"])), "keep": keep, **vars(row)}


def draw(rows: Rows) -> Canvas:
    """Draw a panel for each number of kept weights: the mean gap with its standard error, over two sets of masks."""
    keeps = grouped(rows, "keep")
    figure, [panels] = plots.panels(1, len(keeps), height=2.8)
    for axes, (keep, steps) in zip(panels, keeps.items(), strict=True):
        x = [row["step"] for row in steps]
        for label, (gap, error, colour, marker, dashes) in LINES.items():
            y, errors = [row[gap] for row in steps], [row[error] for row in steps]
            axes.errorbar(x, y, errors, color=colour, marker=marker, linestyle=dashes, elinewidth=0.7, label=label)
        axes.axhline(0, color=plots.GREY, linewidth=0.6)
        axes.set_xlabel("step size: weights removed at once")
        axes.set_title(f"to {keep} kept weights")
        axes.set_xticks(x)
        axes.annotate(
            "one-shot\nSNIP", (x[-1], max(steps[-1]["gap"], steps[-1]["gap_anywhere"])), (3, 18),
            textcoords="offset points", ha="right", color=plots.GREY,
        )  # fmt: skip
        axes.margins(y=0.3)
    panels[0].set_ylabel("local-optimality gap (saliency)")
    handles = {label: plots.handle(*style) for label, (_, _, *style) in LINES.items()}
    plots.legend(figure, handles, columns=2 if len(keeps) > 1 else 1)
    about = f"{rows[0]['networks']} random tanh networks of widths {rows[0]['widths']}"
    figure.suptitle(about, x=0.01, ha="left", fontsize=8.5)
    return figure


FIGURES = {
    "theory": Figure(
        "How far from locally optimal a mask is, against the size of the step that made it; tiny tanh networks.",
        Analysis(
            analyse, SETTINGS, ("widths", "keep", "networks", "step", "gap", "error", "gap_anywhere", "error_anywhere")
        ),
        draw,
        ("5 s", "10 s (CPU)", "2 min (CPU)"),
    ),
}
