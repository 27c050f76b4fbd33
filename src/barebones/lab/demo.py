"""The demo: two small networks pruned to the bone by several methods, trained on digits, compared in a table."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from itertools import product
from statistics import fmean, stdev
from time import perf_counter

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn

from ..accounting import account
from ..data.digits import Split, digits
from ..holding import hold
from ..models.init import initialize
from ..models.small import small_resnet, small_vgg
from ..pruning.prune import prune
from ..scope import prunable

NETWORKS: dict[str, tuple[Callable[[], nn.Module], float]] = {  # how to make it, and the sparsity for every method
    "VGG": (small_vgg, 0.992),
    "ResNet": (small_resnet, 0.985),
}
PROGRESSIVE = ("iter-snip", "force", "hybrid")
METHODS = ("dense", "random", "snip", *PROGRESSIVE)
NAMES = {"snip": "SNIP", "iter-snip": "Iter SNIP", "force": "FORCE"}  # the others are called what they are
EPOCHS = 8
SCORING_BATCH = 128
BATCH, LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 64, 0.2, 0.9, 5e-4
CHANCE = 10.0  # %, of ten classes
LEARNT = 50.0  # %, from which on a network counts as one that learns


@dataclass(frozen=True)
class Case:
    """One network, pruned and trained once."""

    network: str
    method: str
    seed: int
    epochs: int = EPOCHS
    rounds: int | None = None  # of the progressive methods; None is their own number

    def __str__(self) -> str:
        return f"{self.network}, {NAMES.get(self.method, self.method)}, seed {self.seed}"


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    accuracy: float  # %, on the test images after the last epoch
    sparsity: float  # %, effective
    collapsed: bool  # no signal passes from input to output
    pruning: float  # seconds
    training: float


def run(
    console: Console,
    seeds: int = 3,
    epochs: int | None = None,
    rounds: int | None = None,
    networks: Sequence[str] = tuple(NETWORKS),
    workers: int | None = None,
) -> dict[Case, Outcome]:
    """Prune and train every network with every method and seed; print a table for each network and what it shows.

    The cases are spread over `workers` processes of one thread each, by default one per processor; 1 runs them in
    this process. The numbers depend on the seeds alone.
    """
    data = digits()  # first, so that a missing scikit-learn is said at once
    sparsities = " and ".join(f"{100 * NETWORKS[name][1]:g} % of the {name}'s weights" for name in networks)
    console.print(
        f"{len(data.train_labels):,} handwritten digits to train with, {len(data.test_labels)} to test with. "
        f"Before training, each method removes {sparsities}.",
        highlight=False,
    )
    cases = [
        Case(network, method, seed, epochs or EPOCHS, rounds if method in PROGRESSIVE else None)
        for network, seed, method in product(networks, range(seeds), METHODS)
    ]
    outcomes: dict[Case, Outcome] = {}
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("starting", total=len(cases))
        for now, finished in measured(cases, workers or min(processors(), len(cases))):
            outcomes |= finished
            progress.update(bar, completed=len(outcomes), description="; ".join(map(str, now)))
    for network in networks:
        console.print(table(network, outcomes))
    console.print(" ".join(sentences(outcomes)), highlight=False)
    return outcomes


def measured(cases: Sequence[Case], workers: int) -> Iterator[tuple[Sequence[Case], dict[Case, Outcome]]]:
    """Measure the cases; each time something changes, the cases that run now and those that have ended."""
    if workers == 1:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for case in cases:
                yield [case], {}
                yield [case], {case: measure(case)}
        finally:
            torch.set_num_threads(threads)
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=alone)
    try:
        running = {pool.submit(measure, case): case for case in cases}
        yield list(running.values())[:workers], {}
        while running:
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            outcomes = {running.pop(future): future.result() for future in ended}
            yield list(running.values())[:workers], outcomes  # they are taken in order
    except BaseException:  # stopped: nobody waits for what the workers have begun
        for worker in multiprocessing.active_children():
            worker.terminate()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def alone() -> None:
    """Set up a worker: small networks gain nothing from a second thread, and Ctrl-C is for the one who asked."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def processors() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def measure(case: Case) -> Outcome:
    """Initialize, prune, train, test."""
    data = loaded()
    make, sparsity = NETWORKS[case.network]
    generator = torch.Generator().manual_seed(case.seed)
    model = initialize(make(), generator=generator).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    began = perf_counter()
    order = torch.randperm(len(data.train_labels), generator=generator)
    scoring = [(data.train_images[rows], data.train_labels[rows]) for rows in whole(order, SCORING_BATCH)]
    dense = case.method == "dense"
    result = prune(
        model,
        scoring,
        sparsity=0.0 if dense else sparsity,
        method="random" if dense else case.method,
        rounds=case.rounds,
        on_collapse="ignore",
        seed=case.seed,
    )
    pruning = perf_counter() - began

    began = perf_counter()
    optimizer = torch.optim.SGD(
        model.parameters(), LEARNING_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, fused=True
    )
    steps = case.epochs * (len(data.train_labels) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    hold(model, result.masks, optimizer)
    model.train()
    for _ in range(case.epochs):
        order = torch.randperm(len(data.train_labels), generator=generator)
        for rows in whole(order, BATCH):
            loss = F.cross_entropy(model(data.train_images[rows]), data.train_labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    training = perf_counter() - began

    model.eval()
    with torch.no_grad():
        correct = model(data.test_images).argmax(1) == data.test_labels
    effective = account(model, result.masks, data.test_images[:1]).effective_sparsity
    assert effective is not None
    return Outcome(100 * correct.float().mean().item(), 100 * effective, bool(result.collapsed), pruning, training)


@cache
def loaded() -> Split:
    """The digits, read once in each process."""
    return digits()


def whole(order: Tensor, size: int) -> tuple[Tensor, ...]:
    """The rows in batches of equal size; those left over wait for another order."""
    return order[: len(order) // size * size].split(size)


def of(outcomes: dict[Case, Outcome], network: str, method: str) -> list[Outcome]:
    """One outcome per seed."""
    return [outcome for case, outcome in outcomes.items() if (case.network, case.method) == (network, method)]


def table(network: str, outcomes: dict[Case, Outcome]) -> Table:
    """What came of each method, over the seeds."""
    make, sparsity = NETWORKS[network]
    weights = sum(p.numel() for p in prunable(make()).values())
    seeds = len(of(outcomes, network, METHODS[0]))
    over = f"mean ± standard deviation of {seeds} seeds" if seeds > 1 else "one seed"
    shown = Table(title=f"{network}, {weights:,} weights, {100 * sparsity:g} % removed; {over}", title_justify="left")
    shown.add_column("method")
    for name in ("accuracy %", "effective\nsparsity %", "collapsed", "seconds to\nprune", "seconds to\ntrain"):
        shown.add_column(name, justify="right")
    for method in METHODS:
        rows = of(outcomes, network, method)
        accuracies = [row.accuracy for row in rows]
        shown.add_row(
            NAMES.get(method, method),
            f"{fmean(accuracies):.1f}" + (f" ± {stdev(accuracies):4.1f}" if seeds > 1 else ""),
            f"{fmean(row.sparsity for row in rows):.1f}",
            f"{sum(row.collapsed for row in rows)} of {seeds}",
            f"{fmean(row.pruning for row in rows):.2f}" if method != "dense" else "",
            f"{fmean(row.training for row in rows):.2f}",
            style="dim" if method == "dense" else "bold" if method in PROGRESSIVE else None,
        )
    return shown


def sentences(outcomes: dict[Case, Outcome]) -> list[str]:
    """What the numbers say: of each network, and whether it is what the paper says."""
    said: list[str] = []
    shown: list[str] = []
    not_shown: list[str] = []
    for network in dict.fromkeys(case.network for case in outcomes):
        mean = {method: fmean(row.accuracy for row in of(outcomes, network, method)) for method in METHODS}
        snip, random = mean["snip"], mean["random"]
        at_chance, below = snip < 2 * CHANCE, snip < random
        where = " and ".join(["near chance"] * at_chance + ["below random pruning"] * below) or "above random pruning"
        progressive = ", ".join(f"{NAMES.get(method, method)} {mean[method]:.0f} %" for method in PROGRESSIVE)
        said.append(
            f"{network}: one-shot SNIP ends at {snip:.0f} %, {where} (random pruning: {random:.0f} %); pruned "
            f"progressively, the same network reaches {progressive} (dense: {mean['dense']:.0f} %)."
        )
        learn = min(mean[method] for method in PROGRESSIVE) > max(LEARNT, random, snip)
        (shown if learn and (at_chance or below) else not_shown).append(network)
    if shown:
        said.append(
            f"So on the {listed(shown)} one-shot SNIP falls to chance or below random where every progressive method "
            "still learns, as the paper says."
        )
    if not_shown:
        said.append(
            f"On the {listed(not_shown)} it is not as the paper says: that SNIP falls to chance or below random where "
            "every progressive method still learns."
        )
    return said


def listed(names: Iterable[str]) -> str:
    """
    >>> listed(["VGG", "ResNet"])
    'VGG and the ResNet'
    """
    return " and the ".join(names)
