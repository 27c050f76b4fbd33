"""Fill the tables of the pages from the records in results/, and list the figures: `make results`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, stdev

import matplotlib.pyplot as plt

from barebones import names
from barebones.lab.experiment.protocols import RECOMMENDED, protocol
from barebones.lab.experiment.styles import look
from barebones.lab.figures import accuracy as own_runs
from barebones.lab.figures.sources import Runs
from barebones.lab.records.records import records
from barebones.lab.records.tables import Row, Rows, read
from barebones.masks import size
from barebones.models import NORM_SCALES, build
from barebones.paper import figures
from barebones.paper.numbers import ABOUT, ABOVE, ACCURACIES
from barebones.scope import prunable

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "src/barebones/cli/figures.json"
BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
NAMES = {"vgg19": "VGG-19", "resnet50": "ResNet-50", "mobilenet-v2": "MobileNet-v2"}
SHORT = {"vgg19": 40, "resnet50": 30, "mobilenet-v2": 30}  # epochs
# factors of 95 % confidence intervals, by the number of seeds
STUDENT = {3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
USUAL = {
    "revive_empty": True, "scoring_bn": "batch", "scoring_init": None, "loss": "cross-entropy",
    "control": "none", "norm_scale": "ones", "warmup": 0, "rounds": 300,
    "lr_schedule": "milestones", "evolve": None, "ablate": 0.0, "ham": False, "sam": 0.0,
    "scope": None, "unit": None, "pattern": None, "densities": None, "min_per_channel": 0,
}  # fmt: skip
RUNS = records(ROOT / "results")
SCALES = {"ones": "1", "half": "0.5", "layers": "one from U(0, 1) per layer", "uniform": "one from U(0, 1) per channel"}


def runs(model: str, method: str, sparsity: float = 0.0, epochs: int | None = None, **changed: object) -> Rows:
    """Return the runs with the usual settings but for those that are changed, one for each seed."""
    wanted = {"model": model, "method": method, "sparsity": sparsity, "epochs": epochs or SHORT[model]}
    wanted |= USUAL | changed
    if method not in ("force", "hybrid", "iter-snip", "iter-grasp", "force-signal", "hybrid-signal"):
        del wanted["rounds"]
    found = [r for r in RUNS if all(r[name] == value for name, value in wanted.items()) and r["precision"] != "tf32"]
    if len({r["seed"] for r in found}) < len(found):
        raise ValueError(f"two runs with one seed: name the settings in which they differ, beside {changed}: {wanted}")
    return sorted(found, key=lambda r: r["seed"])


def mean(rows: Sequence[Row]) -> str:
    """Return the mean accuracy in %, from three seeds on with a confidence interval, and how many are disconnected."""
    values, lost = [100 * row["top1"] for row in rows], sum(row["collapsed"] for row in rows)
    if not values or lost == len(values):
        return "disconnected" if values else ""
    return _interval(values) + (f" ({lost} disconnected)" if lost else "")


def _interval(values: Sequence[float], sign: str = "") -> str:
    half = STUDENT[len(values)] * stdev(values) / len(values) ** 0.5 if len(values) in STUDENT else None
    return f"{fmean(values):{sign}.2f}" + (f" ± {half:.2f}" if half is not None else "")


def seeds(rows: Sequence[Row]) -> str:
    """Return the accuracy with each of the first three seeds."""
    if rows and all(row["collapsed"] for row in rows):
        return "disconnected"
    return ", ".join(f"{100 * row['top1']:.2f}" for row in rows if row["seed"] < 3)


def accuracy() -> Iterator[list[str]]:
    """Yield the mean accuracies of all methods after short trainings."""
    columns = [("vgg19", s) for s in (0.99, 0.995, 0.999)] + [("resnet50", s) for s in (0.98, 0.995, 0.999)]
    columns += [("mobilenet-v2", 0.98)]
    yield ["method", *(f"{NAMES[model]}, {100 * sparsity:g} %" for model, sparsity in columns)]
    yield ["Dense", *(mean(runs(model, "dense")) for model, _ in columns)]
    for method in ("hybrid", "force", "iter-snip", "synflow", "iter-grasp", "snip-mb", "grasp-mb", "erk", "random"):
        yield [look(method).label, *(mean(runs(model, method, sparsity)) for model, sparsity in columns)]


def paper() -> Iterator[list[str]]:
    """Yield our accuracies on CIFAR-10 beside the paper's, with 350 epochs and its batch-norm scales if possible."""
    yield ["network", "method", "epochs", "seeds", "ours", "best epoch", "paper", "difference", ""]
    for each in ACCURACIES:
        if each.data != "cifar10":
            continue
        rounds = {"rounds": each.rounds} if each.rounds and each.method in ("force", "iter-snip") else {}
        scales = sorted(NORM_SCALES, key=lambda scale: scale != protocol(each.data, each.model).norm_scale)
        rows = {epochs: [(scale, runs(each.model, each.method, each.sparsity, epochs, norm_scale=scale, **rounds))
                         for scale in scales] for epochs in (350, SHORT[each.model])}  # fmt: skip
        longest = next((epochs for epochs, found in rows.items() if any(runs for _, runs in found)), 350)
        for scale, found in rows[longest]:
            if found:
                label = look(each.method).label + (f", {each.rounds} rounds" if rounds else "")
                said = {ABOUT: "about ", ABOVE: "over "}.get(each.says, "") + f"{100 * each.top1:.1f}"
                difference = 100 * (fmean(row["top1"] for row in found) - each.top1)
                network = f"{NAMES[each.model]}, {100 * each.sparsity:g} %" + f", {scale}" * (scale != "ones")
                best = [row["top1_at_best_validation"] for row in found if not row["collapsed"]]
                numbers = [str(longest), str(len(found)), mean(found), f"{100 * fmean(best):.2f}" if best else ""]
                numbers += [said, f"{difference:+.1f}"]
                yield [network, label, *numbers, _verdict(each.top1, each.says, difference)]


