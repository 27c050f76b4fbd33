"""Table 2: the weights of each layer type, and the share of them that is prunable."""

from collections.abc import Iterator

import torch

from ...data import DATA
from ...lab.figures import plots
from ...lab.figures.registry import Figure
from ...lab.figures.sources import SCALES, Analysis, Settings
from ...lab.records.tables import Row, Rows, grouped, markdown
from ...lab.run.network import built
from ...lab.run.options import RunOptions
from ...models import parameter_table
from ..accuracies import OURS, PAPER
from ..numbers import PARAMETERS

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


def draw(rows: Rows) -> str:
    """Return the percentages of all parameters, ours and the paper's; bold where they differ by more than rounding."""
    body = []
    for (data, model), both in grouped(rows, "data", "model").items():
        by_source = {row["source"]: [_text(row, name) for name in (*SHARES, "total")] for row in both}
        ours, paper = by_source[OURS], by_source[PAPER]
        marked = [text if text == theirs else f"**{text}**" for text, theirs in zip(ours, paper, strict=True)]
        body += [[f"{plots.title(data, model)}: {OURS}", *marked], [f"{plots.title(data, model)}: {PAPER}", *paper]]
    return markdown(
        ["", "conv", "linear", "norm", "bias", "prunable", "total"],
        body,
        "In % of the total, and the total in millions; “bias” includes that of batch-norm. "
        "Bold: differs from the paper in the last digit that it prints, or more.",
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
        is_table=True,
    ),
}
