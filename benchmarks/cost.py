"""Benchmark of the time to a mask: the paper's table of costs, each case in a process of its own, cold and warm."""

import json
from collections.abc import Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from measuring import machine, seconds, start
from rich.console import Console
from rich.table import Table

from barebones.lab.experiment.experiment import Experiment
from barebones.lab.experiment.styles import look
from barebones.lab.run.network import Network, pruned
from barebones.lab.run.options import RunOptions
from barebones.paper.numbers import ACCURACIES, COST

Case = dict[str, Any]


def cases(small: bool) -> Iterator[Case]:
    """Yield the paper's cases, and FORCE and Iter SNIP on VGG-19; with `small`, two short ones that try the script."""
    if small:
        small_vgg = {"data": "digits", "model": "small-vgg", "sparsity": 0.9, "scoring_precision": "fp32"}
        yield small_vgg | {"method": "snip"}
        yield small_vgg | {"method": "force", "rounds": 2}
        return
    listed = [row for row in ACCURACIES if row.where == COST]
    for model, precision in (("resnet50", "fp32"), ("resnet50", "bf16"), ("vgg19", "fp32"), ("vgg19", "bf16")):
        for row in listed:
            iterative = row.method in ("force", "iter-snip")
            if (model, precision) == ("resnet50", "fp32") or (iterative and row.rounds == 300):
                sizes = {"rounds": row.rounds} if iterative else {"batches_per_round": row.batches_per_round}
                case = {"data": "cifar10", "model": model, "sparsity": 0.995, "scoring_precision": precision}
                yield case | {"method": row.method} | sizes


def measure(case: Case, device: str, data_root: Path | None) -> Case:
    """Prune twice, and return the case with the seconds of both; GRASP over many batches, which takes minutes, once."""
    torch.backends.cudnn.benchmark = True  # cuDNN takes its fastest algorithms
    options = RunOptions(device=device, data_root=data_root)
    experiment = Experiment(**case).resolved(device)
    work = partial(pruned, Network(experiment, options, torch.device(device)), experiment, options)
    times = [round(seconds(work, device), 3) for _ in range(1 if case["method"] == "grasp-mb" else 2)]
    return case | dict(zip(("cold", "warm"), times, strict=False))


def paper_seconds(case: Case) -> float | None:
    """Return what the paper says of a case; its GPU is a Tesla K40m."""
    if (case["model"], case["scoring_precision"]) != ("resnet50", "fp32"):
        return None
    sizes = (case.get("rounds", 1), case.get("batches_per_round", 1))
    return next(
        row.seconds for row in ACCURACIES if (row.where, row.method) == (COST, case["method"])
        and (row.rounds, row.batches_per_round) == sizes
    )  # fmt: skip


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cuda",
    data_root: Annotated[Path | None, typer.Option(help="folder with CIFAR-10")] = None,
    small: Annotated[bool, typer.Option("--small", help="two short cases on digits, to try the script")] = False,
) -> None:
    """Measure each case in a process of its own, one after the other; print a line of JSON for each, then a table."""
    table = Table("network", "method", "rounds", "batches", "scores in", "cold, s", "warm, s", "K40m (paper), s")
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        each = partial(measure, device=device, data_root=data_root)
        for found in pool.imap(each, cases(small)):
            print(json.dumps(found), flush=True)
            paper = paper_seconds(found)
            table.add_row(
                found["model"],
                look(found["method"]).label,
                str(found.get("rounds", 1)),
                str(found.get("batches_per_round", 1)),
                found["scoring_precision"],
                *(f"{found[when]:.2f}" if when in found else "" for when in ("cold", "warm")),
                "" if paper is None else f"{paper:.0f}",
            )
    Console(width=120).print(table)
    print(f"{machine(device)}; cold is the first pruning of a process, warm the second")


if __name__ == "__main__":
    start(main)