def _verdict(said: float, says: str, difference: float) -> str:
    if said == 0.1:  # chance: the network is disconnected
        return "reproduced" if difference < 5 else "open"
    if says != ABOVE and difference > 1:
        return "above"
    return "reproduced" if difference >= 0 else "within a point" if difference >= -1 else "open"


def full() -> Iterator[list[str]]:
    """Yield the accuracies after 350 epochs beside those of the same masks after short trainings."""
    yield ["network", "method", "short", "350 epochs"]
    for model, sparsity in (("resnet50", 0.995), ("vgg19", 0.995), ("vgg19", 0.999)):
        for method in ("hybrid", "force", "iter-snip", "snip-mb"):
            (long,) = runs(model, method, sparsity, 350)
            short = [r for r in runs(model, method, sparsity) if r["seed"] == long["seed"]]
            yield [f"{NAMES[model]}, {100 * sparsity:g} %", look(method).label, mean(short), mean([long])]


def controls() -> Iterator[list[str]]:
    """Yield the accuracies of three methods and of their controls, VGG-19."""
    yield ["removed", "method", "its masks", "reinitialized", "shuffled", "lowest scores"]
    for sparsity in (0.98, 0.995, 0.999):
        for method in ("hybrid", "force", "iter-snip"):
            cells = [
                seeds(runs("vgg19", method, sparsity, control=c)) for c in ("none", "reinitialize", "shuffle", "invert")
            ]
            yield [f"{100 * sparsity:g} %", look(method).label, *cells]


def empty_channels() -> Iterator[list[str]]:
    """Yield the accuracies with and without what fills empty channels."""
    yield ["network", "method", "as it is", "signals alone", "`--no-revive-empty`"]
    for model, sparsity in (("mobilenet-v2", 0.98), ("resnet50", 0.995), ("resnet50", 0.999)):
        for method in ("force", "hybrid"):
            found = runs(model, method, sparsity), runs(model, f"{method}-signal", sparsity)
            cells = [seeds(rows) for rows in (*found, runs(model, method, sparsity, revive_empty=False))]
            yield [f"{NAMES[model]}, {100 * sparsity:g} %", look(method).label, *cells]


def hybrid() -> Iterator[list[str]]:
    """Yield Hybrid beside FORCE with the same seeds, and the mean of the paired differences."""
    yield ["network", "seeds", "FORCE", "Hybrid", "difference"]
    cases = ("vgg19", 0.995), ("vgg19", 0.999), ("resnet50", 0.995), ("resnet50", 0.999), ("mobilenet-v2", 0.98)
    for model, sparsity in cases:
        yield [f"{NAMES[model]}, {100 * sparsity:g} %", *_beside_force(model, sparsity, SHORT[model], "ones", {})]


def recommended() -> Iterator[list[str]]:
    """Yield the recommended settings beside FORCE with the same seeds, and the mean of the paired differences."""
    yield ["network", "epochs", "seeds", "FORCE", "`--recommended`", "difference"]
    changed = {name: value for name, value in RECOMMENDED.items() if name not in ("method", "shrink")}
    for model, sparsity in product(("vgg19", "resnet50"), (0.995, 0.999)):
        for epochs in (SHORT[model], 350):
            scale = protocol("cifar10", model).norm_scale
            if found := _beside_force(model, sparsity, epochs, scale, changed):
                yield [f"{NAMES[model]}, {100 * sparsity:g} %", str(epochs), *found]


