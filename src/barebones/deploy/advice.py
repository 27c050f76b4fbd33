"""The advisor: what pruning wins on this machine, against the dense network in the same run."""

from __future__ import annotations

import ctypes
import gc
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from ..accounting import account
from ..gpu.graphs import Captured
from ..holding import hold
from ..masks import Masks
from ..running.precision import autocast, tf32
from .export import session, to_onnx
from .fold import difference, folded, tolerance
from .shrink import Shrunk, shrink
from .sparse import choices, sparsify_for_cpu

PAYS = 1.1  # times as fast as dense, from which on it is worth a word
SECONDS = 5.0  # that measuring one batch size takes, at least
TURN, CALLS, PAUSE = 0.1, 10, 0.02  # seconds and calls of one turn at most, and seconds before it
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
Forward = Callable[[Tensor], Any]


@dataclass
class Way:
    """One way to run the network: what it is, and what was measured, by batch size."""

    name: str
    forward: Forward | None  # None where it cannot run here
    weights: int = 0  # bytes
    note: str = ""
    lean: Forward | None = None  # the same without memory that it sets aside for later, to measure memory by
    seconds: dict[int, float] = field(default_factory=dict)
    memory: dict[int, int | None] = field(default_factory=dict)  # bytes above what the process held before


def run(
    console: Console,
    model: nn.Module,
    masks: Masks,
    example: Tensor,
    *,
    batches: list[int],
    train_batch: int,
    repeats: int,
    device: str,
    precision: str,
) -> None:
    """Print the tables and what follows from them, for a network with its weights dense; it stays as it is."""
    small = shrink(model, masks, example)
    where = torch.cuda.get_device_name() if device != "cpu" else f"{torch.get_num_threads()} threads"
    whole, left = account(model, masks, example[:1]), account(small.module, small.masks, example[:1])
    flops = whole.flops_dense or 1
    console.print(
        f"{where}, torch {torch.__version__}. Of {whole.total:,} prunable weights {whole.sparsity:.2%} are removed. "
        f"Shrinking leaves {(left.flops_dense or 0) / flops:.1%} of the dense FLOPs; "
        f"those of kept weights on a path are {(whole.flops_effective or 0) / flops:.1%}.",
        highlight=False,
        soft_wrap=True,
    )
    if whole.collapsed:
        cut = ", ".join(whole.collapsed[:5])
        console.print(f"No signal passes from input to output ({cut}): it is fast, and it knows nothing.", markup=False)
    if device == "cpu":
        with console.status("making the networks") as status:
            ways = _ways(model, small, example, status.update)
        for batch in batches:
            with console.status(f"measuring batch {batch}"):
                _measure(ways, example, batch, repeats)
        with console.status("measuring memory"):
            for way in ways:
                for batch in batches:
                    way.memory[batch] = _peak(way, _images(example, batch))
        for batch in batches:
            console.print(_table(ways, batch))
        how = "" if small.plan.layout else ", channels last in memory"
        console.print(f"Prepared: batch-norm folded{how}.", highlight=False)
        console.print("\n".join(_advice(ways, batches)), highlight=False, soft_wrap=True, markup=False)
    if train_batch:
        with console.status("measuring the training step"):
            table = _training(model, masks, example, train_batch, repeats, torch.device(device), precision)
        console.print(table)


def _ways(model: nn.Module, small: Shrunk, example: Tensor, say: Callable[[str], None]) -> list[Way]:
    """Every way to run it, dense first; each that claims to be the masked network is compared with it."""
    dense, masked, shrunk = (deepcopy(network).eval() for network in (model, small.expand(), small.module))
    ways = [
        Way("dense PyTorch", dense, _bytes(dense)),
        Way("dense, prepared", _prepared(dense, example), _bytes(dense)),
        Way("masked", masked, _bytes(masked)),
        Way("shrunk", shrunk, _bytes(shrunk)),
        Way("shrunk, prepared", _prepared(shrunk, example), _bytes(shrunk)),
    ]
    say("measuring which layers are faster sparse")
    sparse = sparsify_for_cpu(shrunk, small.masks, example)
    ways.append(Way("shrunk + sparse", sparse, _bytes(sparse)))
    say("exporting to onnxruntime")
    ways += [_onnx("dense onnxruntime", dense, example), _onnx("shrunk onnxruntime", shrunk, example)]
    wanted = _outputs(masked, example)
    for way in ways:
        if way.forward is not None and not way.name.startswith("dense"):
            gap = difference(wanted, _outputs(way.forward, example))
            if gap > tolerance(masked):
                raise ValueError(f"{way.name} computes something else: outputs differ by {gap:.2g} of the largest")
    return ways


