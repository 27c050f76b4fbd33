"""The advisor: it measures all variants, prints the tables, and says plainly whether pruning pays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from ...accounting import account
from ...masks import Masks
from ...words import shortened
from ..shrink import shrink
from ..sparse import choices
from .measuring import measure_memory, measure_time
from .training import measure_steps
from .variants import Variant, all_variants, runs_channels_last

PAYS = 1.1  # a pruned variant pays if it is at least this many times as fast as the fastest dense one


def advise(
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
    """Measure and print what the masks gain on this machine; the model has its dense weights and does not change."""
    small = shrink(model, masks, example)
    where = torch.cuda.get_device_name() if device != "cpu" else f"{torch.get_num_threads()} threads"
    dense, shrunk = account(model, masks, example[:1]), account(small.module, small.masks, example[:1])
    flops = dense.flops_dense or 1
    console.print(
        f"{where}, torch {torch.__version__}. Of {dense.total:,} prunable weights {dense.sparsity:.2%} are removed. "
        f"Shrinking leaves {(shrunk.flops_dense or 0) / flops:.1%} of the dense FLOPs; "
        f"those of kept weights on a path are {(dense.flops_effective or 0) / flops:.1%}.",
        highlight=False,
        soft_wrap=True,
    )
    if dense.collapsed:
        console.print(
            f"No signal passes from input to output, because these layers are empty: {shortened(dense.collapsed)}. "
            "The network is fast, but its output does not depend on its input.",
            markup=False,
        )
    if device == "cpu":
        with console.status("preparing the networks") as status:
            variants, missing = all_variants(model, small, example, status.update)
        for batch in batches:
            with console.status(f"measuring batch {batch}"):
                measure_time(variants, example, batch, repeats)
        with console.status("measuring memory"):
            measure_memory(variants, example, batches)
        for batch in batches:
            columns = ("ms", "× dense", "memory, MB", "weights, MB")
            console.print(_table(f"inference, float32, batch {batch}", columns, _inference_rows(variants, batch)))
        layout = ", channels last in memory" if runs_channels_last(small, example) else ""
        console.print(f"Prepared: batch-norm folded{layout}.", highlight=False)
        sentences = [*verdict(variants, batches), *filter(None, [missing])]
        console.print("\n".join(sentences), highlight=False, soft_wrap=True, markup=False)
    if train_batch:
        with console.status("measuring the training step"):
            seconds = measure_steps(model, masks, example, train_batch, repeats, torch.device(device), precision)
        title = f"training step, batch {train_batch}, {precision}{', CUDA graph' if device != 'cpu' else ''}"
        rows = ([name, f"{1e3 * value:.2f}", f"{seconds['dense'] / value:.2f}"] for name, value in seconds.items())
        console.print(_table(title, ("ms", "× dense"), rows))


def verdict(variants: list[Variant], batches: list[int]) -> Iterator[str]:
    """Say what follows from the measurements: whether pruning pays, and how many layers are faster sparse."""
    dense, pruned = ([v for v in variants if v.pruned == is_pruned] for is_pruned in (False, True))
    for batch in batches:
        rival, best = (min(group, key=lambda variant: variant.seconds[batch]) for group in (dense, pruned))
        gain = rival.seconds[batch] / best.seconds[batch]
        over_torch = dense[0].seconds[batch] / best.seconds[batch]
        if gain >= PAYS:
            over_rival = f" and {gain:.1f} times as fast as {rival.name}, the fastest dense variant"
            yield (
                f"Batch {batch}: {best.name} is the fastest, {over_torch:.1f} times as fast as dense PyTorch"
                f"{over_rival if rival is not dense[0] else ''}."
            )
        else:
            yield (
                f"Batch {batch}: pruning does not pay here. {best.name}, the fastest pruned variant, runs at "
                f"{gain:.2f} times the speed of {rival.name}."
            )
    sparse = next(variant for variant in variants if variant.name == "shrunk + sparse")
    assert isinstance(sparse.forward, nn.Module)
    for batch in batches:
        layers = [choice for choice in choices(sparse.forward) if choice.shape[0] == batch]
        count = sum(choice.chosen.startswith("sparse") for choice in layers)
        reason = next((f" ({choice.reason})" for choice in layers if choice.reason), "")
        yield f"Batch {batch}: {count} of {len(layers)} layers are faster sparse here.{reason}"


def _inference_rows(variants: list[Variant], batch: int) -> Iterator[list[str]]:
    for variant in variants:
        memory, seconds = variant.memory.get(batch), variant.seconds[batch]
        speed = [f"{1e3 * seconds:.2f}", f"{variants[0].seconds[batch] / seconds:.2f}"]
        size = ["" if memory is None else f"{memory / 1e6:.1f}", f"{variant.weights / 1e6:.2f}"]
        yield [variant.name, *speed, *size]


def _table(title: str, columns: tuple[str, ...], rows: Iterable[Iterable[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("network")
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    return table
