"""The theory: the local-optimality gap of a mask against the size of the step that made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...lab import plots as style
from ...lab.tidy import grouped
from . import analyses
from .sources import Analysis, Rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

GAPS = Analysis(
    analyses.gaps,
    {
        "smoke": {"widths": [2, 3, 2], "keeps": [4], "networks": 60, "swaps": 1},
        "short": {"widths": [3, 2, 3], "keeps": [4], "networks": 300, "swaps": 1},
        "paper": {"widths": [3, 2, 3], "keeps": [3, 4, 5], "networks": 1000, "swaps": 1},
    },
    {"smoke": "5 s", "short": "10 s (CPU)", "paper": "2 min (CPU)"},
    ("widths", "keep", "networks", "step", "gap", "error", "gap_anywhere", "error_anywhere"),
)


def draw_gaps(rows: Rows) -> Canvas:
    """A panel for each number of kept weights: the mean gap with its standard error, two ways."""
    keeps = grouped(rows, "keep")
    figure, [panels] = style.panels(1, len(keeps), height=2.8)
    lines = {
        "exchanges within the mask before the step": ("gap", "error", style.INK, "o", "-"),
        "exchanges with any weight": ("gap_anywhere", "error_anywhere", style.GREY, "s", "--"),
    }
    for axes, (keep, own) in zip(panels, keeps.items(), strict=True):
        x = [row["step"] for row in own]
        for label, (gap, error, ink, mark, dashes) in lines.items():
            y, e = [row[gap] for row in own], [row[error] for row in own]
            axes.errorbar(x, y, e, color=ink, marker=mark, linestyle=dashes, elinewidth=0.7, label=label)
        axes.axhline(0, color=style.GREY, linewidth=0.6)
        axes.set_xlabel("step size: weights removed at once")
        axes.set_title(f"to {keep} kept weights")
        axes.set_xticks(x)
        axes.annotate(
            "one-shot\nSNIP", (x[-1], max(own[-1]["gap"], own[-1]["gap_anywhere"])), (3, 18),
            textcoords="offset points", ha="right", color=style.GREY,
        )  # fmt: skip
        axes.margins(y=0.3)
    panels[0].set_ylabel("local-optimality gap (saliency)")
    handles = {label: _handle(ink, mark, dashes) for label, (_, _, ink, mark, dashes) in lines.items()}
    style.legend(figure, handles, columns=2 if len(keeps) > 1 else 1)
    about = f"{rows[0]['networks']} random tanh networks of widths {rows[0]['widths']}"
    figure.suptitle(about, x=0.01, ha="left", fontsize=8.5)
    return figure


def _handle(ink: str, mark: str, dashes: str) -> Any:
    return style.handle("", color=ink, marker=mark, linestyle=dashes)
