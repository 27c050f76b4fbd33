"""Benchmark of the lab: training steps with and without masks, epochs, and FORCE against the necessary gradients."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from barebones.data import Data, Normalization, TensorSplit, load
from barebones.gpu.graphs import Captured
from barebones.lab.experiment.plan import TrainingPlan
from barebones.lab.run.training import Training
from barebones.masks import Masks, agreement
from barebones.models import build, initialize
from barebones.pruning.gradients import PRECISIONS
from barebones.pruning.methods import METHODS
from barebones.pruning.probe import Probe
from barebones.pruning.prune import prune
from barebones.pruning.rounds import rounds
from barebones.pruning.saliency import saliency
from barebones.running.precision import autocast, computing
from barebones.scope import prunable

SPARSITY = 0.995
BATCH = 128
HELD_TARGET = {"resnet50": 0.02, "vgg19": 0.03}  # the most that holding masks may add to a step
EPOCH_TARGET = {"resnet50": 2.8, "vgg19": 0.60}  # seconds
PRUNING_TARGET = {"resnet50": (4.0, 1.10), "vgg19": (1.2, 1.6)}  # seconds, and ratio to bare gradients


def run(
    console: Console,
    models: list[str],
    device: str,
    images: int,
    rounds_: int,
    repeats: int,
    precision: str,
    compiled: bool,
    data_root: Path | None = None,
    seeds: int = 3,
) -> None:
    """Print the tables of each network: training, pruning and the precision of the scores."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise typer.BadParameter(f"device {device}: there is no CUDA device on this machine; choose cpu")
    where = torch.cuda.get_device_name() if device != "cpu" else f"{torch.get_num_threads()} threads"
    mode = f"{precision}, {'compiled' if compiled else 'not compiled'}"
    console.print(f"{where}, torch {torch.__version__}, {mode}, batch {BATCH} of random 32x32 images", highlight=False)
    with _choosing_algorithms():
        data = random_images(images, device)
        for name in models:
            console.print(_training(name, data, repeats, precision, compiled))
            console.print(_pruning(name, data, rounds_, repeats, precision))
            scored = data if data_root is None else load("cifar10", data_root, device)
            console.print(_precision(name, scored, rounds_, range(seeds)))