def parts() -> Iterator[list[str]]:
    """Yield FORCE, FORCE with parts of the recommended settings, and those settings, with the same seeds."""
    yield ["network", "seeds", "FORCE", "with the cosine", "and movement", "`--recommended`"]
    cosine = {"lr_schedule": "cosine"}
    for model, sparsity in (("vgg19", 0.995), ("vgg19", 0.999), ("resnet50", 0.999)):
        scale = protocol("cifar10", model).norm_scale
        moving = {**cosine, "evolve": "set"}
        cases = ("force", {}), ("force", cosine), ("force", moving), ("hybrid", moving)
        found = [runs(model, method, sparsity, norm_scale=scale, **changed) for method, changed in cases]
        common = set.intersection(*({row["seed"] for row in rows} for rows in found if rows))
        means = [mean([row for row in rows if row["seed"] in common]) for rows in found]
        yield [f"{NAMES[model]}, {100 * sparsity:g} %", str(len(common)), *means]


def draw_scope(path: Path) -> None:
    """Draw Hybrid on VGG-19, seed 0, that prunes weights alone, or norms and biases, too."""
    model = build("vgg19", 10, 32)
    rest = sum(p.numel() for p in model.parameters()) - size(prunable(model))
    searched = [row for row in read(ROOT / "results" / "beyond.csv") if row["scope"] == "all"]
    sparsities = (0.99, 0.995, 0.998, 0.999)
    alone = [(row["kept"] + rest, row["top1"]) for s in sparsities for row in runs("vgg19", "hybrid", s)[:1]]
    every = [row for s in sparsities for row in runs("vgg19", "hybrid", s, scope="all")] + searched
    figure, axes = plt.subplots(figsize=(5, 2.8), layout="constrained")
    for label, marker, points in (
        ("weights alone", "o-", alone), ("norms and biases, too", "s--", [(row["kept"], row["top1"]) for row in every])
    ):  # fmt: skip
        counts, top1 = zip(*sorted(points), strict=True)
        axes.plot(counts, [100 * value for value in top1], marker, label=label)
    axes.set(xscale="log", xlabel="parameters left, norms and biases included", ylabel="test accuracy, %")
    ticks = (20_000, 50_000, 100_000, 200_000)
    axes.minorticks_off()
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.legend(title="what is pruned", frameon=False)
    figure.savefig(path, dpi=160)


def _beside_force(model: str, sparsity: float, epochs: int, scale: str, changed: Row) -> list[str]:
    """Return the number of seeds, the means of FORCE and of Hybrid with changes, and of their paired differences."""
    found = [
        {row["seed"]: row for row in runs(model, method, sparsity, epochs, norm_scale=scale, **changes)}
        for method, changes in (("force", {}), ("hybrid", changed))
    ]
    pairs = [[rows[seed] for rows in found] for seed in sorted(found[0].keys() & found[1].keys())]
    if not pairs:
        return []
    gains = [100 * (b["top1"] - a["top1"]) for a, b in pairs]
    cells = [f"{100 * fmean(row['top1'] for row in column):.2f}" for column in zip(*pairs, strict=True)]
    return [str(len(pairs)), *cells, _interval(gains, "+")]


def variants() -> Iterator[list[str]]:
    """Yield the accuracies of variants of FORCE and Hybrid, VGG-19."""
    yield ["removed", "method", "as it is", "`--no-revive-empty`", "`--scoring-bn eval`"]
    for sparsity in (0.995, 0.999):
        for method in ("force", "hybrid"):
            changes = {}, {"revive_empty": False}, {"scoring_bn": "eval"}
            cells = [seeds(runs("vgg19", method, sparsity, **changed)) for changed in changes]
            yield [f"{100 * sparsity:g} %", look(method).label, *cells]


def effective() -> Iterator[list[str]]:
    """Yield the weights on a path at 99.9 %, VGG-19, seed 0."""
    yield ["method", "effective weights", "effective sparsity", "test accuracy"]
    for method in ("hybrid", "force", "synflow", "iter-snip", "erk", "random", "snip"):
        row = runs("vgg19", method, 0.999)[0]
        share = f"{100 * row['effective_sparsity']:.3f} %"
        yield [look(method).label, f"{row['effective']:,}", share, f"{100 * row['top1']:.2f}"]


def _scale_runs(model: str) -> Rows:
    rows = read(ROOT / "results" / "batch-norm-scales.csv")
    return [row for row in rows if row["model"] == model]


def scales() -> Iterator[list[str]]:
    """Yield what SNIP-MB leaves of ResNet-50 at 99.5 % with each kind of batch-norm scales."""
    yield ["scales", "seeds", "disconnected", "empty layers", "effective weights"]
    for scale, label in SCALES.items():
        found = [row for row in _scale_runs("resnet50") if row["norm_scale"] == scale]
        empty, lost = sorted(row["empty_layers"] for row in found), sum(row["collapsed"] for row in found)
        alive = sorted(row["effective"] for row in found if row["effective"])
        ends = [f"{x[0]:,}" if x[0] == x[-1] else f"{x[0]:,} to {x[-1]:,}" for x in (empty, alive)]
        yield [label, str(len(found)), str(lost), *ends]


