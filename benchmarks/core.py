"""Benchmark of pruning: time and memory beyond the necessary gradients, and the selection of the highest scores."""

import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from measuring import machine, memory, seconds, start
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from barebones.cli.options import check_device
from barebones.masks import size
from barebones.models import build, initialize
from barebones.pruning.methods import METHODS
from barebones.pruning.probe import Probe
from barebones.pruning.rounds import rounds as prune_rounds
from barebones.pruning.selection import top_masks
from barebones.running.precision import computing
from barebones.scope import prunable

SPARSITY = 0.995
REPEATS = 3  # of each side; the median is printed
BATCH = 128
SCORES = 100_000_000  # to select from
Batch = tuple[Tensor, Tensor]


def network(name: str) -> nn.Module:
    """Build and initialize one of the paper's networks for 32x32 images."""
    return initialize(build(name, 10, 32), generator=torch.Generator().manual_seed(0))


def images(count: int, batch: int, device: str) -> list[Batch]:
    """Make batches of random images with random labels."""
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(batch, 3, 32, 32, generator=generator).to(device),
            torch.randint(10, (batch,), generator=generator).to(device),
        )
        for _ in range(count)
    ]


def bare_gradients(model: nn.Module, batches: list[Batch]) -> None:
    """Run the forward and backward passes that every gradient method needs."""
    weights = list(prunable(model).values())
    for inputs, targets in batches:
        torch.autograd.grad(F.cross_entropy(model(inputs), targets), weights)


def bare_double_backward(model: nn.Module, batches: list[Batch]) -> None:
    """Run the passes that a product of the Hessian with the gradient needs."""
    weights = list(prunable(model).values())
    for inputs, targets in batches:
        gradients = torch.autograd.grad(F.cross_entropy(model(inputs) / 200, targets), weights, create_graph=True)
        torch.autograd.grad(gradients, weights, [g.detach() for g in gradients])


class TimedBatches:
    """Batches that run a bare pass before each batch is returned, and add up the seconds of these passes.

    The speed of a shared machine varies by more than the differences to measure. Passes that follow each other
    directly see the same speed.
    """

    def __init__(self, model: nn.Module, batches: list[Batch], device: str) -> None:
        self.model, self.batches, self.device, self.seconds = model, batches, device, 0.0

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.batches:
            self.seconds += seconds(partial(bare_gradients, self.model, [batch]), self.device)
            yield batch


def run_pruning(name: str, model: nn.Module, batches: Iterable[Batch], count: int) -> None:
    """Prune in `count` rounds, or in one round of `count` batches if the method has one round."""
    method = METHODS[name]
    changes = {"batches_per_round": count} if method.rounds == 1 else {"rounds": count}
    probe = Probe(model, batches)
    keep = round((1 - SPARSITY) * size(probe.weights))
    for _ in prune_rounds(probe, replace(method, **changes), keep):
        pass


def _speed(model: nn.Module, rounds: int, device: str) -> Table:
    batches, single = images(rounds, BATCH, device), images(1, BATCH, device)
    table = Table("time", "bare, s", "pruning, s", "ratio", "target", title="pruning against the bare passes it needs")
    bare_gradients(model, single)
    for name, unit in {"force": "rounds", "iter-snip": "rounds", "snip-mb": "batches"}.items():
        pairs = []
        for _ in range(REPEATS):
            timed = TimedBatches(model, batches, device)
            total = seconds(partial(run_pruning, name, model, timed, rounds), device)
            pairs.append((timed.seconds, total - timed.seconds))
        table.add_row(f"{name}, {rounds} {unit}", *_compared(pairs), "≤ 1.05" if device == "cpu" else "")
    bare_double_backward(model, single)
    sides = partial(bare_double_backward, model, single), partial(run_pruning, "grasp", model, single, 1)
    pairs = [tuple(seconds(side, device) for side in sides) for _ in range(REPEATS)]
    table.add_row("grasp, 1 batch", *_compared(pairs), "≤ 1.10" if device == "cpu" else "")
    return table


def _compared(pairs: list[tuple[float, float]]) -> tuple[str, str, str]:
    bare, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    return f"{bare:.2f}", f"{ours:.2f}", f"{statistics.median(b / a for a, b in pairs):.3f}"


def _memory(model: str, weights: int, batch: int, device: str) -> Table:
    title = f"peak memory, batch {batch}, 3 rounds or batches"
    table = Table("memory", "peak, MB", "above bare", "target", title=title)
    bare = _peak(model, "bare", batch, device)
    table.add_row("one plain gradient", f"{bare / 1e6:.0f}", "", "")
    for name in ("force", "iter-snip", "snip-mb"):
        peak = _peak(model, name, batch, device)
        table.add_row(name, f"{peak / 1e6:.0f}", f"{(peak - bare) / weights:.2f} x the weights", "≤ 2.5")
    return table


def _peak(model: str, method: str, batch: int, device: str) -> int:
    """Return the peak memory, in bytes, of a new process that does nothing else."""
    code = f"from core import print_peak; print_peak({model!r}, {method!r}, {batch}, {device!r})"
    # These settings make malloc return large blocks to the system at once, so that the peak is the memory in use.
    here = str(Path(__file__).parent)
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return int(done.stdout)


def print_peak(name: str, method: str, batch: int, device: str) -> None:
    """Run a method, or one gradient for "bare", and print the peak memory of this process in bytes."""
    model = network(name).to(device)
    batches = images(3, batch, device)
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    with computing(torch.device(device), "fp32"):
        if method == "bare":
            bare_gradients(model, batches[:1])
        else:
            run_pruning(method, model, batches, len(batches))
    print(memory("VmHWM") if device == "cpu" else torch.cuda.max_memory_allocated())


def _selection(device: str) -> Table:
    scores = torch.rand(SCORES, device=device).square_()
    title = f"top k of {SCORES / 1e6:g} M scores"
    table = Table("selection", "keep_top, s", "sorted topk, s", "faster", "target", title=title)
    for share in (0.005, 0.1, 0.5):
        keep = max(1, round(share * SCORES))
        sides = partial(torch.topk, scores, keep), partial(top_masks, {"scores": scores}, keep)
        pairs = [tuple(seconds(side, device) for side in sides) for _ in range(REPEATS)]
        theirs, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
        faster = statistics.median(a / b for a, b in pairs)
        target = "≥ 2.5 x" if device == "cpu" else ""
        table.add_row(f"k = {share:.1%}", f"{ours:.4f}", f"{theirs:.4f}", f"{faster:.1f} x", target)
    return table


def main(
    model: Annotated[str, typer.Option(help="A network for 32x32 images, such as resnet18 or vgg19.")] = "resnet18",
    rounds: Annotated[int, typer.Option(min=1, help="Pruning rounds, each with a bare pass.")] = 5,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Compare pruning with bare gradients, print its memory, and compare the selection with a sorted topk."""
    device = check_device(device)
    module = network(model).to(device)
    weights = size(prunable(module))
    console = Console()
    console.print(f"{model}, {weights / 1e6:.1f} M prunable weights, batch {BATCH}, fp32; {machine(device)}")
    for subject, measure in {
        "the time of pruning": partial(_speed, module, rounds, device),
        "its memory": partial(_memory, model, weights * 4, min(BATCH, 32) if device == "cpu" else BATCH, device),
        "the selection": partial(_selection, device),
    }.items():
        with console.status(f"measuring {subject}"), computing(torch.device(device), "fp32"):
            table = measure()
        console.print(table)


if __name__ == "__main__":
    start(main)