def _prepared(network: nn.Module, example: Tensor) -> Forward:
    """As one would for inference: batch-norm folded and, for images where it runs so, channels last in memory."""
    ready = folded(network, example)
    if example.dim() != 4:
        return ready
    last: nn.Module = deepcopy(ready).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    try:
        _outputs(last, example.to(memory_format=torch.channels_last))
    except RuntimeError:  # a view of pixels and channels, say
        return ready
    return lambda images: last(images.to(memory_format=torch.channels_last))


def _onnx(name: str, network: nn.Module, example: Tensor) -> Way:
    """The network in onnxruntime, with as many threads as torch has."""
    if absent := [p for p in ("onnx", "onnxscript", "onnxruntime") if find_spec(p) is None]:
        return Way(name, None, 0, f"Without onnxruntime: {absent[0]} is not here; pip install 'barebones[export]'")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        to_onnx(network, {}, example, path)
        blob = path.read_bytes()
    threads = torch.get_num_threads()
    return Way(name, session(blob, threads), len(blob), lean=session(blob, threads, arena=False))


def _measure(ways: list[Way], example: Tensor, batch: int, repeats: int) -> None:
    """All ways in turns, so that they share what else the machine does; the median counts.

    Threads of the way before may still spin for work: each turn begins with a pause and a call that does not count.
    """
    images, able = _images(example, batch), [way for way in ways if way.forward is not None]
    times: dict[str, list[float]] = {way.name: [] for way in able}
    with torch.inference_mode():
        for way in able:
            _timed(way, images)
        began = perf_counter()
        while len(times[able[0].name]) < repeats or perf_counter() - began < SECONDS:
            for way in able:
                sleep(PAUSE)
                first = _timed(way, images)
                turn = [_timed(way, images) for _ in range(max(1, min(CALLS, int(TURN / first))))]
                times[way.name].append(statistics.median(turn))
    for way in able:
        way.seconds[batch] = statistics.median(times[way.name])


def _timed(way: Way, images: Tensor) -> float:
    assert way.forward is not None
    began = perf_counter()
    way.forward(images)
    return perf_counter() - began


def _peak(way: Way, images: Tensor) -> int | None:
    """Bytes that a forward pass takes beyond what was held before; None where the system does not tell."""
    reset, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    forward = way.lean or way.forward
    if forward is None or not status.exists():
        return None
    gc.collect()
    with _given_back(), torch.inference_mode():
        try:
            reset.write_text("5")  # Linux: the peak begins anew
        except OSError:
            return None
        before = _told(status, "VmRSS")
        forward(images)
        return max(0, _told(status, "VmHWM") - before)


def _told(status: Path, what: str) -> int:
    return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith(what))


@contextmanager
def _given_back() -> Iterator[None]:
    """Large blocks come from the system and go back to it at once, so that the peak is what is in use."""
    try:
        libc = ctypes.CDLL("libc.so.6")
        trim, option = libc.malloc_trim, libc.mallopt
    except (OSError, AttributeError):  # not glibc
        yield
        return
    option(M_MMAP_THRESHOLD, 65536)
    option(M_TRIM_THRESHOLD, 0)
    trim(0)
    try:
        yield
    finally:
        option(M_MMAP_THRESHOLD, 32 * 2**20)
        option(M_TRIM_THRESHOLD, 64 * 2**20)


def _table(ways: list[Way], batch: int) -> Table:
    dense = ways[0].seconds[batch]
    table = Table(title=f"inference, float32, batch {batch}", title_justify="left")
    table.add_column("network")
    for column in ("ms", "× dense", "memory, MB", "weights, MB"):
        table.add_column(column, justify="right")
    for way in ways:
        if way.forward is None:
            table.add_row(way.name)
            continue
        held = way.memory.get(batch)
        table.add_row(
            way.name,
            f"{1e3 * way.seconds[batch]:.2f}",
            f"{dense / way.seconds[batch]:.2f}",
            "" if held is None else f"{held / 1e6:.1f}",
            f"{way.weights / 1e6:.2f}",
        )
    return table