def scored() -> Iterator[list[str]]:
    """Yield the accuracy of Iter SNIP, VGG-19 at 99.9 %, with scales in scoring and in training, seed 0."""
    yield ["scales in scoring", "scales in training", "test accuracy"]
    for row in sorted(_scale_runs("vgg19"), key=lambda row: -row["top1"]):
        method, _, other = row["method"].partition("-scored-")
        if method == "iter-snip" and row["seed"] == 0:
            yield [SCALES[other or row["norm_scale"]], SCALES[row["norm_scale"]], f"{100 * row['top1']:.2f}"]


def beyond() -> Iterator[list[str]]:
    """Yield the accuracies of the search for a recipe that beats FORCE, by the mean of those on validation images."""
    usual = {"norm_scale": "ones", "precision": "bf16", "lr_schedule": "milestones", "evolve": None, "ablate": 0.0,
             "ham": False, "sam": 0.0, "warmup": 0, "min_per_channel": 0, "scope": None}  # fmt: skip
    found: dict[str, Rows] = {}
    for row in read(ROOT / "results" / "beyond.csv"):
        changes = [f"{n.replace('_', '-')} {row[n]}".removesuffix(" True") for n, v in usual.items() if row[n] != v]
        if row["unit"] != "channel":
            label = ", ".join([look(row["method"]).label, *(f"`--{change}`" for change in changes)])
            found.setdefault(label + ", not shrunk" * (not row["shrink"]), []).append(row)
    yield ["recipe", *(f"{p} %, {images}" for p in ("99.5", "99.9") for images in ("validation", "test"))]
    for label, rows in sorted(found.items(), key=lambda item: -sum(row["validation"] or 0.1 for row in item[1])):
        ordered = sorted(rows, key=lambda row: row["sparsity"])
        cells = [(row["validation"], row["top1"]) for row in ordered]
        yield [label, *("disconnected" if v is None else f"{100 * v:.2f}" for cell in cells for v in cell)]


def channels() -> Iterator[list[str]]:
    """Yield the accuracies of VGG-19 after whole channels were pruned, by the FLOPs that are left."""
    searched = [row for row in read(ROOT / "results" / "beyond.csv") if row["target"] == "flops"]
    yield ["FLOPs left", *(look(method).label for method in ("force", "iter-snip", "synflow"))]
    for sparsity in (0.5, 0.75, 0.9, 0.95):
        found = [row for row in searched if row["sparsity"] == sparsity]
        for method in ("iter-snip", "synflow"):
            found += runs("vgg19", method, sparsity, unit="channel", target="flops")
        yield [f"{100 * (1 - sparsity):.0f} %", *(f"{100 * row['top1']:.2f}" for row in found)]


TABLES = {
    "accuracy": accuracy, "paper": paper, "full": full, "controls": controls, "empty-channels": empty_channels,
    "hybrid": hybrid, "variants": variants, "effective": effective, "scales": scales, "scored": scored,
    "beyond": beyond, "recommended": recommended, "parts": parts, "channels": channels,
}  # fmt: skip


def filled(page: str) -> str:
    """Return a page with its tables made anew."""

    def table(block: re.Match[str]) -> str:
        head, *lines = TABLES[block[2]]()
        return block[1] + "".join(f"|{'|'.join(line)}|\n" for line in [head, ["---"] * len(head), *lines]) + block[3]

    return BLOCK.sub(table, page)


def listed() -> dict[str, tuple[str, str]]:
    """Return what each figure, and `accuracy`, shows and costs."""
    found = {own_runs.NAME: (own_runs.ABOUT, "any runs: 3 s")}
    for name, figure in figures.FIGURES.items():
        costs = []
        for scale, cost in zip(names.SCALES, figure.costs, strict=True):
            source = figure.source
            runs = f"{len(set(source.experiments(scale)))} runs, " if isinstance(source, Runs) else ""
            costs.append(f"{scale}: {runs}{cost}")
        found[name] = figure.about, "; ".join(costs)
    return found


PAGES = [path for path in sorted(ROOT.glob("docs/**/*.md")) if BLOCK.search(path.read_text("utf-8"))]

if __name__ == "__main__":
    for path in PAGES:
        path.write_text(filled(path.read_text("utf-8")), "utf-8")
    draw_scope(ROOT / "docs/figures/scope.png")
    FIGURES.write_text(json.dumps(listed(), indent=1) + "\n", "utf-8")