def random_images(count: int, device: str) -> Data:
    """Make a data set of noise: `count` training images, and fewer for validation and for testing."""
    generator = torch.Generator("cpu").manual_seed(0)
    normalization = Normalization([0.5] * 3, [0.25] * 3, device=device, channels_last=device != "cpu")

    def split(size: int) -> TensorSplit:
        pixels = torch.randint(256, (size, 3, 32, 32), generator=generator, dtype=torch.uint8, device="cpu")
        return TensorSplit(pixels, torch.randint(10, (size,), generator=generator, device="cpu"), normalization)

    return Data("noise", 10, (3, 32, 32), split(count), split(max(BATCH, count // 9)), split(max(BATCH, count // 9)))


def network(name: str, data: Data, seed: int = 0) -> nn.Module:
    """Build and initialize a network on the device of the data."""
    model = initialize(build(name, data.classes, data.shape[-1]), generator=torch.Generator("cpu").manual_seed(seed))
    assert isinstance(data.train, TensorSplit)
    device = data.train.images.device
    layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format
    return model.to(device, memory_format=layout)  # type: ignore[call-overload]


def _training(name: str, data: Data, repeats: int, precision: str, compiled: bool) -> Table:
    plan = TrainingPlan(epochs=1_000_000, batch_size=BATCH, lr=0.1, weight_decay=5e-4)

    def training(masked: bool) -> Training:
        model = network(name, data)
        masks = {n: torch.rand(p.shape, device=p.device) >= SPARSITY for n, p in prunable(model).items()}
        return Training(model, data, plan, masks if masked else None, precision=precision, compiled=compiled)

    free, held = training(False), training(True)
    began = perf_counter()
    sides = {"no masks": _stepper(free), "masks held": _stepper(held)}
    for step in sides.values():
        for _ in range(10 if free.device.type == "cuda" else 1):
            step()
    _wait(free.device)
    ready = perf_counter() - began
    count = 50 if free.device.type == "cuda" else 5
    times = _in_turns({side: _many(step, count, free.device) for side, step in sides.items()}, repeats)
    step_ms = {side: 1000 * seconds / count for side, seconds in times.items()}
    cost = step_ms["masks held"] / step_ms["no masks"] - 1
    table = Table(title=f"{name}: training, {len(data.train):,} images an epoch", title_justify="left")
    for column in ("what", "measured", "target"):
        table.add_column(column)
    table.add_row("to the first replayed steps, both networks", f"{ready:.1f} s", "")
    table.add_row("step without masks", f"{step_ms['no masks']:.3f} ms", "")
    table.add_row("step with masks held", f"{step_ms['masks held']:.3f} ms", "")
    table.add_row("holding costs", f"{cost:+.1%}", _at_most(HELD_TARGET.get(name), "{:.0%}"))
    del free, sides
    seconds, with_validation = _epoch(held)
    table.add_row("epoch", f"{seconds:.3f} s", _at_most(EPOCH_TARGET.get(name), "{:.2f} s"))
    table.add_row("epoch with validation", f"{with_validation:.3f} s", "")
    return table


def _epoch(training: Training) -> tuple[float, float]:
    """Train for an epoch; return its seconds, without and with validation."""
    epochs = filter(None, training.steps())
    next(epochs)  # a warm-up
    began = perf_counter()
    return next(epochs).seconds, perf_counter() - began


def _stepper(training: Training) -> Callable[[], None]:
    """Return a function that runs one training step, always on the same batch."""
    images, labels = next(training.data.train.epoch(BATCH, augment=True))
    stream = torch.cuda.Stream() if training.device.type == "cuda" else None

    def step() -> None:
        with torch.cuda.stream(stream):
            training.model.train()
            training._learn(images, labels)

    return step


def _pruning(name: str, data: Data, count: int, repeats: int, precision: str) -> Table:
    if precision not in PRECISIONS:
        precision = "fp32"
    model = network(name, data)
    device = next(model.parameters()).device
    capture = device.type == "cuda"
    batches = data.train.scoring(BATCH)
    bare = _bare(model, batches, precision, capture)

    def force() -> None:
        prune(
            model, batches, SPARSITY, replace(METHODS["force"], rounds=count),
            precision=precision, capture=capture, on_collapse="ignore",
        )  # fmt: skip

    bare(10 if capture else 1)
    began = perf_counter()
    force()
    _wait(device)
    first = perf_counter() - began
    times = _in_turns({"bare": _timed(lambda: bare(count), device), "force": _timed(force, device)}, repeats)
    most, ratio = PRUNING_TARGET.get(name, (None, None))
    table = Table(title=f"{name}: FORCE, {count} rounds to {SPARSITY:.1%}, {precision}", title_justify="left")
    for column in ("what", "measured", "target"):
        table.add_column(column)
    table.add_row(f"{count} bare gradients" + (", captured" if capture else ""), f"{times['bare']:.3f} s", "")
    table.add_row("FORCE, the first time in a process", f"{first:.3f} s", "")
    table.add_row("FORCE", f"{times['force']:.3f} s", _at_most(most, "{:.1f} s"))
    table.add_row("FORCE / bare", f"{times['force'] / times['bare']:.3f}", _at_most(ratio, "{:.2f}"))
    return table


def _bare(model: nn.Module, batches: object, precision: str, capture: bool) -> Callable[[int], None]:
    """Return a function that runs only the forward and backward passes, on the same batches as pruning."""
    weights = list(prunable(model).values())
    device = weights[0].device

    def gradient(images: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        with computing(device, precision):
            with autocast(precision, device):
                value = F.cross_entropy(model(images), labels)
            return torch.autograd.grad(value, weights)

    call = Captured(gradient) if capture else gradient

    def passes(count: int) -> None:
        remaining = count
        while remaining:
            for images, labels in batches:  # type: ignore[attr-defined]
                call(images, labels)
                remaining -= 1
                if not remaining:
                    break

    return passes


def _precision(name: str, data: Data, count: int, seeds: range) -> Table:
    """Compare the masks of scores in lower precisions with those in fp32: agreement after one round, and saliency.

    The agreement with the masks of another batch is the reference. Each seed has its own network and batches. The
    saliency is measured in fp32, on other batches than those that the masks were found with.
    """
    table = Table(title=f"{name}: precision of the scores, {data.name}, {SPARSITY:.1%}", title_justify="left")
    columns = ("scores in", "one round: agrees with fp32", f"S of FORCE's masks, {count} rounds", "less than in fp32")
    for column in columns:
        table.add_column(column)
    agreed: dict[str, list[float]] = {}
    saliencies: dict[str, list[float]] = {}
    for seed in seeds:
        model = network(name, data, seed)
        capture = next(model.parameters()).device.type == "cuda"
        exact = _snip(model, data, "fp32", seed)
        for precision in PRECISIONS if capture else ("fp32", "bf16"):
            masks = prune(
                model, data.train.scoring(BATCH, seed), SPARSITY, replace(METHODS["force"], rounds=count),
                precision=precision, capture=capture, on_collapse="ignore", seed=seed,
            ).masks  # fmt: skip
            value = saliency(model, masks, data.train.scoring(BATCH, 1234), count=10)
            saliencies.setdefault(precision, []).append(value)
            agreed.setdefault(precision, []).append(float(agreement(exact, _snip(model, data, precision, seed))))
        other = agreement(exact, _snip(model, data, "fp32", seed + 1000))
        agreed.setdefault("fp32, another batch", []).append(float(other))
    for side, shares in agreed.items():
        values = saliencies.get(side, [])
        differences = [a - b for a, b in zip(saliencies["fp32"], values, strict=False)] if side != "fp32" else []
        table.add_row(
            side,
            f"{statistics.fmean(shares):.4f}",
            _spread(values, statistics.stdev),
            _spread(differences, lambda sample: statistics.stdev(sample) / len(sample) ** 0.5),
        )
    table.caption = f"{len(seeds)} seeds; ± is the standard deviation of S, and the standard error of the difference"
    return table


def _snip(model: nn.Module, data: Data, precision: str, seed: int) -> Masks:
    probe = Probe(model, data.train.scoring(BATCH, seed), precision=precision)
    keep = round((1 - SPARSITY) * sum(p.numel() for p in prunable(model).values()))
    return next(iter(rounds(probe, METHODS["snip"], keep))).masks


def _spread(values: list[float], spread: Callable[[list[float]], float]) -> str:
    if not values:
        return ""
    return f"{statistics.fmean(values):.2f}" + (f" ± {spread(values):.2f}" if len(values) > 1 else "")


@contextmanager
def _choosing_algorithms() -> Iterator[None]:
    """Let cuDNN search for its fastest algorithms, as the lab does."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _timed(work: Callable[[], None], device: torch.device) -> Callable[[], float]:
    def measure() -> float:
        _wait(device)
        began = perf_counter()
        work()
        _wait(device)
        return perf_counter() - began

    return measure


def _many(step: Callable[[], None], count: int, device: torch.device) -> Callable[[], float]:
    def work() -> None:
        for _ in range(count):
            step()

    return _timed(work, device)


def _in_turns(sides: dict[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """Measure the sides in turns; return the median seconds of each."""
    times: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(repeats):
        for side, measure in sides.items():
            times[side].append(measure())
    return {side: statistics.median(values) for side, values in times.items()}


def _at_most(value: float | None, form: str) -> str:
    return "" if value is None else "≤ " + form.format(value)


def main(
    model: Annotated[list[str] | None, typer.Option(help="A network for 32x32 images; may be repeated.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    images: Annotated[int, typer.Option(min=256, help="Images in an epoch.")] = 45_000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of FORCE.")] = 300,
    repeats: Annotated[int, typer.Option(min=1, help="Measurements of each side; the median is reported.")] = 3,
    precision: Annotated[str, typer.Option(help="fp32, tf32 or bf16.")] = "bf16",
    compiled: Annotated[bool, typer.Option("--compile", help="Compile the networks with torch.compile.")] = False,
    data_root: Annotated[
        Path | None, typer.Option(help="Folder with CIFAR-10, for the table of precisions; without it, noise.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of networks to compare precisions on.")] = 3,
) -> None:
    """Compare training steps with and without masks, and FORCE with the necessary gradients."""
    models = model or ["resnet50", "vgg19"]
    run(Console(), models, device, images, rounds, repeats, precision, compiled, data_root, seeds)


if __name__ == "__main__":
    typer.run(main)
