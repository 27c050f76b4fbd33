"""Why FORCE never settles: not in the paper. FORCE reaches its final count early and goes on choosing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...lab.experiment.experiment import Experiment
from ...lab.figures import plots
from ...lab.figures.analyses import evaluation_batches, experiment_on, identified, networks
from ...lab.figures.registry import Figure
from ...lab.figures.sources import Analysis, Settings
from ...lab.records.tables import Row, Rows, grouped
from ...lab.run.network import Network
from ...lab.run.options import RunOptions
from ...masks import Masks, size
from ...pruning.probe import STATISTICS, Probe
from ...pruning.round import Round
from ...pruning.round_stats import by_output
from ...pruning.rounds import rounds
from ...scope import transposed

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

SETTINGS: dict[str, Settings] = {
    "smoke": {"pairs": [("digits", "small-vgg")], "seeds": [0], "sparsity": 0.98, "rounds": 40},
    "short": {
        "pairs": [("cifar10", "vgg19"), ("cifar10", "resnet50")], "seeds": [0], "sparsity": 0.995, "rounds": 60,
    },
    "paper": {
        "pairs": [("cifar10", "resnet50"), ("cifar10", "vgg19")], "seeds": [0], "sparsity": 0.995, "rounds": 400,
    },
}  # fmt: skip
NEW, ONE = "new batches", "one batch"  # what the rounds read: each its own batch, or all the same
LABELS = {"batch": "statistics of the batch", "eval": "running statistics"}
COLOURS = {"batch": "#D55E00", "eval": "#0072B2"}
DASHES = {NEW: "-", ONE: ":"}


def analyse(settings: Settings, options: RunOptions) -> Iterator[Row]:
    """Follow FORCE's masks from round to round, with new batches or one, and with both kinds of statistics."""
    for network in networks(settings, options):
        groups = transposed(network.model)
        for bn, scored_on in product(STATISTICS, DASHES):
            experiment = experiment_on(
                network, "force", settings["sparsity"], rounds=settings["rounds"], schedule="settle", scoring_bn=bn
            )
            method, probe = experiment.pruning(), _probe(network, experiment, scored_on, options)
            before: list[Masks] = []  # of the last two rounds
            for step in rounds(probe, method, round((1 - experiment.sparsity) * size(probe.parameters))):
                if len(before) == 2:
                    last, batches = step.index + 1 == method.rounds, method.batches_per_round
                    yield identified(experiment) | {
                        "scored_on": scored_on,
                        "statistics": bn,
                        "round": step.index + 1,
                        "keep": step.keep,
                        "recovered_share": step.record.recovered / step.keep,
                        "recovered_empty_share": step.record.recovered_empty / step.keep,
                        **compared(before[0], before[1], step.masks, groups),
                        "gradients": gradient_correlation(probe, step, batches, groups) if last else None,
                    }
                before = [*before, step.masks][-2:]


def _probe(network: Network, experiment: Experiment, scored_on: str, options: RunOptions) -> Probe:
    source: Any = network.data.train.scoring(experiment.plan().batch_size, experiment.seed)
    return Probe(
        network.model,
        source if scored_on == NEW else evaluation_batches(network, 1) * (experiment.rounds or 1),
        loss=experiment.loss,
        bn=experiment.scoring_bn,
        capture=options.captured and network.device.type == "cuda",
        seed=experiment.seed,
    )


def compared(two_before: Masks, one_before: Masks, now: Masks, groups: dict[str, int]) -> dict[str, float | None]:
    """Compare how many weights the output channels keep now, and one and two rounds before.

    `moved_share` is how many weights the channels that became thinner have lost since the round before, as a share of
    all kept weights. The correlations are those of the numbers, less the mean of the layer, over the channels that keep
    a weight in one of the three rounds; None if all numbers are equal.

    >>> mask = torch.tensor([[True, True], [False, False], [True, False]])
    >>> turned = Masks({"w": mask[[1, 0, 2]]})
    >>> compared(Masks({"w": mask}), turned, Masks({"w": mask}), {})
    {'moved_share': 0.6666666666666666, 'channels_one_before': -1.0, 'channels_two_before': 1.0}
    """
    layers = [
        torch.stack([_by_channel(masks[name], groups.get(name)).sum(1) for masks in (now, one_before, two_before)])
        for name in now
    ]
    layers = [counts[:, counts.sum(0) > 0].double() for counts in layers]
    centered = torch.cat([counts - counts.mean(1, keepdim=True) for counts in layers if counts.numel()], 1)
    lost = sum(float((counts[1] - counts[0]).clamp(min=0).sum()) for counts in layers)
    return {
        "moved_share": lost / float(sum(counts[0].sum() for counts in layers)),
        "channels_one_before": _correlation(centered[0], centered[1]),
        "channels_two_before": _correlation(centered[0], centered[2]),
    }


