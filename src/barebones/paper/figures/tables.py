"""The tables: what a mask costs, the weights per layer type, and ImageNet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import isnan
from typing import TYPE_CHECKING

from ...lab import plots as style
from ...lab.experiment import DENSE, Experiment
from ...lab.plots import Cell
from ...lab.tidy import grouped, spread
from .. import numbers as paper
from . import analyses
from .accuracy import AT, GRID, MULTI_BATCH, OURS, PAPER, SMOKE_METHODS, by_method, fitted, measured, references
from .sources import SCALES, Analysis, Row, Rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

FEW_AND_MANY = {"smoke": (2, 6), "short": (20, 300), "paper": (20, 300)}  # rounds; many is also that of batches
ORDER = list(style.NAMES)
ALARM = {"color": style.ALARM}


def cost(scale: str) -> list[Experiment]:
    """SNIP and GRASP with one and many batches, FORCE and Iter SNIP with few and many rounds, random to compare."""
    few, many = FEW_AND_MANY[scale]
    base = Experiment("vgg19" if scale == "smoke" else "resnet50", "cifar10", sparsity=AT[scale])
    found = []
    for seed in GRID[scale][1]:
        found += [replace(base, method=method, seed=seed) for method in ("random", "snip", "grasp")]
        found += [replace(base, method=method, batches=many, seed=seed) for method in ("snip-mb", "grasp-mb")]
        for method, rounds in product(("force", "iter-snip"), (few, many)):
            found.append(replace(base, method=method, rounds=rounds, seed=seed))
    return [fitted(one, scale) for one in found]


def rows_cost(records: Sequence[Row]) -> Rows:
    """The runs by method, rounds and batches; then the paper's table."""
    own = measured(records, "data", "model", "method", "rounds", "batches")
    return [*own, *references(records, lambda r: r.where == paper.COST)]


def draw_cost(rows: Rows) -> Canvas:
    """Time and accuracy of ours and of the paper's; red is worse than random masks."""
    of = {source: [row for row in rows if row["source"] == source] for source in (OURS, PAPER)}
    sources = [source for source in (OURS, PAPER) if of[source]]
    random = spread(row["top1"] for row in of[OURS] if row["method"] == "random")[0]
    kinds = sorted(
        dict.fromkeys((row["method"], row["rounds"], row["batches"]) for row in rows),
        key=lambda kind: (kind[0] == "random", kind[1] * kind[2], ORDER.index(kind[0])),
    )
    body: list[list[Cell]] = []
    for kind in kinds:
        cells: list[Cell] = [_work(*kind)]
        for source in sources:
            own = [row for row in of[source] if (row["method"], row["rounds"], row["batches"]) == kind]
            cells += _costs(own, random if source == OURS else None)
        body.append(cells)
    first = rows[0]
    where = f"{style.title(first['data'], first['model'])}, {style.percent(first['sparsity'])} removed"
    notes = [f"{where}, {first['epochs']} epoch" + "s" * (first["epochs"] != 1) + ".", "Red: below random masks."]
    notes += ["The paper's times are those of a Tesla K40m."] * (PAPER in sources)
    return style.table(
        ["method", *["time to mask", "accuracy (%)"] * len(sources)],
        body,
        [1.45, *[0.95, 1.05] * len(sources)],
        above=[(2 * number + 1, 2 * number + 2, source) for number, source in enumerate(sources)] * (len(sources) > 1),
        rules=[len(body) - 2] if kinds[-1][0] == "random" else (),
        note=_wrapped(notes, len(sources)),
    )


def _wrapped(notes: list[str], sources: int) -> str:
    return "\n".join(notes) if sources == 1 else "\n".join([notes[0], " ".join(notes[1:])])


def _work(method: str, rounds: int, batches: int) -> str:
    """
    >>> _work("snip", 1, 1), _work("force", 20, 1), _work("random", 1, 1)
    ('SNIP (1 batch)', 'FORCE (20 rounds)', 'Random')
    """
    if method == "random":
        return style.NAMES[method]
    number, word = (rounds, "round") if rounds > 1 else (batches, "batch")
    many = "es" if word == "batch" else "s"
    return f"{style.NAMES[method].removesuffix('-MB')} ({number} {word}{many * (number > 1)})"


def _costs(own: Rows, random: float | None) -> list[Cell]:
    """Time and accuracy; without the accuracy of random masks, red is what the paper prints so."""
    if not own:
        return ["–", "–"]
    first = own[0]
    seconds, _ = spread(row["prune_seconds"] for row in own)
    below = first["method"] in paper.BELOW_RANDOM if random is None else first["mean"] < random
    return ["" if isnan(seconds) else _clock(seconds), (_mean(first), ALARM if below else {})]


