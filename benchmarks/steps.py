"""Milliseconds of a training step: dense, with masks held, and of shrunk networks, in turns, as one Markdown table.

    python benchmarks/steps.py                          # VGG-19 and ResNet-50 on an NVIDIA GPU: one CUDA graph a step
    python benchmarks/steps.py --masks mask.safetensors # masks found on real data, instead of those found on noise
    python benchmarks/steps.py --sparsity 0.99 --wrappers --steps 280 # also HAM, SAM, and masks that move

Images are random, as they hardly change the time. But masks decide which channels shrinking removes. FLOPs left are
those of dense layers as wide as they are, and weights left are those that are not masked.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from lab import BATCH, PRECISION, network, random_images, stepper
from measuring import in_turns, machine, start
from torch import nn

import barebones as bb
from barebones.cli.options import check_device
from barebones.data import Data
from barebones.lab.experiment.plan import TrainingPlan
from barebones.lab.run.shrunk import to_train
from barebones.lab.run.training import Training
from barebones.masks import Masks, kept, size

WRAPPERS = {", HAM": {"ham": True}, ", SAM": {"sam": 0.05}, ", moving": {"evolve": "set"}}
CHANNELS = {"unit": "channel", "target": "weights"}, {"unit": "channel", "target": "flops"}
Stepper = Callable[[int], None]
Row = tuple[list[str], Stepper]  # the cells before the time, and what runs steps


def pruned(name: str, data: Data, sparsities: Iterable[float], method: str, rounds: int, batch: int) -> Iterator[Masks]:
    """Yield masks of single weights, of whole channels and, at 50 %, of 2 in 4 weights."""
    model, batches = network(name, data), data.train.scoring(batch)
    capture = next(model.parameters()).is_cuda
    options = {"rounds": rounds, "precision": PRECISION, "capture": capture, "on_collapse": "ignore"}
    for sparsity in sparsities:
        for form in ({}, *CHANNELS, *[{"pattern": "2:4"}] * (sparsity == 0.5)):
            result = bb.prune(model, batches, sparsity, method, **options, **form)
            result.masks.about = result.about
            yield result.masks


def rows(name: str, data: Data, found: Iterable[Masks], batch: int, wrapped: bool, compiled: bool) -> Iterator[Row]:
    """Yield the dense network, and with each masks the held and the shrunk one, where it makes a difference."""
    plan = TrainingPlan(epochs=700, batch_size=batch, lr=0.01, weight_decay=5e-4)  # masks move every 140 steps
    dense, images = network(name, data), next(data.test.epoch(2))[0]
    flops, weights = bb.account(dense, {}, images[:1]).flops_dense, size(bb.prunable(dense))

    def row(model: nn.Module, masks: Masks, label: str, **changes: Any) -> Row:
        left = bb.account(model, {}, images[:1]).flops_dense / flops, (kept(masks) if masks else weights) / weights
        sparsity = f"{100 * masks.about['sparsity']:g} %" if masks else ""
        training = Training(model, data, replace(plan, **changes), masks, precision=PRECISION, compiled=compiled)
        return [name, label, sparsity, *(f"{share:.2%}" for share in left)], stepper(training)

    yield row(dense, Masks(), "none")
    for masks in found:
        about, model = masks.about, network(name, data)
        pattern, channels = about.get("pattern"), about.get("unit") == "channel"
        form = [f"{pattern}"] if pattern else ["channels by", about["target"]] if channels else []
        label, small = " ".join([about["method"], *form]), None if pattern else to_train(model, masks, images)
        for wrapper, changes in {"": {}, **(WRAPPERS if wrapped and not form else {})}.items():
            if small:
                small.masks.about = about
                yield row(deepcopy(small.module), small.masks, f"{label}, shrunk{wrapper}", **changes)
            if not channels:
                yield row(network(name, data), masks, f"{label}, held{wrapper}", **changes)


def main(
    model: Annotated[list[str] | None, typer.Option(help="A network for 32x32 images; may be repeated.")] = None,
    sparsity: Annotated[list[float] | None, typer.Option(help="May be repeated.")] = None,
    masks: Annotated[list[Path] | None, typer.Option(help="A mask file, instead of pruning; may be repeated.")] = None,
    method: Annotated[str, typer.Option(help="Finds the masks.")] = "force",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of pruning.")] = 20,
    batch_size: Annotated[int, typer.Option(min=2, help="Images in a step.")] = BATCH,
    steps: Annotated[int, typer.Option(min=1, help="Steps in a turn.")] = 50,
    turns: Annotated[int, typer.Option(min=1, help="Turns; their median is printed.")] = 5,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    wrappers: Annotated[bool, typer.Option("--wrappers", help="Also HAM, SAM and moving masks.")] = False,
    compiled: Annotated[bool, typer.Option("--compile", help="Compile the networks with torch.compile.")] = False,
) -> None:
    """Print the table."""
    device, data = check_device(device), random_images(20 * batch_size, check_device(device))
    torch.backends.cudnn.benchmark = True  # cuDNN takes its fastest algorithms, as in the lab
    mode = f"{PRECISION}, {'compiled' if compiled else 'not compiled'}, batch {batch_size} of random images"
    print(f"{machine(device)}, {mode}; medians of {turns} turns of {steps} steps\n")
    print("| network | masks | sparsity | FLOPs left | weights left | ms | times as fast |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for name in model or ["vgg19", "resnet50"]:
        found = pruned(name, data, sparsity or [0.5, 0.9, 0.98, 0.99], method, rounds, batch_size)
        if masks:
            found = (loaded for path in masks if _network(loaded := bb.load_masks(path)) == name)
        cells, calls = [], {}
        for row, step in rows(name, data, found, batch_size, wrappers, compiled):
            print(f"{name}: {row[1]} {row[2]}", file=sys.stderr)
            step(10 if device.startswith("cuda") else 1)  # a warm-up
            cells.append(row)
            calls[len(calls)] = partial(step, steps)
        times = in_turns(calls, turns, device)
        for index, row in enumerate(cells):
            print("|", " | ".join([*row, f"{1e3 * times[index] / steps:.3f}", f"{times[0] / times[index]:.2f}"]), "|")


def _network(masks: Masks) -> str | None:
    return masks.about.get("experiment", {}).get("model")


if __name__ == "__main__":
    start(main)