def gradient_correlation(probe: Probe, step: Round, batches: int, groups: dict[str, int]) -> float | None:
    """Return the correlation of how many weights a channel keeps with the size of its gradients under these masks.

    It is that of their ranks among the channels of a layer that keep a weight, as a mean over the layers; None if
    there is none.
    """
    with probe.at(step.masks, step.index, step.keep, batches):
        gradients = probe.gradient()
    found = []
    for name, mask in step.masks.items():
        kept = _by_channel(mask, groups.get(name)).sum(1)
        sizes = _by_channel(gradients[name], groups.get(name)).norm(dim=1)
        found.append(_correlation(_ranks(kept[kept > 0]), _ranks(sizes[kept > 0])))
    known = [value for value in found if value is not None]
    return round(fmean(known), 6) if known else None


def _by_channel(tensor: Tensor, groups: int | None) -> Tensor:
    """Return a row for each output channel."""
    return by_output(tensor, groups).transpose(1, 2).flatten(0, 1).flatten(1)


def _correlation(first: Tensor, second: Tensor) -> float | None:
    """Return Pearson's correlation; None if one side is constant."""
    a, b = first.double() - first.double().mean(), second.double() - second.double().mean()
    if not a.any() or not b.any():
        return None
    return round(float(a @ b / (a.norm() * b.norm())), 6)


def _ranks(values: Tensor) -> Tensor:
    """Return the rank of each value; equal values share the mean of their ranks.

    >>> _ranks(torch.tensor([5, 1, 5]))
    tensor([2.5000, 1.0000, 2.5000], dtype=torch.float64)
    """
    _, places, counts = values.unique(return_inverse=True, return_counts=True)
    return (counts.cumsum(0) - (counts.double() - 1) / 2)[places]


def draw(rows: Rows) -> Canvas:
    """Draw for each network the share of the weights that return in a round, and the correlation of the channels."""
    shown = grouped(rows, "data", "model")
    figure, grid = plots.panels(len(shown), 2, height=2.4)
    for (returned, channels), ((data, model), of_network) in zip(grid, shown.items(), strict=True):
        for (bn, scored_on, _), members in grouped(of_network, "statistics", "scored_on", "seed").items():
            x = [row["round"] for row in members]
            look: dict[str, Any] = {"color": COLOURS[bn], "linestyle": DASHES[scored_on]}
            returned.plot(x, [100 * row["recovered_share"] for row in members], **look)
            known = [row for row in members if row["channels_one_before"] is not None]
            channels.plot([row["round"] for row in known], [row["channels_one_before"] for row in known], **look)
        final = min((row["keep"], row["round"]) for row in of_network)[1]  # the first round with the fewest weights
        for axes in (returned, channels):
            axes.axvline(final, color=plots.GREY, linewidth=0.6, linestyle="--", zorder=1)
            axes.set_xlabel(f"round (dashed: {plots.percent(of_network[0]['sparsity'])} removed)")
            axes.set_title(plots.title(data, model))
        returned.set_ylim(0, 100)
        returned.set_ylabel("kept weights that were\npruned one round before (%)")
        channels.set_ylim(-1, 1)
        channels.axhline(0, color=plots.GREY, linewidth=0.6, zorder=1)
        channels.set_ylabel("weights of a channel: correlation\nwith the round before")
    entries = {
        f"{label}, {scored_on}": plots.line_handle(COLOURS[bn], "", dashes)
        for (bn, label), (scored_on, dashes) in product(LABELS.items(), DASHES.items())
    }
    plots.legend(figure, entries, columns=2)
    return figure


FIGURES = {
    "settling": Figure(
        "Why FORCE never settles: weights that return in each round, with batch-norms of either kind of statistics.",
        Analysis(
            analyse,
            SETTINGS,
            {"smoke": "15 s", "short": "1 min", "paper": "4 min"},
            ("data", "model", "sparsity", "statistics", "scored_on", "round", "keep", "recovered_share",
             "moved_share", "channels_one_before", "channels_two_before", "gradients"),
        ),
        draw,
    ),
}  # fmt: skip
