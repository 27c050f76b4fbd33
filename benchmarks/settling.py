"""Why does FORCE never settle? It reaches its final count after 70 % of the rounds, and goes on choosing weights."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from measuring import start

import barebones as bb
from barebones.cli.options import check_device, check_output
from barebones.lab.figures import plots
from barebones.lab.records import tables
from barebones.lab.run.network import deterministic
from barebones.lab.run.options import RunOptions
from barebones.masks import size
from barebones.paper.figures.layers import experiment_on, identified, networks
from barebones.paper.figures.saliency import evaluation_batches

SETTINGS: dict[str, dict[str, Any]] = {  # by scale; the networks have neither grouped nor transposed convolutions
    "smoke": {"pairs": [("digits", "small-vgg")], "seeds": [0], "sparsity": 0.98, "rounds": 40},
    "short": {"pairs": [("cifar10", "vgg19"), ("cifar10", "resnet50")], "seeds": [0], "sparsity": 0.995, "rounds": 60},
    "paper": {"pairs": [("cifar10", "vgg19")], "seeds": [0], "sparsity": 0.995, "rounds": 400},
}
LOOKS = {"batch": ("#D55E00", "statistics of the batch"), "eval": ("#0072B2", "running statistics")}
DASHES = {"new batches": "-", "one batch": ":"}  # what the rounds read: each its own batch, or all the same
PANELS = {  # what is drawn, and between which numbers
    "recovered_share": ("share of the kept weights that\nwere pruned one round before", (0, 1)),
    "channels_one_before": ("weights of a channel: correlation\nwith the round before", (-1, 1)),
}


def analysed(settings: dict[str, Any], options: RunOptions) -> Iterator[tables.Row]:
    """Yield a row for each round from the third on, with either statistics of batch-norms, and new batches or one."""
    count = settings["rounds"]
    for network, bn, scored_on in product(networks(settings, options), LOOKS, DASHES):
        chosen = experiment_on(network, "force", settings["sparsity"], rounds=count, schedule="settle", scoring_bn=bn)
        new, one = network.data.train.scoring(chosen.plan().batch_size, 0), evaluation_batches(network, 1) * count
        probe = bb.Probe(network.model, new if scored_on == "new batches" else one, bn=bn, capture=options.on_gpu)
        before: list[bb.Masks] = []  # of the last two rounds
        for step in bb.rounds(probe, chosen.pruning(), round((1 - chosen.sparsity) * size(probe.parameters))):
            if len(before) == 2:
                yield identified(chosen) | {
                    "scored_on": scored_on, "statistics": bn, "round": step.index + 1, "keep": step.keep,
                    "recovered_share": step.record.recovered / step.keep,
                    "recovered_empty_share": step.record.recovered_empty / step.keep, **compared(*before, step.masks),
                    "gradients": gradient_correlation(probe, step) if step.index + 1 == count else None,
                }  # fmt: skip
            before = [*before, step.masks][-2:]


def compared(two_before: bb.Masks, one_before: bb.Masks, now: bb.Masks) -> dict[str, float | None]:
    """Compare how many weights the output channels keep now, and one and two rounds before.

    `moved_share` is what thinner channels have lost since the round before, as a share of all kept weights. The
    correlations are those of the numbers, less the mean of the layer, over channels with a weight in one of the rounds.
    """
    layers = [torch.stack([each[name].flatten(1).sum(1) for each in (now, one_before, two_before)]) for name in now]
    layers = [counts[:, counts.sum(0) > 0].double() for counts in layers]
    centered = torch.cat([counts - counts.mean(1, keepdim=True) for counts in layers if counts.numel()], 1)
    counts = torch.cat(layers, 1)
    one, two = (correlation(centered[0], other) for other in centered[1:])
    share = float((counts[1] - counts[0]).clamp(min=0).sum() / counts[0].sum())
    return {"moved_share": share, "channels_one_before": one, "channels_two_before": two}


def gradient_correlation(probe: bb.Probe, step: bb.Round) -> float | None:
    """Return the rank correlation of a channel's kept weights with the size of its gradients, as a mean of layers."""
    found = []
    with probe.at(step.masks, step.index, step.keep):
        for name, gradient in probe.gradient().items():
            kept, sizes = step.masks[name].flatten(1).sum(1), gradient.flatten(1).norm(dim=1)
            found.append(correlation(ranks(kept[kept > 0]), ranks(sizes[kept > 0])))
    return round(sum(known) / len(known), 6) if (known := [value for value in found if value is not None]) else None


def correlation(first: torch.Tensor, second: torch.Tensor) -> float | None:
    """Return Pearson's correlation; None if one side is constant."""
    a, b = first.double() - first.double().mean(), second.double() - second.double().mean()
    return round(float(a @ b / (a.norm() * b.norm())), 6) if a.any() and b.any() else None


def ranks(values: torch.Tensor) -> torch.Tensor:
    """Return the rank of each value; equal values share the mean of their ranks."""
    _, places, counts = values.unique(return_inverse=True, return_counts=True)
    return (counts.cumsum(0) - (counts.double() - 1) / 2)[places]


@plots.styled()
def draw(rows: tables.Rows, path: Path) -> None:
    """Draw for each network the share of the weights that return in a round, and the correlation of the channels."""
    shown = tables.grouped(rows, "data", "model")
    figure, grid = plots.panels(len(shown), 2, height=2.4)
    for panels, (title, of_network) in zip(grid, shown.items(), strict=True):
        final = min((row["keep"], row["round"]) for row in of_network)[1]  # the first round with the fewest weights
        for axes, (name, (label, limits)) in zip(panels, PANELS.items(), strict=True):
            for (bn, scored_on), members in tables.grouped(of_network, "statistics", "scored_on").items():
                look = {"color": LOOKS[bn][0], "linestyle": DASHES[scored_on], "label": f"{LOOKS[bn][1]}, {scored_on}"}
                axes.plot([row["round"] for row in members], [row[name] for row in members], **look)
            axes.axvline(final, color=plots.GRAY, linewidth=0.6, linestyle="--")
            axes.set(title=plots.title(*title), xlabel="round (dashed: the final count)", ylabel=label, ylim=limits)
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.savefig(path)


def main(
    table: Annotated[Path, typer.Argument(help="Table to write. If it is there already, it is only drawn.")],
    picture: Annotated[Path, typer.Argument(help="Picture to draw.")],
    scale: Annotated[Literal["smoke", "short", "paper"], typer.Option()] = "short",
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    data_root: Annotated[Path | None, typer.Option(help="Folder with CIFAR-10.")] = None,
) -> None:
    """Write a row for each round of FORCE, and draw the rows."""
    check_output(picture)
    if not table.exists():
        check_output(table)
        options = RunOptions(device=check_device(device), data_root=data_root)
        with deterministic():
            tables.write([{"scale": scale} | row for row in analysed(SETTINGS[scale], options)], table)
    draw(tables.read(table, ("round", "keep", *PANELS)), picture)


if __name__ == "__main__":
    start(main)
