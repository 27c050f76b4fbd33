"""Figure 4 (right): the time to a mask and the accuracy it leads to."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from ...lab.experiment.experiment import Experiment
from ...lab.experiment.styles import look, looks
from ...lab.figures import plots
from ...lab.figures.registry import Figure
from ...lab.figures.sources import Runs
from ...lab.records.statistics import spread
from ...lab.records.tables import Row, Rows, markdown
from ...messages import counted
from ..accuracies import GRID, HIGH_SPARSITY, OURS, PAPER, RANDOM, at_scale, measured, references
from ..numbers import BELOW_RANDOM, COST

FEW_AND_MANY = {"smoke": (2, 6), "short": (20, 300), "paper": (20, 300)}  # rounds; the many are also the batches
ONE_BATCH, MANY_BATCHES, ITERATED = (RANDOM, "snip", "grasp"), ("snip-mb", "grasp-mb"), ("force", "iter-snip")


def experiments(scale: str) -> list[Experiment]:
    """Return SNIP and GRASP with one and many batches, FORCE and Iter SNIP with few and many rounds, and random."""
    few, many = FEW_AND_MANY[scale]
    base = Experiment("vgg19" if scale == "smoke" else "resnet50", "cifar10", sparsity=HIGH_SPARSITY[scale])
    listed = []
    for seed in GRID[scale][1]:
        listed += [replace(base, method=method, seed=seed) for method in ONE_BATCH]
        listed += [replace(base, method=method, batches_per_round=many, seed=seed) for method in MANY_BATCHES]
        for method, rounds in product(ITERATED, (few, many)):
            listed.append(replace(base, method=method, rounds=rounds, seed=seed))
    return [at_scale(experiment, scale) for experiment in listed]


def rows(records: Sequence[Row]) -> Rows:
    """Return a row for each run, then the paper's table."""
    ours = measured(records, "data", "model", "method", "rounds", "batches_per_round")
    return [*ours, *references(records, lambda number: number.where == COST)]


def draw(rows: Rows) -> str:
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
    """Return the method with its number of rounds or batches.

    >>> _name("snip", 1, 1), _name("force", 20, 1), _name("random", 1, 1)
    ('SNIP (1 batch)', 'FORCE (20 rounds)', 'Random')
    """
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


FIGURES = {
    "cost": Figure(
        "Time to the mask and accuracy at 99.5 %: SNIP and GRASP with few and many batches, FORCE and Iter SNIP.",
        Runs(experiments, rows, free=("seed",), jobs=1),
        draw,
        is_table=True,
    ),
}
