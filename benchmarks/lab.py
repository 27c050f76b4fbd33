"""Benchmark of the lab: training steps with and without masks, epochs, FORCE against its gradients, and GRASP-MB."""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from time import perf_counter
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from measuring import in_turns, machine, seconds, start, wait
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from barebones.cli.options import check_device
from barebones.data import Data, Normalization, TensorSplit, load
from barebones.gpu.graphs import Captured
from barebones.lab.experiment.plan import TrainingPlan
from barebones.lab.run.training import Training
from barebones.masks import Masks, agreement
from barebones.models import build, initialize
from barebones.names import SCORING_PRECISIONS
from barebones.pruning.methods import METHODS, Method
from barebones.pruning.probe import Probe
from barebones.pruning.prune import prune
from barebones.pruning.rounds import rounds as prune_rounds
from barebones.pruning.saliency import saliency
from barebones.running.precision import autocast, computing
from barebones.scope import prunable

SPARSITY = 0.995
BATCH = 128
REPEATS = 3  # of each side; the median is printed
PRECISION = "bf16"
HELD_TARGET = {"resnet50": "≤ 2%", "vgg19": "≤ 3%"}  # what holding masks may add to a step
EPOCH_TARGET = {"resnet50": "≤ 2.80 s", "vgg19": "≤ 0.60 s"}
PRUNING_TARGET = {"resnet50": ("≤ 4.0 s", "≤ 1.10"), "vgg19": ("≤ 1.2 s", "≤ 1.60")}  # and the ratio to bare gradients


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
    return model.to(device, memory_format=layout)


def _training(name: str, data: Data, device: str, compiled: bool) -> Table:
    plan = TrainingPlan(epochs=1_000_000, batch_size=BATCH, lr=0.1, weight_decay=5e-4)

    def training(masked: bool) -> Training:
        model = network(name, data)
        masks = {n: torch.rand(p.shape, device=p.device) >= SPARSITY for n, p in prunable(model).items()}
        return Training(model, data, plan, masks if masked else None, precision=PRECISION, compiled=compiled)

    free, held = training(False), training(True)
    count, warm_up = (50, 10) if device.startswith("cuda") else (5, 1)
    began = perf_counter()
    steps = stepper(free), stepper(held)
    for step in steps:
        step(warm_up)
    wait(device)
    ready = perf_counter() - began
    sides = dict(zip(("no masks", "masks held"), (partial(step, count) for step in steps), strict=True))
    times = {side: 1000 * value / count for side, value in in_turns(sides, REPEATS, device).items()}
    table = _table(f"{name}: training, {len(data.train):,} images an epoch", "what", "measured", "target")
    table.add_row("to the first replayed steps, both networks", f"{ready:.1f} s", "")
    table.add_row("step without masks", f"{times['no masks']:.3f} ms", "")
    table.add_row("step with masks held", f"{times['masks held']:.3f} ms", "")
    cost = times["masks held"] / times["no masks"] - 1
    table.add_row("holding costs", f"{cost:+.1%}", HELD_TARGET.get(name, ""))
    del free, sides, steps
    epochs = filter(None, held.steps())
    next(epochs)  # a warm-up
    began = perf_counter()
    table.add_row("epoch", f"{next(epochs).seconds:.3f} s", EPOCH_TARGET.get(name, ""))
    table.add_row("epoch with validation", f"{perf_counter() - began:.3f} s", "")
    return table


def _table(title: str, *columns: str) -> Table:
    return Table(*columns, title=title, title_justify="left")


def stepper(training: Training) -> Callable[[int], None]:
    """Return a function that runs some training steps, always on the same batch."""
    images, labels = next(training.data.train.epoch(training.plan.batch_size, augment=True))
    stream = torch.cuda.Stream() if training.device.type == "cuda" else None

    def step(count: int) -> None:
        for _ in range(count):
            with torch.cuda.stream(stream):
                training.model.train()
                training._learn_and_move(images, labels)

    return step


def _pruning(name: str, data: Data, count: int, device: str) -> Table:
    model, batches, capture = network(name, data), data.train.scoring(BATCH), device.startswith("cuda")
    bare = _bare(model, batches, capture)
    force = partial(_force, model, batches, count, PRECISION)
    bare(10 if capture else 1)
    first = seconds(force, device)
    times = in_turns({"bare": partial(bare, count), "force": force}, REPEATS, device)
    most, ratio = PRUNING_TARGET.get(name, ("", ""))
    table = _table(f"{name}: FORCE, {count} rounds to {SPARSITY:.1%}, {PRECISION}", "what", "measured", "target")
    table.add_row(f"{count} bare gradients" + (", captured" if capture else ""), f"{times['bare']:.3f} s", "")
    table.add_row("FORCE, the first time in a process", f"{first:.3f} s", "")
    table.add_row("FORCE", f"{times['force']:.3f} s", most)
    table.add_row("FORCE / bare", f"{times['force'] / times['bare']:.3f}", ratio)
    return table


def _force(model: nn.Module, batches: Iterable, count: int, precision: str, seed: int = 0) -> Masks:
    method, capture = replace(METHODS["force"], rounds=count), next(model.parameters()).is_cuda
    options = {"precision": precision, "capture": capture, "on_collapse": "ignore", "seed": seed}
    return prune(model, batches, SPARSITY, method, **options).masks


