"""What do the initial scales of batch-norms change: the scores, or the training? A recipe of variants on CIFAR-10.

`half` sets all scales to 0.5, and `layers` draws one scale per batch-norm from U(0, 1). The methods `...-scored-ones`
and `...-scored-uniform` find their masks with other scales than those that are trained. The variants of ResNet-50 are
not trained: what counts is whether SNIP-MB leaves it connected.

    barebones sweep benchmarks/batch_norm_scales.py:variants --device cuda --data-root DATA --on-collapse skip
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice, product
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

import barebones as bb
from barebones.data import load
from barebones.lab.experiment.experiment import Experiment
from barebones.lab.records.tables import read
from barebones.models import NORM_SCALES, build, initialize
from barebones.scope import prunable

NORM_SCALES["half"] = lambda scales, generator: torch.nn.init.constant_(scales, 0.5)
NORM_SCALES["layers"] = lambda scales, generator: torch.nn.init.constant_(
    scales, float(torch.rand((), generator=generator))
)


def scored(criterion: Callable, norm_scale: str, probe: bb.Probe) -> bb.Scores:
    """Return the criterion's scores of the network with other scales, which are set back afterwards."""
    norms = [module.weight for module in probe.user_model.modules() if isinstance(module, _BatchNorm)]
    before, generator = [scales.detach().clone() for scales in norms], torch.Generator().manual_seed(probe.seed)
    for scales in norms:  # `.data`: a captured gradient need not be recorded again, since it reads the same memory
        scales.data.copy_(NORM_SCALES[norm_scale](torch.empty(scales.shape), generator=generator))
    try:
        return criterion(probe)
    finally:
        for scales, old in zip(norms, before, strict=True):
            scales.data.copy_(old)


for name, other in product(("force", "iter-snip"), ("ones", "uniform")):
    row = bb.METHODS[name]
    bb.METHODS[f"{name}-scored-{other}"] = replace(
        row, criterion=partial(scored, row.criterion, other), label=f"{row.label}, scored with {other}"
    )


def variants() -> Iterator[Experiment]:
    """VGG-19 at 99.9 % with three seeds, 40 epochs; the masks of ResNet-50 at 99.5 % with five seeds."""
    for seed in range(5):
        for norm_scale in ("ones", "uniform", "half", "layers"):
            yield Experiment(
                model="resnet50", data="cifar10", method="snip-mb", sparsity=0.995, seed=seed, norm_scale=norm_scale,
                epochs=0, shrink=True,
            )  # fmt: skip
    for seed, method in product(range(3), ("iter-snip", "force")):
        common = dict(model="vgg19", data="cifar10", sparsity=0.999, seed=seed, epochs=40, shrink=True)
        for norm_scale in ("ones", "uniform", "half", "layers"):
            yield Experiment(method=method, norm_scale=norm_scale, **common)
        yield Experiment(method=f"{method}-scored-ones", norm_scale="uniform", **common)
        yield Experiment(method=f"{method}-scored-uniform", norm_scale="ones", **common)


def scores(norm_scale: str, batches: list[tuple[Tensor, Tensor]], seed: int) -> dict[str, torch.Tensor]:
    """Return SNIP's scores of ResNet-50 with these scales."""
    generator = torch.Generator().manual_seed(seed)
    model = initialize(build("resnet50", 10, 32), generator=generator, norm_scale=norm_scale)
    probe = bb.Probe(model, batches)
    with probe.at(None, 0, 1, len(batches)):
        return {name: score.flatten() for name, score in bb.METHODS["snip"].criterion(probe).items()}


def main(data_root: Path, count: int = 4, seeds: int = 3, sparsity: float = 0.995) -> None:
    """Print how SNIP's scores spread within the layers and over them, and how many layers fall below the threshold."""
    print("scales   within a layer   between layers   starved layers of", end="")
    for index, norm_scale in enumerate(("ones", "half", "layers", "uniform")):
        rows = []
        for seed in range(seeds):
            batches = list(islice(load("cifar10", data_root).train.scoring(128, seed), count))
            found = scores(norm_scale, batches, seed)
            alive = {name: score[score > 0].log10() for name, score in found.items()}
            every = torch.cat(list(found.values()))
            threshold = every.kthvalue(round(sparsity * every.numel())).values
            kept = torch.stack([(score > threshold).float().mean() for score in found.values()])
            within = torch.stack([score.std() for score in alive.values()]).mean()
            between = torch.stack([score.median() for score in alive.values()]).std()
            rows.append([float(within), float(between), float((kept < 1e-5).sum())])
        if not index:
            print(f" {len(found)}")
        within, between, starved = map(fmean, zip(*rows, strict=True))
        print(f"{norm_scale:8} {within:14.2f} {between:16.2f} {starved:16.1f}", flush=True)


def picture(results: Path, out: Path) -> None:
    """Draw the share of weights that SNIP-MB keeps in each layer of ResNet-50, from the records; seed 0."""
    import matplotlib.pyplot as plt
    import pyarrow.parquet as pq

    rows = pq.read_table(results / "rounds.parquet").to_pylist()
    kept = {row["run"]: row["layers"] for row in rows if row["layers"]}
    sizes = [p.numel() for p in prunable(build("resnet50", 10, 32)).values()]
    figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
    styles = {"ones": ("#0072B2", "s", "scales of 1"), "uniform": ("#D55E00", "o", "U(0, 1) per channel")}
    for row in read(results / "batch-norm-scales.csv"):
        if row["model"] == "resnet50" and row["seed"] == 0 and row["norm_scale"] in styles:
            color, marker, label = styles[row["norm_scale"]]
            shares = [count / size for count, size in zip(kept[row["folder"]], sizes, strict=True)]
            axes.plot([share or float("nan") for share in shares], marker, color=color, markersize=3.5, label=label)
            empty = [layer for layer, share in enumerate(shares) if not share]
            axes.plot(empty, [3e-6] * len(empty), "x", color=color, label=f"empty, {label}" if empty else None)
    axes.set(yscale="log", xlabel="layer of ResNet-50, from input to output", ylabel="share of weights kept")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(out, dpi=160)


if __name__ == "__main__":
    picture(Path(sys.argv[2]), Path(sys.argv[3])) if sys.argv[1] == "picture" else main(Path(sys.argv[1]))