def _advice(ways: list[Way], batches: list[int]) -> Iterator[str]:
    """What follows from the table, plainly."""
    dense = [way for way in ways if way.name.startswith("dense") and way.forward is not None]
    pruned = [way for way in ways if not way.name.startswith("dense") and way.forward is not None]
    for batch in batches:
        rival, best = (min(ways, key=lambda way: way.seconds[batch]) for ways in (dense, pruned))
        win = rival.seconds[batch] / best.seconds[batch]
        times = dense[0].seconds[batch] / best.seconds[batch]
        if win >= PAYS:
            yield (
                f"Batch {batch}: {best.name} is the fastest, {times:.1f} times dense PyTorch"
                + (f" and {win:.1f} times the fastest dense way ({rival.name})." if rival is not dense[0] else ".")
            )
        else:
            yield (
                f"Batch {batch}: pruning does not pay here. {best.name}, the fastest pruned way, runs at "
                f"{win:.2f} times the speed of {rival.name}."
            )
    yield from dict.fromkeys(way.note for way in ways if way.note)
    sparse = next(way for way in ways if way.name == "shrunk + sparse")
    assert isinstance(sparse.forward, nn.Module)
    for batch in batches:
        chosen = [choice for choice in choices(sparse.forward) if choice.shape[0] == batch]
        count = sum(choice.chosen.startswith("sparse") for choice in chosen)
        why = next((choice.reason for choice in chosen if choice.reason), "")
        yield f"Batch {batch}: {count} of {len(chosen)} layers are faster sparse here." + (f" ({why})" if why else "")


def _training(
    model: nn.Module,
    masks: Masks,
    example: Tensor,
    batch: int,
    repeats: int,
    device: torch.device,
    precision: str,
) -> Table:
    """The step of SGD (forward, backward, update, masks) of the dense, the masked and the shrunk network in turns."""
    small, wide = shrink(model, masks, example), shrink(model, masks, example, multiple_of=8)
    step = partial(_step, example=example, batch=batch, device=device, precision=precision)
    lasts = example.dim() == 4 and not small.plan.layout
    sides = {}
    for name, held in {"dense": None, "masked": masks}.items():
        sides[name] = step(model, held)
        if lasts:
            sides[f"{name}, channels last"] = step(model, held, layout=torch.channels_last)
    sides["shrunk"] = step(small.module, small.masks, layout=None)
    sides["shrunk to multiples of 8" + ", channels last" * lasts] = step(wide.module, wide.masks, layout=None)
    count = 20 if device.type == "cuda" else 1
    times: dict[str, list[float]] = {name: [] for name in sides}
    for learn in sides.values():
        for _ in range(10 if device.type == "cuda" else 1):
            learn()
    for _ in range(repeats):
        for name, learn in sides.items():
            _wait(device)
            began = perf_counter()
            for _ in range(count):
                learn()
            _wait(device)
            times[name].append((perf_counter() - began) / count)
    how = ", CUDA graph" if device.type == "cuda" else ""
    table = Table(title=f"training step, batch {batch}, {precision}{how}", title_justify="left")
    for column in ("network", "ms", "× dense"):
        table.add_column(column, justify="left" if column == "network" else "right")
    middle = {name: statistics.median(own) for name, own in times.items()}
    for name, seconds in middle.items():
        table.add_row(name, f"{1e3 * seconds:.2f}", f"{middle['dense'] / seconds:.2f}")
    return table


def _step(
    model: nn.Module,
    masks: Masks | None,
    *,
    example: Tensor,
    batch: int,
    device: torch.device,
    precision: str,
    layout: torch.memory_format | None = torch.contiguous_format,
) -> Callable[[], None]:
    """A step of a copy of the model, with the weights and images in this order in memory; None: as they are."""
    network: nn.Module = deepcopy(model).train().to(device, memory_format=layout)  # type: ignore[call-overload]
    images = _images(example, batch).to(device, memory_format=layout or torch.preserve_format)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4, fused=True)
    if masks:
        hold(network, {name: mask.to(device) for name, mask in masks.items()}, optimizer)
    with torch.no_grad():
        classes = network(images).shape[1]
    labels = torch.arange(batch, device=device) % classes

    def learn(images: Tensor, labels: Tensor) -> None:
        with tf32(device, precision != "fp32"):
            with autocast(precision, device):
                loss = F.cross_entropy(network(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    call = Captured(learn) if device.type == "cuda" else learn
    return lambda: call(images, labels)


def _images(example: Tensor, batch: int) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(batch)
    return torch.randn(batch, *example.shape[1:], generator=generator)


def _outputs(forward: Forward, example: Tensor) -> Any:
    with torch.no_grad():
        return forward(example)


def _bytes(network: nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in (*network.parameters(), *network.buffers()))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
