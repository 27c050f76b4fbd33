"""Table 1: top-1 and top-5 accuracy on ImageNet."""

from collections.abc import Sequence
from itertools import product

from ...lab.experiment.experiment import DENSE, Experiment
from ...lab.experiment.styles import look
from ...lab.figures import plots
from ...lab.figures.registry import Figure
from ...lab.figures.sources import Runs
from ...lab.records.statistics import spread
from ...lab.records.tables import Row, Rows, markdown
from ...messages import counted
from ..accuracies import MULTI_BATCH, OURS, PAPER, at_scale, by_method, fewer_at_smoke, measured, references

MODELS, SPARSITIES = ("vgg19", "resnet50"), (0.9, 0.95)
TOPS = ("top-1", "top-5")


def experiments(scale: str) -> list[Experiment]:
    """Return dense and each method at 90 and 95 %, with a single seed, as in the paper."""
    models = MODELS[:1] if scale == "smoke" else MODELS
    listed = [Experiment(model, "imagenet", DENSE, 0.0) for model in models]
    for model, sparsity, method in product(models, SPARSITIES, fewer_at_smoke(scale, MULTI_BATCH)):
        listed.append(Experiment(model, "imagenet", method, sparsity))
    return [at_scale(experiment, scale) for experiment in listed]


def rows(records: Sequence[Row]) -> Rows:
    """Return a row for each run, then the paper's table."""
    ours = measured(records, "data", "model", "method", "sparsity")
    return [*ours, *references(records, lambda number: number.data == "imagenet")]


def draw(rows: Rows) -> str:
    """Return a table with a line for each method, ours above and the paper's below."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    sparsities = sorted({row["sparsity"] for row in rows if row["method"] != DENSE})
    columns = list(product(models, sparsities))
    head = [
        f"{plots.model_label(model)}, {plots.percent(sparsity)}: {top}" for model, sparsity in columns for top in TOPS
    ]
    body = [
        [f"{look(method).label} ({source})", *(cell for column in columns for cell in _cells(runs, *column))]
        for source in (OURS, PAPER)
        for method, runs in by_method([row for row in rows if row["source"] == source]).items()
    ]
    first = rows[0]
    note = f"{plots.data_label(first['data'])}, {counted(first['epochs'], 'epoch')}; accuracy in %. "
    return markdown(["", *head], body, note + "Dense: nothing removed, the same in both columns of a network.")


def _cells(runs: Rows, model: str, sparsity: float) -> list[str]:
    """Return top-1 and top-5; those of the dense network stand at every sparsity."""
    column = [row for row in runs if row["model"] == model and row["sparsity"] in (sparsity, 0)]
    means = [spread(row[name] for row in column).mean for name in ("top1", "top5")]
    return ["–" if mean is None else f"{100 * mean:.1f}" for mean in means]


FIGURES = {
    "imagenet": Figure(
        "Top-1 and top-5 accuracy on ImageNet at 90 and 95 %, VGG-19 and ResNet-50; short and paper need its images.",
        Runs(experiments, rows, free=("seed",)),
        draw,
        is_table=True,
    ),
}
