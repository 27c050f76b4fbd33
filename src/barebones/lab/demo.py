"""The demo: two small networks pruned to the bone by several methods, trained on digits, compared in a table."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from ..data import load
from ..pruning.methods import METHODS
from . import records
from .experiment import DENSE, Experiment
from .looks import look
from .options import RunOptions
from .records import Row
from .sweep import sweep

SPARSITIES = {"small-vgg": 0.992, "small-resnet": 0.985}  # of each network, for every method
PROGRESSIVE = ("iter-snip", "force", "hybrid")
COMPARED = (DENSE, "random", "snip", *PROGRESSIVE)
EPOCHS, LEARNING_RATE = 8, 0.2
CHANCE, LEARNT = (
    10.0,
    50.0,
)  # % accuracy: of guessing one of ten classes, and from which on a network counts as learning


def recipe(seeds: int = 3, epochs: int = EPOCHS) -> list[Experiment]:
    """Return the experiments: every method on every network, with each seed."""
    return [
        Experiment(model, "digits", method, SPARSITIES[model], seed, epochs=epochs, lr=LEARNING_RATE)
        for model, seed, method in product(SPARSITIES, range(seeds), COMPARED)
    ]


def demo(
    console: Console, seeds: int = 3, epochs: int = EPOCHS, stopping: Callable[[], bool] = lambda: False
) -> list[Row]:
    """Run the recipe on the CPU, print a table and a sentence for each network, and return the records.

    The runs are in a temporary folder, which is deleted at the end.
    """
    data = load("digits")
    removed = " and ".join(f"{100 * sparsity:g} % of the weights of {model}" for model, sparsity in SPARSITIES.items())
    console.print(
        f"{len(data.train):,} handwritten digits for training, {len(data.test)} for testing. "
        f"Before training, each method removes {removed}.",
        highlight=False,
    )
    with tempfile.TemporaryDirectory(prefix="barebones-demo-") as folder:
        options, progress = RunOptions(runs=Path(folder)), console if console.is_terminal else Console(quiet=True)
        outcome = sweep(recipe(seeds, epochs), options, console=progress, stopping=stopping, summarize=False)
        rows = records.records(options.runs)
    if outcome.stopped:
        return rows
    if failed := [row for row in rows if row["status"] != records.DONE]:
        raise ValueError(f"{failed[0]['folder']} failed: {failed[0]['reason']}")
    for model in SPARSITIES:
        console.print(table(model, rows))
        console.print(sentence(model, rows), highlight=False)
    return rows


def table(model: str, rows: Sequence[Row]) -> Table:
    """Compare the methods on a network: mean and standard deviation over the seeds."""
    seeds = len({row["seed"] for row in rows})
    over = f"mean ± standard deviation of {seeds} seeds" if seeds > 1 else "one seed"
    shown = Table(title=f"{model}, {100 * SPARSITIES[model]:g} % removed; {over}", title_justify="left")
    shown.add_column("method")
    for name in ("accuracy %", "effective\nsparsity %", "collapsed", "seconds to\nprune", "seconds to\ntrain"):
        shown.add_column(name, justify="right")
    for method in COMPARED:
        runs = _runs(rows, model, method)
        mean, deviation = runs[0]["top1_mean"], runs[0]["top1_std"]
        shown.add_row(
            look(method).label,
            f"{100 * mean:.1f}" + (f" ± {100 * deviation:4.1f}" if deviation is not None else ""),
            f"{100 * fmean(run['effective_sparsity'] for run in runs):.1f}",
            f"{sum(run['collapsed'] for run in runs)} of {seeds}",
            f"{fmean(run['prune_seconds'] for run in runs):.2f}" if method in METHODS else "",
            f"{fmean(run['train_seconds'] for run in runs):.2f}",
            style="bold" if method in PROGRESSIVE else None if method in METHODS else "dim",
        )
    return shown


def sentence(model: str, rows: Sequence[Row]) -> str:
    """Return in words what the numbers of a network show, and whether the paper says the same."""
    mean = {method: 100 * _runs(rows, model, method)[0]["top1_mean"] for method in COMPARED}
    one_shot, random = mean["snip"], mean["random"]
    fails = ["near chance"] * (one_shot < 2 * CHANCE) + ["below random pruning"] * (one_shot < random)
    learns = min(mean[method] for method in PROGRESSIVE) > max(LEARNT, random, one_shot)
    progressive = ", ".join(f"{look(method).label} {mean[method]:.0f} %" for method in PROGRESSIVE)
    return (
        f"{model}: one-shot {look('snip').label} ends at {one_shot:.0f} %, "
        f"{' and '.join(fails) or 'above random pruning'} (random pruning: {random:.0f} %). "
        f"Pruned progressively, the same network reaches {progressive} (dense: {mean[DENSE]:.0f} %). "
        f"This is {'' if fails and learns else 'not '}what the paper says: "
        "one-shot pruning falls to chance or below random where progressive pruning still learns."
    )


def _runs(rows: Sequence[Row], model: str, method: str) -> list[Row]:
    return [row for row in rows if (row["model"], row["method"]) == (model, method)]
