"""Measure what shrinking, onnxruntime and int8 gain on this machine, side by side in one run, as a Markdown table.

    barebones prune --data digits --model small-resnet --method force --sparsity 0.98 -o mask.safetensors
    python benchmarks/speed.py mask.safetensors        # or the folder of a run; --batch-size 64, --train-batch-size 32

The values of weights and inputs do not change the time, so int8 is calibrated with random inputs here.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from measuring import machine, start
from torch import Tensor, nn
from torch.utils.benchmark import Timer

import barebones as bb
from barebones.deploy.export import session
from barebones.files.weights import dense_bytes
from barebones.lab.run import loading

TURNS, SECONDS = 5, 0.5  # turns of each variant, and seconds of a turn
PAUSE = 0.02  # seconds before a turn, because threads of the variant before it may still spin
Variants = dict[str, tuple[Callable[..., Any], int | None]]  # what to call, and the bytes of its file or weights


def networks(model: nn.Module, small: bb.Shrunk, example: Tensor, folder: Path) -> Variants:
    """Return the dense and the shrunk network in PyTorch and in onnxruntime, dense PyTorch first."""

    def in_onnxruntime(network: nn.Module, masks: bb.Masks, **options: Any) -> tuple[Callable[..., Any], int]:
        written = bb.to_onnx(network, masks, example, folder / "network.onnx", **options)
        return session((folder / "network.onnx").read_bytes(), torch.get_num_threads()), written.bytes

    dense, shrunk = model.eval(), deepcopy(small.module).eval()
    return {
        "dense, PyTorch": (dense, dense_bytes(dense)),
        "dense, onnxruntime": in_onnxruntime(dense, {}),
        "shrunk, PyTorch": (shrunk, dense_bytes(shrunk)),
        "shrunk, onnxruntime": in_onnxruntime(shrunk, small.masks),
        "shrunk, int8": in_onnxruntime(shrunk, small.masks, int8=[torch.randn(32, *example.shape[1:])]),
    }


def step(network: nn.Module, masks: bb.Masks) -> Callable[[Tensor], None]:
    """Return a training step: forward, backward, SGD, masks."""
    network = deepcopy(network).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4, fused=True)
    if masks:
        bb.hold(network, masks, optimizer)

    def learn(images: Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(network(images), torch.zeros(len(images), dtype=torch.long)).backward()
        optimizer.step()

    return learn


def measured(calls: dict[str, Callable[..., Any]], images: Tensor, inference: bool = True) -> dict[str, float]:
    """Return the median seconds of each call. They take turns, so that other load on the machine affects all alike."""
    threads, times = torch.get_num_threads(), {name: [] for name in calls}
    with torch.inference_mode(inference):
        timers = {
            name: Timer("call(images)", globals={"call": call, "images": images}, num_threads=threads)
            for name, call in calls.items()
        }
        for timer in timers.values():
            timer.timeit(1)  # the first call prepares
        for _ in range(TURNS):
            for name, timer in timers.items():
                time.sleep(PAUSE)
                times[name].append(timer.blocked_autorange(min_run_time=SECONDS).median)
    return {name: statistics.median(values) for name, values in times.items()}


def table(title: str, seconds: dict[str, float], sizes: dict[str, int | None]) -> Iterator[str]:
    """Yield a Markdown table; the ratios are to the first row."""
    yield f"| {title} | ms | times as fast | MB |"
    yield "| --- | ---: | ---: | ---: |"
    first = next(iter(seconds.values()))
    for name, value in seconds.items():
        size = sizes.get(name)
        yield f"| {name} | {1e3 * value:.3g} | {first / value:.2f} | {f'{size / 1e6:.2f}' if size else ''} |"
    yield ""


def main(
    source: Annotated[Path, typer.Argument(help="Mask file, or folder of a finished run.")],
    batch_size: Annotated[
        list[int] | None, typer.Option(min=1, show_default="1", help="Batch size; repeat it.")
    ] = None,
    train_batch_size: Annotated[int, typer.Option(min=0, help="Batch size of the training step; 0: none.")] = 0,
) -> None:
    """Print one table for each batch size."""
    experiment, model, masks = loading.load(source)
    example = loading.example(experiment, source)
    small = bb.shrink(model, masks, example)
    flops = [bb.account(network, {}, example[:1]).flops_dense or 0 for network in (model, small.module)]
    before, after = small.plan.parameters
    left = f"{after:,} of {before:,} parameters and {flops[1] / max(flops[0], 1):.1%} of the FLOPs are left"
    print(f"{machine('cpu')}; {left} after shrinking.\n")
    with TemporaryDirectory() as folder:
        variants = networks(model, small, example, Path(folder))
    calls, sizes = ({name: pair[index] for name, pair in variants.items()} for index in (0, 1))
    for size in batch_size or [1]:
        images = torch.randn(size, *example.shape[1:])
        print("\n".join(table(f"inference, batch {size}", measured(calls, images), sizes)))
    if train_batch_size:
        wide = bb.shrink(model, masks, example, multiple_of=8)  # as `run --shrink` trains
        steps = {"dense": step(model, {}), "masked": step(model, masks), "shrunk": step(wide.module, wide.masks)}
        seconds = measured(steps, torch.randn(train_batch_size, *example.shape[1:]), inference=False)
        print("\n".join(table(f"training step, batch {train_batch_size}", seconds, {})))


if __name__ == "__main__":
    start(main)
