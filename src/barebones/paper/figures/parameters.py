"""Table 2: the weights of each layer type, and the share of them that is prunable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from ...data import DATA
from ...lab.figures import plots
from ...lab.figures.plots import Cell
from ...lab.figures.registry import Figure
from ...lab.figures.sources import SCALES, Analysis, Settings
from ...lab.records.tables import Row, Rows, grouped
from ...lab.run.network import built
from ...lab.run.options import RunOptions
from ...models import parameter_table
from ..accuracies import OURS, PAPER
from ..numbers import PARAMETERS

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

SHARES = ("conv", "fully_connected", "batchnorm", "bias", "prunable")


def analyse(settings: Settings, options: RunOptions) -> Iterator[Row]:
    """Compute the percentages of weights per layer type and the number of parameters, without allocating any."""
    for data, model in settings["pairs"]:
        with torch.device("meta"):
            shares = parameter_table(built(model, DATA[data].inputs))
        yield {"source": OURS, "data": data, "model": model, **shares._asdict()}


def with_paper(rows: Rows) -> Rows:
    """Add the rows of the paper's table."""
    printed = [shares._asdict() for shares in PARAMETERS]
    return [*rows, *({"source": PAPER} | row | {"total": round(1e6 * row.pop("millions"))} for row in printed)]


def draw(rows: Rows) -> Canvas:
    """Draw the percentages of all parameters, ours and the paper's; red where they differ by more than rounding."""
    body: list[list[Cell]] = []
    for (data, model), both in grouped(rows, "data", "model").items():
        by_source = {row["source"]: row for row in both}
        cells: list[Cell] = [plots.title(data, model)]
        for source in (OURS, PAPER):
            for name in (*SHARES, "total"):
                text = _text(by_source[source], name)
                differs = source == OURS and text != _text(by_source[PAPER], name)
                cells.append((text, {"color": plots.ALARM} if differs else {}))
        body.append(cells)
    head = ["conv", "linear", "norm", "bias", "prunable", "total"]
    return plots.table(
        ["", *head, *head],
        body,
        [1.4, *[0.43, 0.43, 0.42, 0.36, 0.62, 0.44] * 2],
        above=[(1, 6, "ours (% of the total)"), (7, 12, "paper")],
        rules=[1, 3, 5],
        note="Totals in millions; “bias” includes that of batch-norm.\n"
        "Red: differs from the paper in the last digit it prints, or more.",
    )


def _text(row: Row, name: str) -> str:
    return f"{row['total'] / 1e6:.2f}" if name == "total" else f"{row[name]:.2f}"


FIGURES = {
    "parameters": Figure(
        "Weights per layer type and the prunable share, for all eight pairs of network and data set.",
        Analysis(
            analyse,
            {scale: {"pairs": [(shares.data, shares.model) for shares in PARAMETERS]} for scale in SCALES},
            dict.fromkeys(SCALES, "1 s"),
            ("source", "data", "model", *SHARES, "total"),
            with_paper,
        ),
        draw,
    ),
}
