"""What pruning of 1 to 100 B weights and the paper's grid cost: prints the tables of docs/scale.md.

The constants of `scale_model.py` are fitted to some measured cases, and checked with the others. The measurements are
lines that `scale_cases.py` has printed: scale_cpu.jsonl and scale_gpu.jsonl.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise, product
from pathlib import Path
from statistics import median, median_low
from typing import Any, NamedTuple

from scale_model import Case, Costs, Run, fitted, makespan

from barebones.lab.experiment.experiment import Experiment
from barebones.lab.figures.sources import EPOCH_SECONDS, Runs
from barebones.lab.run.options import COMPILED_FROM
from barebones.lab.sweep.pool import AHEAD, LANES
from barebones.paper.figures import FIGURES
from barebones.words import counted

HERE = Path(__file__).parent
LINKS = {"within a node": 350e9, "between nodes": 200e9}  # bytes a second of one GPU: assumed, not measured
LATENCY = 20e-6  # seconds of a small message, for each doubling of the GPUs: assumed, not measured
NODE = 8  # GPUs of a node

# The cases that the constants are fitted to, by width, depth and tokens, and values to begin with. On the GPU, they are
# those of every second size: launches decide the smallest ones, the GPU the others.
FITTED = {
    "cpu": ((256, 4, 128), (256, 8, 512), (512, 8, 128)),
    "gpu": ((768, 14, 2048), (768, 14, 8192), (2048, 20, 2048), (2048, 20, 8192), (4096, 27, 2048)),
}
FITTED_SWEEPS = {"cpu": 2, "gpu": 1}  # the first ones: of one lane, and on the CPU of two
GUESS = {
    "cpu": {"operation": 1e-11, "weight": 1e-7, "byte": 1e-9, "message": 1e-3},
    "gpu": {"operation": 1e-15, "launch": 1e-3, "weight": 1e-10, "layer": 1e-3},
}
BYTES_GUESS = {
    "cpu": {"selection": 20.0, "activation": 64.0, "gathered": 16.0, "process": 6e7},
    "gpu": {"selection": 20.0, "activation": 30.0, "logit": 12.0},
}
COUNTED = {  # what the cases cannot show
    "cpu": {"launch": 0.0, "layer": 0.0, "logit": 12.0},  # bytes of outputs, their probabilities and gradients
    "gpu": {"byte": 0.0, "message": 0.0, "process": 0.0, "gathered": 14.0},  # bf16: two layers, gradients; float32: 2x
}


def measured(device: str, path: str) -> list[dict[str, Any]]:
    """Return the stored lines of a path: sharded, plain or sweep."""
    lines = (HERE / f"scale_{device}.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for line in lines if (row := json.loads(line)).get("path") == path and "error" not in row]


class Measured(NamedTuple):
    """What was measured of a case: the seconds of a round and of its pass, and the bytes of a device."""

    seconds: float
    gradient: float
    bytes: float


@cache
def prunings(device: str, fit: bool) -> dict[Case, Measured]:
    """Return the measured cases, either those to fit constants to, or those to check them with.

    On the CPU, seconds are those of the processor in all processes, and the median of several measurements. On the GPU
    they are the least.
    """
    found: dict[Case, list[Measured]] = {}
    for row in measured(device, "sharded"):
        names = ("width", "depth", "tokens", "length", "vocabulary")
        case = Case(**{n: row[n] for n in names}, devices=row["processes"], word=2 if device == "gpu" else 4)
        seconds = row["processor"] / row["rounds"] if device == "cpu" else min(row["rounds_seconds"][1:])
        if case.width >= 256 and ((case.width, case.depth, case.tokens) in FITTED[device]) == fit:  # others warm up
            found.setdefault(case, []).append(Measured(seconds, row["gradient"], row["bytes"]))
    usual: Callable[[Sequence[float]], float] = median if device == "cpu" else min
    return {case: Measured(*(usual(each) for each in zip(*rows, strict=True))) for case, rows in found.items()}


@cache
def costs(device: str) -> Costs:
    """Return the seconds of each unit of work, and the bytes of each unit of memory."""
    return costs_of(device, prunings(device, fit=True))


def costs_of(device: str, cases: Mapping[Case, Measured]) -> Costs:
    """Return the costs that fit some cases of a device."""
    known, guess = COUNTED[device], GUESS[device]
    memory = fit({case: row.bytes for case, row in cases.items()}, Case.memory, BYTES_GUESS[device], known)
    if device == "cpu":
        seconds = {case: row.seconds / case.devices for case, row in cases.items()}
        return {**known, **memory, **fit(seconds, Case.seconds, guess, known)}
    known = {**guess, **known}
    for part, names in (("passes", ("operation", "launch")), ("selection", ("weight", "layer"))):
        seconds = {
            case: row.gradient if part == "passes" else row.seconds - row.gradient for case, row in cases.items()
        }
        known |= fit(seconds, partial(_part, part), {name: guess[name] for name in names}, known)
    return {**known, **memory}


def _part(part: str, case: Case, cost: Costs) -> float:
    return case.parts(cost)[part]


def fit(found: Mapping[Case, float], predict: Callable[[Case, Costs], float], guess: Costs, known: Costs) -> Costs:
    """Return the constants of the guess that fit what was found, beside those that are known."""
    return fitted(lambda case, cost: predict(case, {**known, **cost}), found, guess)


def sweeps(device: str) -> list[dict[str, Any]]:
    """Return the measured sweeps, of equal ones the fastest; those to fit constants to come first."""
    fastest: dict[tuple[int, str], dict[str, Any]] = {}
    for row in measured(device, "sweep"):
        key = row["jobs"], str(row["kinds"])
        fastest[key] = min(fastest.get(key, row), row, key=lambda row: row["seconds"])
    return list(fastest.values())


def stages(device: str) -> tuple[dict[str, float], float, float]:
    """Return the set-up of each kind of run, the training of any, and start and end of a sweep, from one of one lane.

    Between the ends of two runs is the second one; on a GPU it was set up before, beside the first.
    """
    row = sweeps(device)[0]
    runs, setups = row["runs"], dict[str, list[float]]()
    for run in runs:
        setups.setdefault(run["kind"], []).append(run["prune"])
    between = [
        after["end"] - before["end"] - (after["prune"] if device == "cpu" else 0.0) for before, after in pairwise(runs)
    ]
    start = runs[0]["end"] - runs[0]["prune"] - runs[0]["train"] + row["seconds"] - runs[-1]["end"]
    return {kind: median(found) for kind, found in setups.items()}, median_low(between), start


def sweep_seconds(row: Mapping[str, Any], device: str, gain: float) -> float:
    """Return the predicted seconds of a sweep; `gain` is that of LANES runs side by side, on the CPU of two."""
    setups, train, start = stages(device)
    runs = [Run(setups[kind], train, gained(gain, LANES if device == "gpu" else 2)) for kind in row["kinds"]]
    if device == "gpu":
        return makespan(runs, 1, row["jobs"], start, AHEAD)
    for run in runs[: row["jobs"]]:
        run.setup += start  # each lane is a process that has to start
    return makespan(runs, 1, row["jobs"])


def gained(gain: float, lanes: int) -> Callable[[int], float]:
    """Return how many times as fast some runs side by side are as one after another, if so many are `gain` times."""
    return lambda beside: 1 + (gain - 1) * (beside - 1) / (lanes - 1)


@cache
def cpu_gain() -> float:
    """Return how many times as fast two processes are as one after another, which fits the first sweep of two."""
    first = next(row for row in sweeps("cpu") if row["jobs"] == 2)
    gains = [hundredths / 100 for hundredths in range(100, 201)]
    return min(gains, key=lambda gain: abs(sweep_seconds(first, "cpu", gain) - first["seconds"]))


# What is asked for: networks of 1, 10 and 100 B weights, and the paper's grid.

SIZES = {"1 B": (2048, 20), "10 B": (5120, 32), "100 B": (10240, 80)}  # width and depth
GPUS = (1, 8, 64, 512)
ROUND_TOKENS, LONGEST, SHORTEST = 1 << 19, 8192, 1024  # tokens of a round, and of a pass of one GPU
CAPACITY = 0.9 * 139 * 2**30  # bytes of an H200, of which a tenth stays free
EPOCHS = {"resnet50": (3.38, 3.07), "vgg19": (0.80, 0.58)}  # seconds alone, and per network of four (lab.md)
COMPILING = 54.0  # seconds (lab.md)
IMAGES = {"cifar10": 45_000, "cifar100": 45_000, "tiny-imagenet": 90_000, "imagenet": 1_281_167}  # of an epoch
PASS = {"first": 4.6 / 300, "second": 31.3 / 300}  # seconds of VGG-19: FORCE (lab.md), the fastest record of GRASP-MB


def planned(size: str, gpus: int) -> Case | None:
    """Return a round with the longest passes that fit into the memory; None if nothing fits."""
    tokens = min(LONGEST, ROUND_TOKENS // gpus)
    while tokens >= SHORTEST:
        case = Case(*SIZES[size], tokens, gpus, passes=ROUND_TOKENS // gpus // tokens)
        if case.memory(costs("gpu")) <= CAPACITY:
            return case
        tokens //= 2
    return None


def gpu_costs(gpus: int) -> Costs:
    """Return the costs on so many GPUs: computing as measured, links as assumed."""
    link = LINKS["within a node" if gpus <= NODE else "between nodes"]
    return {**costs("gpu"), "byte": 1 / link, "message": LATENCY}


def grid() -> list[Experiment]:
    """Return the different runs of all figures of the paper, at its own scale."""
    sources = [figure.source for figure in FIGURES.values() if isinstance(figure.source, Runs)]
    return list(dict.fromkeys(each.resolved("cuda") for source in sources for each in source.experiments("paper")))


def four_gain(model: str) -> float:
    """Return how many times as fast four networks side by side are; that of ResNet-50 for those not measured."""
    alone, beside = EPOCHS.get(model, EPOCHS["resnet50"])
    return alone / beside


def as_run(experiment: Experiment) -> Run:
    """Return an experiment as a run: epochs as `barebones figure --list` takes them, and pruning by its passes."""
    gain, epoch = four_gain(experiment.model), EPOCH_SECONDS[experiment.data, experiment.model]
    batch = epoch / IMAGES[experiment.data] * (experiment.batch or 0)  # seconds
    slower = batch / (EPOCH_SECONDS["cifar10", "vgg19"] / IMAGES["cifar10"] * 128)
    passes = (experiment.rounds or 0) * (experiment.batches or 0)
    pruning = PASS["second" if experiment.method in ("grasp", "grasp-mb") else "first"] * passes * slower
    train = ((experiment.epochs or 0) + experiment.pretrain) * epoch * gain
    compiling = COMPILING if (experiment.epochs or 0) >= COMPILED_FROM else 0.0
    return Run(compiling + pruning, train, gained(gain, LANES))


def grid_seconds(row: Mapping[str, Any]) -> float:
    """Return the predicted seconds of a measured part of a grid; some runs were pruned and partly trained before."""
    runs = []
    for each in row["runs"]:
        run = as_run(Experiment(row["model"], row["data"], each["method"], epochs=row["epochs"]).resolved("cuda"))
        left = 1 - each["trained"] / row["epochs"]
        runs.append(replace(run, setup=0.0 if each["trained"] else run.setup, train=left * run.train))
    return makespan(runs, 1, row["jobs"], stages("gpu")[2], AHEAD)


# The tables, as lines of Markdown.

UNITS = {  # the times, and for how many units
    "operation": ("10¹² floating-point operations", 1e12),
    "launch": ("launches of a pass, for each layer", 1),
    "weight": ("scores and selection of 10⁶ own weights", 1e6),
    "layer": ("launches of a selection, for each layer", 1),
    "byte": ("10⁹ bytes over the link", 1e9),
    "message": ("a small message, for each doubling of the devices", 1),
}
BYTES = {
    "selection": "selection, for each own weight",
    "gathered": "gathered weights, for each of a layer and of the embedding",
    "activation": "activations, for each token, layer and unit of the width",
    "logit": "outputs, for each token and word",
    "process": "a process",
}


def table(*rows: Sequence[str]) -> list[str]:
    """Return a Markdown table; the first row has the headings."""
    head, *others = [f"| {' | '.join(row)} |" for row in rows]
    return [head, "|" + " --- |" * len(rows[0]), *others]


def constants_table() -> list[str]:
    """Return what each unit costs on the CPU and on the GPU."""
    found = [costs("cpu"), costs("gpu")]
    rows = [(label, *(span(many * cost[name]) for cost in found)) for name, (label, many) in UNITS.items()]
    assumed = [f"{span(1e9 / LINKS['within a node'])} or {span(1e9 / LINKS['between nodes'])}", span(LATENCY)]
    rows[-2:] = [(*row[:2], f"{each}, assumed") for row, each in zip(rows[-2:], assumed, strict=True)]
    rows += [(label, *(size(cost[name]) for cost in found)) for name, label in BYTES.items()]
    return table(("what", "CPU", "H200"), *rows)


def span(seconds: float) -> str:
    """Return a time in seconds, or in the part of a second that fits it."""
    for unit, part in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * part:
            return f"{seconds / part:.3g} {unit}"
    return "0 s"


def size(count: float) -> str:
    """Return a number of bytes in the unit that fits it."""
    for unit, part in (("GB", 1e9), ("MB", 1e6)):
        if count >= part:
            return f"{count / part:,.0f} {unit}" if count >= 99.95 * part else f"{count / part:.3g} {unit}"
    return f"{count:.3g} B"


def checks() -> Iterator[tuple[str, float, float, Callable[[float], str]]]:
    """Yield what was measured but fits no constant: its name, the measured and the predicted value, and their form."""
    for device, gain in (("cpu", cpu_gain()), ("gpu", four_gain("vgg19"))):
        for case, row in prunings(device, fit=False).items():
            where = counted(case.devices, "process", "es") if device == "cpu" else "H200"
            name = f"{case.weights / 1e6:,.0f} M weights, {case.tokens} tokens, {where}"
            times = case.devices if device == "cpu" else 1  # the processor time of all
            yield f"a round: {name}", row.seconds, times * case.seconds(costs(device)), span
            yield f"memory: {name}", row.bytes, case.memory(costs(device)), size
        for sweep in sweeps(device)[FITTED_SWEEPS[device] :]:
            where = "CPU" if device == "cpu" else "H200"
            name = f"a sweep: {len(sweep['kinds'])} runs, {counted(sweep['jobs'], 'lane')}, {where}"
            yield name, sweep["seconds"], sweep_seconds(sweep, device, gain), span
    for row in measured("gpu", "grid"):
        name = f"a sweep: {len(row['runs'])} runs of {row['epochs']} epochs, {counted(row['jobs'], 'lane')}, H200"
        yield name, row["seconds"], grid_seconds(row), span


def checks_table() -> list[str]:
    """Return the checks."""
    rows = [(name, form(m), form(p), percent(p / m - 1, "+")) for name, m, p, form in checks()]
    return table(("what", "measured", "predicted", "difference"), *rows)


def percent(share: float, sign: str = "") -> str:
    """Return a share in %, with a space before the sign."""
    return f"{share:{sign}.0%}".replace("%", " %").replace("-", "−")


def pruning_table() -> list[str]:
    """Return time, memory and traffic of a round on several numbers of GPUs."""
    rows = [("weights", "GPUs", "passes x tokens", "a round", "most of it", "memory of a GPU", "its traffic")]
    for name, gpus in product(SIZES, GPUS):
        case, cost = planned(name, gpus), gpu_costs(gpus)
        if case is None:
            least = Case(*SIZES[name], SHORTEST, gpus, ROUND_TOKENS // gpus // SHORTEST).memory(costs("gpu"))
            rows.append((name, str(gpus), "", "does not fit", "", size(least), ""))
            continue
        parts = case.parts(cost)
        most, seconds = max(parts, key=lambda part: parts[part]), sum(parts.values())
        passes, part = f"{case.passes} x {case.tokens}", f"{most}, {percent(parts[most] / seconds)}"
        rows.append((name, str(gpus), passes, span(seconds), part, size(case.memory(cost)), size(case.traffic)))
    return table(*rows)


def grid_table() -> list[str]:
    """Return the hours of the paper's grid on several numbers of GPUs."""
    runs = [as_run(experiment) for experiment in grid()]
    longest = sorted(runs, key=lambda run: -run.setup - run.train)
    rows = [
        (str(gpus), *(f"{makespan(each, gpus, LANES, ahead=AHEAD) / 3600:,.0f} h" for each in (runs, longest)))
        for gpus in GPUS[:3]
    ]
    return table(("GPUs", "in the order of the figures", "longest runs first"), *rows)


if __name__ == "__main__":
    for lines in (constants_table(), checks_table(), pruning_table(), grid_table()):
        print("\n".join(lines), end="\n\n")