def _bare(model: nn.Module, batches: Iterable, capture: bool) -> Callable[[int], None]:
    """Return a function that runs only the forward and backward passes, on the same batches as pruning."""
    weights = list(prunable(model).values())
    device = weights[0].device

    def gradient(images: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        with computing(device, PRECISION):
            with autocast(PRECISION, device):
                value = F.cross_entropy(model(images), labels)
            return torch.autograd.grad(value, weights)

    call = Captured(gradient) if capture else gradient

    def passes(count: int) -> None:
        epochs = (batch for _ in repeat(None) for batch in batches)
        for images, labels in islice(epochs, count):
            call(images, labels)

    return passes


def _precision(name: str, data: Data, count: int, seeds: range) -> Table:
    """Compare the masks of scores in lower precisions with those in fp32: agreement after one round, and saliency.

    The agreement with the masks of another batch is the reference. Each seed has its own network and batches. The
    saliency is measured in fp32, on other batches than those that the masks were found with.
    """
    table = _table(
        f"{name}: precision of the scores, {data.name}, {SPARSITY:.1%}",
        *("scores in", "one round: agrees with fp32", f"S of FORCE's masks, {count} rounds", "less than in fp32"),
    )
    agreed: dict[str, list[float]] = {}
    saliencies: dict[str, list[float]] = {}
    for seed in seeds:
        model = network(name, data, seed)
        exact = _one_round(model, data, "fp32", seed)
        for precision in SCORING_PRECISIONS if next(model.parameters()).is_cuda else ("fp32", "bf16"):
            masks = _force(model, data.train.scoring(BATCH, seed), count, precision, seed)
            value = saliency(model, masks, data.train.scoring(BATCH, 1234), count=10)
            saliencies.setdefault(precision, []).append(value)
            agreed.setdefault(precision, []).append(float(agreement(exact, _one_round(model, data, precision, seed))))
        other = agreement(exact, _one_round(model, data, "fp32", seed + 1000))
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


def _one_round(
    model: nn.Module, data: Data, precision: str, seed: int, method: Method = METHODS["snip"], capture: bool = False
) -> Masks:
    probe = Probe(model, data.train.scoring(BATCH, seed), precision=precision, capture=capture)
    keep = round((1 - SPARSITY) * sum(p.numel() for p in prunable(model).values()))
    return next(iter(prune_rounds(probe, method, keep))).masks


def _grasp(name: str, data: Data, count: int, device: str) -> Table:
    """Time GRASP-MB in each precision, and compare its masks with those in fp32."""
    method, on_gpu = replace(METHODS["grasp-mb"], batches_per_round=count), device.startswith("cuda")
    run = partial(_one_round, network(name, data), data, method=method, capture=on_gpu)
    sides = {
        precision: partial(run, precision, 0) for precision in (SCORING_PRECISIONS if on_gpu else ("fp32", "bf16"))
    }
    sides["fp32, other batches"] = partial(run, "fp32", 1000)
    masks = {side: work() for side, work in sides.items()}  # a warm-up too
    table = _table(f"{name}: GRASP-MB, {count} batches, {SPARSITY:.1%}", "scores in", "s a batch", "agrees with fp32")
    for side, time in in_turns(sides, REPEATS, device).items():
        table.add_row(side, f"{time / count:.3f}", f"{float(agreement(masks['fp32'], masks[side])):.4f}")
    return table


def _spread(values: list[float], spread: Callable[[list[float]], float]) -> str:
    if not values:
        return ""
    return f"{statistics.fmean(values):.2f}" + (f" ± {spread(values):.2f}" if len(values) > 1 else "")


def main(
    model: Annotated[list[str] | None, typer.Option(help="A network for 32x32 images; may be repeated.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    images: Annotated[int, typer.Option(min=256, help="Images in an epoch.")] = 45_000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of FORCE.")] = 300,
    compiled: Annotated[bool, typer.Option("--compile", help="Compile the networks with torch.compile.")] = False,
    data_root: Annotated[
        Path | None, typer.Option(help="Folder with CIFAR-10, for the table of precisions; without it, noise.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of networks to compare precisions on.")] = 3,
    grasp: Annotated[int, typer.Option(help="Print the table of GRASP-MB only, with so many batches.")] = 0,
) -> None:
    """Print the tables of each network: training, pruning and the precision of the scores."""
    device, console = check_device(device), Console()
    mode = f"{PRECISION}, {'compiled' if compiled else 'not compiled'}"
    console.print(f"{machine(device)}, {mode}, batch {BATCH} of random 32x32 images", highlight=False)
    torch.backends.cudnn.benchmark = True  # cuDNN takes its fastest algorithms, as in the lab
    data = random_images(images, device)
    for name in model or ["resnet50", "vgg19"]:
        if grasp:
            console.print(_grasp(name, data, grasp, device))
            continue
        console.print(_training(name, data, device, compiled))
        console.print(_pruning(name, data, rounds, device))
        scored = data if data_root is None else load("cifar10", data_root, device)
        console.print(_precision(name, scored, rounds, range(seeds)))


if __name__ == "__main__":
    start(main)
