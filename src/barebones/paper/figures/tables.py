"""Tables: time and accuracy (figure 4, right), ImageNet (table 1), and the weights of each layer type (table 2)."""

from collections.abc import Iterator
from itertools import product

import torch

from ...data import DATA
from ...lab.experiment.experiment import DENSE, Experiment
from ...lab.experiment.recipes import NETWORKS
from ...lab.experiment.styles import look, looks
from ...lab.figures import plots
from ...lab.figures.registry import Figure
from ...lab.figures.sources import Analysis, Runs, Settings
from ...lab.records.tables import Row, Rows, grouped, markdown, spread
from ...lab.run.network import built
from ...lab.run.options import RunOptions
from ...messages import counted
from ...models import parameter_table
from ...names import SCALES
from ..numbers import BELOW_RANDOM, COST, PARAMETERS
from .accuracy import MULTI_BATCH, OURS, PAPER, RANDOM, at_high_sparsity, beside, by_method, compared, iterations, usual

# Figure 4 (right): the time to a mask and the accuracy it leads to

FEW_AND_MANY = {"smoke": (2, 6), "short": (20, 300), "paper": (20, 300)}  # rounds; the many are also the batches
ONE_BATCH, MANY_BATCHES = (RANDOM, "snip", "grasp"), ("snip-mb", "grasp-mb")


def cost_experiments(scale: str) -> list[Experiment]:
    """Return SNIP and GRASP with one and many batches, FORCE and Iter SNIP with few and many rounds, and random."""
    few, many = FEW_AND_MANY[scale]
    one = [{"method": method} for method in ONE_BATCH]
    more = [{"method": method, "batches_per_round": many} for method in MANY_BATCHES]
    return at_high_sparsity(scale, [*one, *more, *iterations((few, many))])


def draw_cost(rows: Rows) -> str:
    """Return time and accuracy as a table, ours and the paper's; bold is worse than random masks."""
    by_source = {source: [row for row in rows if row["source"] == source] for source in (OURS, PAPER)}
    sources = [source for source in by_source if by_source[source]]
    random = spread(row["top1"] for row in by_source[OURS] if row["method"] == RANDOM).mean
    order = list(looks())
    places = {kind: (kind[0] == RANDOM, kind[1] * kind[2], order.index(kind[0])) for kind in map(_kind, rows)}
    body = []
    for kind in sorted(places, key=places.__getitem__):
        body.append([_name(*kind)])
        for source in sources:
            runs = [row for row in by_source[source] if _kind(row) == kind]
            body[-1] += _cells(runs, random if source == OURS else None)
    first = rows[0]
    where = f"{plots.title(first['data'], first['model'])}, {plots.percent(first['sparsity'])} removed"
    note = f"{where}, {counted(first['epochs'], 'epoch')}. Bold: below random masks."
    note += " The paper's times are those of a Tesla K40m." if PAPER in sources else ""
    return markdown(["method", *(f"{s}: {c}" for s in sources for c in ("time to mask", "accuracy (%)"))], body, note)


def _kind(row: Row) -> tuple[str, int, int]:
    return row["method"], row["rounds"], row["batches_per_round"]


def _name(method: str, rounds: int, batches: int) -> str:
    if method == RANDOM:
        return look(method).label
    number = counted(rounds, "round") if rounds > 1 else counted(batches, "batch", "es")
    return f"{look(method).label.removesuffix('-MB')} ({number})"


def _cells(runs: Rows, random: float | None) -> list[str]:
    """Return time and accuracy; without the accuracy of random masks, bold is what the paper prints red."""
    if not runs:
        return ["–", "–"]
    first = runs[0]
    seconds = spread(row["prune_seconds"] for row in runs).mean
    below = first["method"] in BELOW_RANDOM if random is None else first["mean"] < random
    accuracy = f"{100 * first['mean']:.1f}" + (f" ± {100 * first['std']:.1f}" if first["std"] else "")
    return ["" if seconds is None else _clock(seconds), f"**{accuracy}**" if below else accuracy]


def _clock(seconds: float) -> str:
    """Return a time with two or three digits.

    >>> _clock(0.034), _clock(14), _clock(288)
    ('0.03 s', '14 s', '4.8 min')
    """
    if seconds >= 60:
        return f"{seconds / 60:.1f} min"
    return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


# Table 1: top-1 and top-5 accuracy on ImageNet