def _clock(seconds: float) -> str:
    """
    >>> _clock(0.034), _clock(14), _clock(288)
    ('0.03 s', '14 s', '4.8 min')
    """
    if seconds >= 60:
        return f"{seconds / 60:.1f} min"
    return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def _mean(row: Row) -> str:
    return f"{100 * row['mean']:.1f}" + (f" ± {100 * row['std']:.1f}" if row["std"] else "")


PAIRS = [(shares.data, shares.model) for shares in paper.PARAMETERS]
SHARES = ("conv", "fully_connected", "batchnorm", "bias", "prunable")


def _with_theirs(rows: Rows) -> Rows:
    theirs = [shares._asdict() for shares in paper.PARAMETERS]
    return [*rows, *({"source": PAPER} | own | {"total": round(1e6 * own.pop("millions"))} for own in theirs)]


PARAMETERS = Analysis(
    analyses.parameters,
    {scale: {"pairs": PAIRS} for scale in SCALES},
    dict.fromkeys(SCALES, "1 s"),
    ("source", "data", "model", *SHARES, "total"),
    _with_theirs,
)


def draw_parameters(rows: Rows) -> Canvas:
    """Percentages of all parameters, ours and the paper's; red where they differ by more than rounding."""
    body: list[list[Cell]] = []
    for (data, model), own in grouped(rows, "data", "model").items():
        of = {row["source"]: row for row in own}
        cells: list[Cell] = [style.title(data, model)]
        for source in (OURS, PAPER):
            for name in (*SHARES, "total"):
                differs = ALARM if source == OURS and _text(of[OURS], name) != _text(of[PAPER], name) else {}
                cells.append((_text(of[source], name), differs))
        body.append(cells)
    head = ["conv", "linear", "norm", "bias", "prunable", "total"]
    return style.table(
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


def imagenet(scale: str) -> list[Experiment]:
    """Dense, and each method at 90 and 95 %; a single seed, as in the paper."""
    methods = [method for method in MULTI_BATCH if scale != "smoke" or method in SMOKE_METHODS]
    models = ("vgg19",) if scale == "smoke" else ("vgg19", "resnet50")
    found = [Experiment(model, "imagenet", DENSE, 0.0) for model in models]
    for model, sparsity, method in product(models, (0.9, 0.95), methods):
        found.append(Experiment(model, "imagenet", method, sparsity))
    return [fitted(one, scale) for one in found]


def rows_imagenet(records: Sequence[Row]) -> Rows:
    """The runs; then the paper's table."""
    own = measured(records, "data", "model", "method", "sparsity")
    return [*own, *references(records, lambda r: r.data == "imagenet")]


def draw_imagenet(rows: Rows) -> Canvas:
    """Methods down, networks and sparsities across; ours above, the paper's below."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    sparsities = sorted({row["sparsity"] for row in rows if row["method"] != DENSE})
    places = list(product(models, sparsities))
    body: list[list[Cell]] = []
    rules = []
    for source in (OURS, PAPER):
        own = [row for row in rows if row["source"] == source]
        if own:
            rules += [len(body) - 1] * bool(body)
            body.append([(source, {"fontstyle": "italic"}), *[""] * 2 * len(places)])
        for method, some in by_method(own).items():
            body.append([style.NAMES[method], *(cell for place in places for cell in _tops(some, *place))])
    above = [
        (2 * number + 1, 2 * number + 2, f"{style.MODELS.get(model, model)}, {style.percent(sparsity)}")
        for number, (model, sparsity) in enumerate(places)
    ]
    first = rows[0]
    schedule = f"{first['epochs']} epoch{'s' * (first['epochs'] != 1)}"
    data = style.data_label(first["data"])
    note = f"{data}, {schedule}; accuracy in %.\nDense: nothing removed, the same in both columns."
    return style.table(
        ["", *["top-1", "top-5"] * len(places)], body, [1.1, *[0.62] * 2 * len(places)], above, rules, note
    )


def _tops(some: Rows, model: str, sparsity: float) -> list[Cell]:
    """Top-1 and top-5; those of the dense network stand at every sparsity."""
    own = [row for row in some if row["model"] == model and row["sparsity"] in (sparsity, 0)]
    both = [spread(row[name] for row in own)[0] for name in ("top1", "top5")]
    return ["–" if isnan(value) else f"{100 * value:.1f}" for value in both]
