"""The demo: two small networks pruned to the bone by several methods, trained on digits, compared in a table."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from ...data import load
from ...pruning.methods import METHODS
from ..experiment.experiment import DENSE, Experiment
from ..experiment.styles import look
from ..records import records
from ..records.records import Row
from ..run.options import RunOptions
from ..sweep.sweep import sweep
from . import plots

SPARSITIES = {"small-vgg": 0.992, "small-resnet": 0.985}  # of each network, for every method
PROGRESSIVE = ("iter-snip", "force", "hybrid")
COMPARED = (DENSE, "random", "snip", *PROGRESSIVE)
EPOCHS, LEARNING_RATE = 8, 0.2
CHANCE, LEARNT = 10.0, 50.0  # % accuracy: of guessing one of ten classes, and from which on a network has learnt


STORY = "Weights removed before training: none, at random, in one shot (pale); progressively (full colour)."
CAUTION = "Digits and two small networks: a demonstration, which shows nothing about how the methods compare elsewhere."
BELOW = (
    "On {}, FORCE ends below Iterative SNIP, unlike in the paper. It leaves narrow networks, which need more epochs: "
    "with 40, 20 seeds do not tell the two methods apart (docs/results.md)."
)


def recipe(seeds: int = 3, epochs: int = EPOCHS) -> list[Experiment]:
    """Return the experiments: every method on every network, with each seed."""
    return [
        Experiment(model, "digits", method, SPARSITIES[model], seed, epochs=epochs, lr=LEARNING_RATE)
        for model, seed, method in product(SPARSITIES, range(seeds), COMPARED)
    ]


def demo(
    console: Console,
    seeds: int = 3,
    epochs: int = EPOCHS,
    stopping: Callable[[], bool] = lambda: False,
    out: Path | None = None,
) -> list[Row]:
    """Run the recipe on the CPU, print a table and a sentence for each network, draw them, and return the records.

    The runs are in a temporary folder, which is deleted at the end. The picture is written to `out`, if it is given.
    """
    data = load("digits")
    removed = " and ".join(f"{100 * sparsity:g} % of the weights of {model}" for model, sparsity in SPARSITIES.items())
    console.print(
        f"{len(data.train):,} handwritten digits for training, {len(data.test)} for testing. "
        f"Before training, each method removes {removed}.",
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
    for model in SPARSITIES:
        console.print(table(model, rows))
        console.print(sentence(model, rows), highlight=False)
    if reason := below(rows):
        console.print(reason, highlight=False)
    if out is not None:
        try:
            draw(rows, out)
            console.print(f"The picture of it is {out}", markup=False, highlight=False, soft_wrap=True)
        except ImportError as error:
            console.print(f"There is no picture: {error}", markup=False, highlight=False, soft_wrap=True)
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


def below(rows: Sequence[Row]) -> str:
    """Return why FORCE ends below Iterative SNIP, for the networks where it does; nothing if there is none."""
    percents = {(row["model"], row["method"]): round(100 * row["top1_mean"]) for row in rows}
    lower = [m for m in SPARSITIES if percents.get((m, "force"), 0) < percents.get((m, "iter-snip"), 0)]
    return BELOW.format(" and ".join(lower)) if lower else ""


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw the accuracy of every method on each network: each seed as a dot, their mean as a bar; write it as PNG."""
    with plots.styled():
        figure, [panels] = plots.panels(1, len(SPARSITIES), height=2.4)
        for axes, model in zip(panels, SPARSITIES, strict=True):
            for place, method in enumerate(reversed(COMPARED)):
                runs, shown = _runs(rows, model, method), look(method)
                mean = 100 * runs[0]["top1_mean"]
                axes.barh(place, mean, height=0.62, color=shown.colour, alpha=1.0 if method in PROGRESSIVE else 0.45)
                if len(runs) > 1:
                    axes.plot([100 * run["top1"] for run in runs], [place] * len(runs), ".", color=plots.INK)
                axes.text(101, place, f"{mean:.0f} %", va="center", fontsize=7)
            axes.axvline(CHANCE, color=plots.GREY, linewidth=0.8, linestyle=":")
            axes.text(CHANCE + 1, len(COMPARED) - 0.62, "guessing", color=plots.GREY, fontsize=6, va="bottom")
            axes.set_ylim(-0.6, len(COMPARED) - 0.3)
            axes.set_yticks(range(len(COMPARED)), [look(method).label for method in reversed(COMPARED)])
            axes.set_xlim(0, 114)
            axes.set_xticks(range(0, 101, 25))
            axes.grid(axis="y", visible=False)
            axes.set_title(f"{plots.model_label(model)}, {plots.percent(SPARSITIES[model])} of the weights removed")
            axes.set_xlabel("test accuracy (%)")
        seeds = " Dots are seeds." if len({row["seed"] for row in rows}) > 1 else ""
        figure.suptitle(STORY + seeds, x=0.01, ha="left", fontsize=8)
        figure.supxlabel(CAUTION, x=0.01, ha="left", fontsize=7, color=plots.ALARM)
        figure.savefig(path, dpi=plots.DPI, facecolor="white", format="png")


def _runs(rows: Sequence[Row], model: str, method: str) -> list[Row]:
    return [row for row in rows if (row["model"], row["method"]) == (model, method)]
