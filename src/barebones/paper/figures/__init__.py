"""Figures: every figure and table of the paper as data, a way to get its numbers, and a way to draw them."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from ...lab import plots as style
from ...lab import tidy
from ...lab.tidy import Rows
from . import accuracy, saliency, structure, tables, theory
from .sources import SCALES, Analysis, Runs, Work

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

__all__ = ["FIGURES", "SCALES", "Figure", "Work", "figure", "listed", "named"]


@dataclass(frozen=True)
class Figure:
    """A figure: what it shows in one sentence, where its rows come from, and how they are drawn."""

    about: str
    source: Runs | Analysis
    draw: Callable[[Rows], Canvas]


FIGURES: dict[str, Figure] = {
    "cifar10": Figure(
        "Accuracy against sparsity on CIFAR-10, ResNet-50 and VGG-19, all methods; below it the upper end, zoomed.",
        Runs(accuracy.cifar10, accuracy.rows),
        accuracy.draw,
    ),
    "cifar100": Figure(
        "Accuracy against sparsity on CIFAR-100, ResNet-50 and VGG-19, with the upper end zoomed.",
        Runs(accuracy.cifar100, accuracy.rows),
        accuracy.draw,
    ),
    "tiny-imagenet": Figure(
        "Accuracy against sparsity on Tiny-ImageNet, ResNet-50 and VGG-19, with the upper end zoomed.",
        Runs(accuracy.tiny_imagenet, accuracy.rows),
        accuracy.draw,
    ),
    "mobilenet": Figure(
        "Accuracy against sparsity of MobileNet-v2 on CIFAR-10: a network with a tenth of the weights.",
        Runs(accuracy.mobilenet, accuracy.rows),
        accuracy.draw,
    ),
    "early-pruning": Figure(
        "Magnitude pruning after one epoch of training, against pruning at initialization, on CIFAR-10.",
        Runs(accuracy.early_pruning, accuracy.rows),
        accuracy.draw,
    ),
    "iter-grasp": Figure(
        "Iterative GRASP against GRASP-MB, Iter SNIP and FORCE on CIFAR-10, CIFAR-100 and Tiny-ImageNet.",
        Runs(accuracy.iter_grasp, accuracy.rows),
        accuracy.draw,
    ),
    "saliency-vs-rounds": Figure(
        "FORCE saliency reached with T rounds relative to T = 1, on the same batches, for each sparsity.",
        saliency.ROUNDS,
        saliency.draw_rounds,
    ),
    "accuracy-vs-rounds": Figure(
        "Accuracy at 99.5 % sparsity against the number of pruning rounds T, for FORCE and Iter SNIP.",
        Runs(accuracy.vs_rounds, accuracy.rows_vs_rounds, free=("rounds", "seed")),
        accuracy.draw_vs_rounds,
    ),
    "cost": Figure(
        "Time to the mask and accuracy at 99.5 %: SNIP and GRASP with few and many batches, FORCE and Iter SNIP.",
        Runs(tables.cost, tables.rows_cost, free=("seed",), jobs=1),
        tables.draw_cost,
    ),
    "saliency-scatter": Figure(
        "Saliency of the sparsified against that of the pruned network, over masks of many sparsities.",
        saliency.SCATTER,
        saliency.draw_scatter,
    ),
    "layers": Figure(
        "What each method leaves of every layer at 99.9 %: density, count, and small counts; emptied layers marked.",
        structure.LAYERS,
        structure.draw_layers,
    ),
    "evolution": Figure(
        "Weights pruned and recovered in each round of Iter SNIP and FORCE, as shares of all prunable weights.",
        structure.EVOLUTION,
        structure.draw_evolution,
    ),
    "consistency": Figure(
        "What is left of each layer against the global density: one-shot methods, and rounds of iterated ones.",
        structure.CONSISTENCY,
        structure.draw_consistency,
    ),
    "parameters": Figure(
        "Weights per layer type and the prunable share, for all eight pairs of network and data set.",
        tables.PARAMETERS,
        tables.draw_parameters,
    ),
    "imagenet": Figure(
        "Top-1 and top-5 accuracy on ImageNet at 90 and 95 %, VGG-19 and ResNet-50; runs where ImageNet is.",
        Runs(tables.imagenet, tables.rows_imagenet, free=("seed",)),
        tables.draw_imagenet,
    ),
    "theory": Figure(
        "How far from locally optimal a mask is, against the size of the step that made it; tiny tanh networks.",
        theory.GAPS,
        theory.draw_gaps,
    ),
}


def named(name: str) -> Figure:
    """The figure of that name.

    >>> named("consistancy")
    Traceback (most recent call last):
    ValueError: there is no figure 'consistancy'; did you mean 'consistency'? barebones figure --list names all
    """
    if name in FIGURES:
        return FIGURES[name]
    near = difflib.get_close_matches(name.lower(), FIGURES, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    raise ValueError(f"there is no figure {name!r}{hint} barebones figure --list names all")


def figure(name: str, scale: str | None, out: Path, work: Work, source: Path | None = None) -> list[Path]:
    """Run what is missing, draw, and write NAME.png, NAME.svg and NAME.csv into `out`; the files that were written.

    With `source` nothing is run: the rows are those of NAME.csv there, or of the run folders in it. Without a scale
    that is the largest of which anything is there; else it is smoke. A NAME.csv of another scale than the one given is
    passed over. What the figure lacks is told in `work.failed`.
    """
    wanted = named(name)
    if scale is not None and scale not in SCALES:
        raise ValueError(f"scale {scale!r} is unknown; choose one of {', '.join(SCALES)}")
    style.require_matplotlib()
    read: Path | None = None
    if source is None:
        rows = _scaled(wanted.source.made(name, scale or "smoke", work), scale or "smoke")
    else:
        rows, read = _found(name, scale, source, work)
    out.mkdir(parents=True, exist_ok=True)
    table = out / f"{name}.csv"
    try:
        with style.styled():
            drawn = style.save(wanted.draw(rows), out / name)
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        if read is None:
            raise
        said = next(iter(str(error).splitlines()), type(error).__name__)[:200]
        raise ValueError(f"{read} holds values that {name} cannot be drawn from ({said})") from error
    tidy.write(rows, table)
    return [*drawn, table]


def _scaled(rows: Rows, scale: str) -> Rows:
    return [{"scale": scale} | row for row in rows]


def _found(name: str, scale: str | None, folder: Path, work: Work) -> tuple[Rows, Path | None]:
    """The rows, and the table that they were read from."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; name one that holds run folders or {name}.csv")
    source, other = FIGURES[name].source, ""
    if (path := folder / f"{name}.csv").exists():
        rows = tidy.read(path, source.columns)
        told = {row.get("scale") for row in rows}
        if scale is None or told == {scale}:
            return rows, path
        said = " and ".join(sorted(map(str, told - {None}))) or "no scale it tells"
        other = f" ({path.name} there is of {said}: it is drawn without --scale)"
    for each in [scale] if scale else reversed(SCALES):
        try:
            return _scaled(source.found(name, each, folder, work), each), None
        except ValueError as error:
            last = error
    tried = f"at scale {scale}" if scale else "at any scale"
    raise ValueError(f"{last} {tried}{other}; without --from, barebones figure {name} runs what is missing")


def listed() -> Table:
    """All figures, each with a sentence and what it costs."""
    where = "smoke on two CPU cores, short and paper about so long on one H200"
    shown = Table.grid(padding=(0, 2))
    shown.title, shown.title_justify = f"barebones figure NAME --scale SCALE: {where}", "left"
    for name, one in FIGURES.items():
        costs = "; ".join(f"{scale}: {one.source.cost(scale)}" for scale in SCALES)
        shown.add_row(Text(name, style="bold", no_wrap=True), Text.assemble(one.about, "\n", (costs, "dim")))
    return shown
