"""Analyses: what masks are like before anything is trained. Each is a function from settings to rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, product
from typing import Any

import torch

from ...data import DATA, Batch
from ...lab.experiment import Experiment
from ...lab.network import Network
from ...lab.options import RunOptions
from ...models import build, parameter_table
from ...pruning.prune import Pruned, prune
from ...pruning.round import Record, Round
from ...pruning.saliency import saliency
from ...scope import prunable
from ..theory import gaps_by_step, tanh_network
from .sources import Row, Settings

EVALUATION = 10_000  # seed of the batches that masks are compared on: other batches of the same training images


def saliency_against_rounds(settings: Settings, place: RunOptions) -> Iterator[Row]:
    """S(theta, c) after T rounds for each T, sparsity and method, all on the same batches; T = 1 is SNIP for both."""
    for model, data, seed in subjects(settings):
        network = at_start(model, data, seed, place)
        batches = held_batches(network, settings["batches"])
        for sparsity, method, rounds in product(settings["sparsities"], settings["methods"], settings["rounds"]):
            asked = experiment(network, method, sparsity, rounds=rounds)
            found = pruned(network, asked, place)
            reached = saliency(network.model, found.masks, batches)
            yield about(asked) | {"rounds": rounds, "saliency": reached, "collapsed": bool(found.collapsed)}


def relative(rows: list[Row]) -> list[Row]:
    """With the saliency relative to that of T = 1 with the same weights; empty where that is 0."""
    key = ("data", "model", "method", "sparsity", "seed")
    first = {tuple(row[name] for name in key): row["saliency"] for row in rows if row["rounds"] == 1}
    starts = [first.get(tuple(row[name] for name in key)) for row in rows]
    return [
        row | {"relative": row["saliency"] / start if start else None} for row, start in zip(rows, starts, strict=True)
    ]


def saliency_both_ways(settings: Settings, place: RunOptions) -> Iterator[Row]:
    """Of FORCE's masks at many sparsities: the saliency of the pruned network, and of the sparsified one."""
    for model, data, seed in subjects(settings):
        network = at_start(model, data, seed, place)
        batches = held_batches(network, settings["batches"])
        for sparsity in settings["sparsities"]:
            asked = experiment(network, "force", sparsity, rounds=settings["rounds"])
            masks = pruned(network, asked, place).masks
            both = {name: saliency(network.model, masks, batches, over=over) for name, over in BOTH.items()}
            yield about(asked) | {"rounds": settings["rounds"], **both}


BOTH = {"pruned": "kept", "sparsified": "all"}


def layers(settings: Settings, place: RunOptions) -> Iterator[Row]:
    """What each method leaves of each layer."""
    for model, data, seed in subjects(settings):
        network = at_start(model, data, seed, place)
        for method in settings["methods"]:
            given = settings["given"].get(method, {})
            asked = experiment(network, method, settings["sparsity"], **given)
            found = pruned(network, asked, place)
            sizes = {name: mask.numel() for name, mask in found.masks.items()}
            kept = {name: int(mask.count_nonzero()) for name, mask in found.masks.items()}
            yield from (about(asked) | row for row in by_layer(sizes, kept))


def evolution(settings: Settings, place: RunOptions) -> Iterator[Row]:
    """What each round prunes and recovers, also as shares of all prunable weights."""
    for model, data, seed in subjects(settings):
        network = at_start(model, data, seed, place)
        total = sum(weight.numel() for weight in prunable(network.model).values())
        for method in settings["methods"]:
            asked = experiment(network, method, settings["sparsity"], rounds=settings["rounds"])
            for record in pruned(network, asked, place).rounds:
                counts = {name: getattr(record, name) for name in ("pruned", "recovered", "recovered_empty")}
                shares = {f"{name}_share": count / total for name, count in counts.items()}
                yield about(asked) | {"round": record.index + 1, "keep": record.keep} | counts | shares