IMAGENET = dict.fromkeys(SCALES, ((0.9, 0.95), range(1)))  # sparsities and, as in the paper, a single seed
TOPS = ("top-1", "top-5")


def draw_imagenet(rows: Rows) -> str:
    """Return a table with a line for each method, ours above and the paper's below."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    sparsities = sorted({row["sparsity"] for row in rows if row["method"] != DENSE})
    columns = list(product(models, sparsities))
    places = [f"{plots.model_label(model)}, {plots.percent(sparsity)}" for model, sparsity in columns]
    head = [f"{place}: {top}" for place in places for top in TOPS]
    body = [
        [f"{look(method).label} ({source})", *(cell for column in columns for cell in _tops(runs, *column))]
        for source in (OURS, PAPER)
        for method, runs in by_method([row for row in rows if row["source"] == source]).items()
    ]
    first = rows[0]
    note = f"{plots.data_label(first['data'])}, {counted(first['epochs'], 'epoch')}; accuracy in %. "
    return markdown(["", *head], body, note + "Dense: nothing removed, the same in both columns of a network.")


def _tops(runs: Rows, model: str, sparsity: float) -> list[str]:
    """Return top-1 and top-5; those of the dense network stand at every sparsity."""
    column = [row for row in runs if row["model"] == model and row["sparsity"] in (sparsity, 0)]
    means = [spread(row[name] for row in column).mean for name in ("top1", "top5")]
    return ["–" if mean is None else f"{100 * mean:.1f}" for mean in means]


# Table 2: the weights of each layer type, and the share of them that is prunable

SHARES = ("conv", "fully_connected", "batchnorm", "bias", "prunable")


def shares(settings: Settings, options: RunOptions) -> Iterator[Row]:
    """Compute the percentages of weights per layer type and the number of parameters, without allocating any."""
    for data, model in settings["pairs"]:
        with torch.device("meta"):
            table = parameter_table(built(model, DATA[data].inputs))
        for source, numbers in ((OURS, table), (PAPER, PARAMETERS[data, model])):
            yield {"source": source, "data": data, "model": model, **numbers._asdict()}


def draw_parameters(rows: Rows) -> str:
    """Return the percentages of all parameters, ours and the paper's; bold where they differ by more than rounding."""
    body = []
    for (data, model), both in grouped(rows, "data", "model").items():
        numbers = {row["source"]: [*(row[name] for name in SHARES), row["total"] / 1e6] for row in both}
        by_source = {source: [f"{number:.2f}" for number in each] for source, each in numbers.items()}
        ours, paper = by_source[OURS], by_source[PAPER]
        marked = [text if text == theirs else f"**{text}**" for text, theirs in zip(ours, paper, strict=True)]
        body += [[f"{plots.title(data, model)}: {OURS}", *marked], [f"{plots.title(data, model)}: {PAPER}", *paper]]
    head = ["", "conv", "linear", "norm", "bias", "prunable", "total"]
    note = "In % of the total, and the total in millions; “bias” includes that of batch-norm. "
    return markdown(head, body, note + "Bold: differs from the paper in the last digit that it prints, or more.")


FIGURES = {
    "cost": Figure(
        "Time to the mask and accuracy at 99.5 %: SNIP and GRASP with few and many batches, FORCE and Iter SNIP.",
        Runs(
            cost_experiments, beside(lambda number: number.where == COST, "rounds", "batches_per_round"),
            free=("seed",), jobs=1,
        ), draw_cost, ("14 s", "32 min", "8 h"), is_table=True,
    ),
    "imagenet": Figure(
        "Top-1 and top-5 accuracy on ImageNet at 90 and 95 %, VGG-19 and ResNet-50; short and paper need its images.",
        Runs(compared(["imagenet"], NETWORKS, MULTI_BATCH, IMAGENET), beside(usual, "sparsity"), free=("seed",)),
        draw_imagenet, ("10 s", "55 h", "495 h"), is_table=True,
    ),
    "parameters": Figure(
        "Weights per layer type and the prunable share, for all eight pairs of network and data set.",
        Analysis(
            shares,
            {scale: {"pairs": list(PARAMETERS)} for scale in SCALES},
            ("source", "data", "model", *SHARES, "total"),
        ),
        draw_parameters, ("1 s", "1 s", "1 s"), is_table=True,
    ),
}  # fmt: skip
