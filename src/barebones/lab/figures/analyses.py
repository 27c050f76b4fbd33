"""Functions that analyses share: networks at their initial weights, their masks, and rows about their layers."""

from collections.abc import Iterator, Mapping
from itertools import islice, product
from typing import Any

import torch

from ...data import Batch
from ..experiment.experiment import Experiment
from ..records.tables import Row
from ..run.network import Network
from ..run.network import pruned as pruned
from ..run.options import RunOptions

EVALUATION_SEED = 10_000  # masks are compared on batches of this seed: other batches of the same training images


def networks(settings: Mapping[str, Any], options: RunOptions) -> Iterator[Network]:
    """Yield each network at its initial weights, as a run has it: all `pairs` of data and model, with all `seeds`."""
    for (data, model), seed in product(settings["pairs"], settings["seeds"]):
        experiment = Experiment(model, data, seed=seed).resolved(options.device)
        yield Network(experiment, options, torch.device(options.device))


def experiment_on(network: Network, method: str, sparsity: float, **changes: Any) -> Experiment:
    """Return the experiment of a run with this network; an analysis only prunes, and does not train."""
    base = network.experiment
    return Experiment(base.model, base.data, method, sparsity, base.seed, **changes).resolved(network.device.type)


def evaluation_batches(network: Network, count: int) -> list[Batch]:
    """Return the batches on which all masks of a network are compared."""
    size, seed = network.experiment.plan().batch_size, network.experiment.seed
    return list(islice(network.data.train.epoch(size, EVALUATION_SEED, seed, shuffle=True, augment=True), count))


def identified(experiment: Experiment) -> Row:
    """Return the columns with which every row of an analysis begins."""
    return {name: getattr(experiment, name) for name in ("data", "model", "method", "sparsity", "seed")}


def layer_rows(sizes: Mapping[str, int], kept: Mapping[str, int]) -> Iterator[Row]:
    """Yield a row for each layer, from the input to the output.

    >>> list(layer_rows({"conv.weight": 8}, {"conv.weight": 2}))
    [{'layer': 1, 'name': 'conv', 'total': 8, 'kept': 2, 'density': 0.25}]
    """
    for number, (name, size) in enumerate(sizes.items(), 1):
        about = {"layer": number, "name": name.removesuffix(".weight")}
        yield about | {"total": size, "kept": kept[name], "density": kept[name] / size}