def consistency(settings: Settings, place: RunOptions) -> Iterator[Row]:
    """Per layer what is left: of one-shot masks at many sparsities, and of every mask that an iteration passes."""
    for model, data, seed in subjects(settings):
        network = at_start(model, data, seed, place)
        sizes = {name: weight.numel() for name, weight in prunable(network.model).items()}
        total = sum(sizes.values())
        for method, density in product(settings["one_shot"], settings["densities"]):
            asked = experiment(network, method, 1 - density)
            found = pruned(network, asked, place)
            [only] = found.rounds
            where = {"kind": "one-shot", "round": 1, "density_all": only.keep / total, "cut": bool(found.collapsed)}
            yield from (about(asked) | where | row for row in by_layer(sizes, only.layers))
        if seed != settings["seeds"][0]:  # an iteration is shown for one initialization
            continue
        for method in settings["iterated"]:
            asked = experiment(network, method, 1 - settings["to"], rounds=settings["rounds"])
            steps, cut = _passed(network, asked, place)
            for number, step in enumerate(steps, 1):
                where = {"kind": "iterated", "round": number, "density_all": step.keep / total}
                where |= {"cut": cut if number == len(steps) else None}
                yield from (about(asked) | where | row for row in by_layer(sizes, step.layers))


def _passed(network: Network, asked: Experiment, place: RunOptions) -> tuple[list[Record], bool]:
    """The rounds to the end, or as far as anything finite can be computed; and whether no signal passes in the end."""
    seen: list[Round] = []

    def watch(step: Round) -> None:
        seen.append(step.without_masks())

    try:
        cut = bool(pruned(network, asked, place, watch).collapsed)
    except FloatingPointError:
        seen, cut = [step for step in seen if step.finite], True
    return [step.record for step in seen], cut


def parameters(settings: Settings, place: RunOptions) -> Iterator[Row]:
    """Percentages of weights per layer type, and the number of parameters; nothing is allocated for them."""
    for data, model in settings["pairs"]:
        with torch.device("meta"):
            own = parameter_table(build(model, *DATA[data].dimensions))
        yield {"source": "ours", "data": data, "model": model, **own._asdict()}


def gaps(settings: Settings, place: RunOptions) -> Iterator[Row]:
    """The local-optimality gap against the step, on many small tanh networks."""
    for keep in settings["keeps"]:
        networks = [tanh_network(settings["widths"], seed=seed) for seed in range(settings["networks"])]
        for row in gaps_by_step(networks, keep, swaps=settings["swaps"]):
            yield {"widths": "-".join(map(str, settings["widths"])), "keep": keep, **vars(row)}


def subjects(settings: Settings) -> Iterator[tuple[str, str, int]]:
    """Network, data set and seed of each."""
    for (data, model), seed in product(settings["pairs"], settings["seeds"]):
        yield model, data, seed


def at_start(model: str, data: str, seed: int, place: RunOptions) -> Network:
    """The network at its initial weights, as a run of the lab has it."""
    return Network(Experiment(model, data, seed=seed).resolved(place.device), place, torch.device(place.device))


def experiment(network: Network, method: str, sparsity: float, **given: Any) -> Experiment:
    """What a run of the lab would be asked; only the pruning of it is done."""
    base = network.experiment
    return Experiment(base.model, base.data, method, sparsity, base.seed, **given).resolved(network.device.type)


def pruned(
    network: Network, asked: Experiment, place: RunOptions, on_round: Callable[[Round], None] | None = None
) -> Pruned:
    """The masks that a run of the lab would find."""
    return prune(
        network.model,
        network.data.train.scoring(asked.plan().batch, asked.seed),
        asked.sparsity,
        asked.pruning(),
        asked.loss,
        precision=asked.scoring_precision or "fp32",
        capture=place.captured and network.device.type == "cuda",
        on_collapse="ignore",
        on_round=on_round,
        seed=asked.seed,
    )


def held_batches(network: Network, count: int) -> list[Batch]:
    """Batches to compare masks on, the same for all of them."""
    size = network.experiment.plan().batch
    every = network.data.train.epoch(size, EVALUATION, network.experiment.seed, shuffle=True, augment=True)
    return list(islice(every, count))


def about(asked: Experiment) -> Row:
    """What every row of an analysis says first."""
    return {name: getattr(asked, name) for name in ("data", "model", "method", "sparsity", "seed")}


def by_layer(sizes: dict[str, int], kept: dict[str, int]) -> Iterator[Row]:
    """A row for each layer, from the input on."""
    for number, (name, size) in enumerate(sizes.items(), 1):
        yield {
            "layer": number,
            "name": name.removesuffix(".weight"),
            "total": size,
            "kept": kept[name],
            "density": kept[name] / size,
        }
