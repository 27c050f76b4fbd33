"""The demo: a small network pruned to the bone by several methods, trained on digits, compared in a table."""

import tempfile
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from ...data import load
from ...pruning.methods import METHODS
from ..experiment.experiment import DENSE, Experiment
from ..experiment.recipes import EPOCHS
from ..experiment.styles import look
from ..records import records
from ..records.records import Row
from ..run.options import RunOptions
from ..sweep.sweep import sweep
from . import plots

# Chosen on seeds 1 to 3 and confirmed on 4 to 6, for two minutes on two cores. On them, the protocol's 60 rounds of one
# batch leave up to two classes of FORCE without a path. GRASP is not compared: its one shot survives on this network.
MODEL, SPARSITY, ROUNDS, BATCHES = "small-vgg", 0.99, 20, 4
PROGRESSIVE = ("iter-snip", "force", "hybrid")
COMPARED = (DENSE, "random", "snip", *PROGRESSIVE)
CHANCE = 10.0  # % accuracy of guessing one of ten classes
FALLEN, ALIVE = 0.5, 0.8  # parts of the dense accuracy: a network below the first fell apart, one above the second not

STORY = "Weights removed before training: none, at random, in one shot (pale); progressively (full color)."
CAUTION = "One small network on digits; docs/results.md compares the methods on larger ones."


def recipe(seeds: int = 3, epochs: int = EPOCHS) -> list[Experiment]:
    more: dict[str, Any] = {"rounds": ROUNDS, "batches_per_round": BATCHES}
    return [
        Experiment(MODEL, "digits", method, SPARSITY, seed, epochs=epochs, **(more if method in PROGRESSIVE else {}))
        for seed, method in product(range(seeds), COMPARED)
    ]


def demo(
    console: Console,
    seeds: int = 3,
    epochs: int = EPOCHS,
    stopping: Callable[[], bool] = lambda: False,
    out: Path | None = None,
) -> list[Row]:
    """Run the recipe on the CPU in a temporary folder, print a table and what it shows, draw it; return the records."""
    data = load("digits")
    console.print(
        f"{len(data.train):,} handwritten digits for training, {len(data.test)} for testing. "
        f"Before training, each method removes {100 * SPARSITY:g} % of the weights of {MODEL}.",
        highlight=False,
    )
    with tempfile.TemporaryDirectory(prefix="barebones-demo-") as folder:
        options = RunOptions(runs=Path(folder))
        outcome = sweep(recipe(seeds, epochs), options, console=console, stopping=stopping, summarize=False)
        rows = records.records(options.runs)
    if outcome.stopped:
        return rows
    if failed := [row for row in rows if row["status"] != records.DONE]:
        raise ValueError(f"{failed[0]['folder']} failed: {failed[0]['reason']}")
    console.print(table(rows))
    console.print(sentence(rows), highlight=False)
    if out is not None:
        try:
            draw(rows, out)
            console.print(f"The picture of it is {out}", markup=False, highlight=False, soft_wrap=True)
        except ImportError as error:
            console.print(f"There is no picture: {error}", markup=False, highlight=False, soft_wrap=True)
    return rows


def table(rows: Sequence[Row]) -> Table:
    seeds = len({row["seed"] for row in rows})
    over = f"mean ± standard deviation of {seeds} seeds" if seeds > 1 else "one seed"
    shown = Table(title=f"{MODEL}, {100 * SPARSITY:g} % removed; {over}", title_justify="left")
    shown.add_column("method")
    for name in ("accuracy %", "effective\nsparsity %", "collapsed", "seconds to\nprune", "seconds to\ntrain"):
        shown.add_column(name, justify="right")
    for method in COMPARED:
        runs = _runs(rows, method)
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


def sentence(rows: Sequence[Row]) -> str:
    """Return in words what the numbers show, and whether the paper says the same."""
    mean = {method: 100 * _runs(rows, method)[0]["top1_mean"] for method in COMPARED}
    falls = mean["snip"] < FALLEN * mean[DENSE]
    survives = min(mean[method] for method in PROGRESSIVE) >= ALIVE * mean[DENSE]
    progressive = ", ".join(f"{look(method).label} {mean[method]:.0f} %" for method in PROGRESSIVE)
    return (
        f"Pruned in one shot by {look('snip').label}, the network ends at {mean['snip']:.0f} % "
        f"(random pruning: {mean['random']:.0f} %, guessing: {CHANCE:.0f} %). "
        f"Pruned progressively, it reaches {progressive} (dense: {mean[DENSE]:.0f} %). "
        f"This is {'' if falls and survives else 'not '}what the paper says: "
        f"{look('snip').label} falls apart at a sparsity that progressive pruning survives."
    )


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw the accuracy of every method: each seed as a dot, their mean as a bar; write it as PNG."""
    with plots.styled():
        figure = plots.canvas(plots.PAGE, 2.4)
        axes = figure.subplots()
        for place, method in enumerate(reversed(COMPARED)):
            runs, shown = _runs(rows, method), look(method)
            mean = 100 * runs[0]["top1_mean"]
            axes.barh(place, mean, height=0.62, color=shown.color, alpha=1.0 if method in PROGRESSIVE else 0.45)
            if len(runs) > 1:
                axes.plot([100 * run["top1"] for run in runs], [place] * len(runs), ".", color=plots.INK)
            axes.text(101, place, f"{mean:.0f} %", va="center", fontsize=7)
        axes.axvline(CHANCE, color=plots.GRAY, linewidth=0.8, linestyle=":")
        axes.text(CHANCE + 1, len(COMPARED) - 0.62, "guessing", color=plots.GRAY, fontsize=6, va="bottom")
        axes.set_ylim(-0.6, len(COMPARED) - 0.3)
        axes.set_yticks(range(len(COMPARED)), [look(method).label for method in reversed(COMPARED)])
        axes.set_xlim(0, 108)
        axes.set_xticks(range(0, 101, 25))
        axes.grid(axis="y", visible=False)
        axes.set_title(f"{plots.model_label(MODEL)}, {plots.percent(SPARSITY)} of the weights removed")
        axes.set_xlabel("test accuracy (%)")
        seeds = " Dots are seeds." if len({row["seed"] for row in rows}) > 1 else ""
        figure.suptitle(STORY + seeds, x=0.01, ha="left", fontsize=8)
        figure.supxlabel(CAUTION, x=0.01, ha="left", fontsize=7, color=plots.GRAY)
        figure.savefig(path, dpi=plots.DPI, facecolor="white", format="png")


def _runs(rows: Sequence[Row], method: str) -> list[Row]:
    return [row for row in rows if row["method"] == method]
