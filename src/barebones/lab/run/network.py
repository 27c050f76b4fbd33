"""An experiment's network at its initial weights, and its data."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from ...data import DATA, Data, Inputs, Normalization, TensorSplit
from ...data import load as load_data
from ...files.weights import dense_bytes
from ...imports import is_code, source_digest
from ...masks import Scores, size
from ...messages import shape_of, shortened
from ...models import build, initialize, wanted
from ...models.from_timm import Wanted
from ...pruning.channels import find_channels
from ...pruning.controls import reinitialized
from ...pruning.methods import METHODS
from ...pruning.probe import Probe
from ...pruning.prune import Pruned, count_kept, prune
from ...pruning.round import Round
from ...pruning.rounds import planned
from ...running import digest
from ...running.devices import check_here
from ...running.modes import restored
from ...running.precision import switched
from ...running.rng import forked
from ..experiment.experiment import DENSE, Experiment, method_named
from .options import RunOptions


class Network:
    """The experiment's data and its network at initial weights, both on the device.

    With `unread`, random images stand for a data set of the library that nobody is going to read.
    """

    def __init__(self, experiment: Experiment, options: RunOptions, device: torch.device, unread: bool = False) -> None:
        self.experiment, self.device = experiment, device
        check_here(str(device))
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)
        self.data = _unread(experiment, device) if unread else data_of(experiment, options)
        self.model = self.initial()
        self.digest = beginning(experiment, self.model, self.data.digest)
        self._check()
        dense_bytes(self.model)  # raises for a network whose weights cannot be saved

    def initial(self, reinitialize: str | None = None) -> nn.Module:
        """Build the network again, at the same initial weights; `reinitialize` is a scheme to draw prunable ones by."""
        experiment = self.experiment
        model = initial(experiment, self.data.inputs)
        if reinitialize is not None:
            model = reinitialized(model, experiment.seed, reinitialize)
        layout = torch.channels_last if self.device.type == "cuda" else torch.preserve_format
        return model.to(self.device, memory_format=layout)  # type: ignore[call-overload]

    def _check(self) -> None:
        """Check with two images that the network takes them and returns one output per class."""
        images, name = next(self.data.test.epoch(2))[0], self.experiment.model
        try:
            with torch.no_grad(), forked(self.device), restored(self.model):
                shape = tuple(self.model.eval()(images).shape)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a user's own network may raise anything
            reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), 'no reason given')}"
            raise ValueError(f"{name} does not take the images of {self.data.name} ({reason})") from error
        if shape != (len(images), self.data.classes):
            raise ValueError(
                f"{name} gives outputs of shape {shape} for {len(images)} images of {self.data.name}, "
                f"which has {self.data.classes} classes"
            )


def deterministic() -> AbstractContextManager[None]:
    """Make cuDNN choose the same algorithms each time, so that pruning gives the same masks, also when resumed."""
    cudnn = torch.backends.cudnn
    return switched([(cudnn, "benchmark", False), (cudnn, "deterministic", True)])


def pruned(
    network: Network,
    experiment: Experiment,
    options: RunOptions,
    on_round: Callable[[Round], None] | None = None,
    after: Round | None = None,
) -> Pruned:
    """Prune the network with the experiment's settings, and continue after the round `after` if there is one."""
    capture = options.captured and network.device.type == "cuda"
    return prune(
        **_scoring(network, experiment, options), sparsity=experiment.sparsity, method=experiment.pruning(),
        capture=capture, on_collapse="ignore", on_round=on_round, after=after,
    )  # fmt: skip


def scores(network: Network, experiment: Experiment, options: RunOptions, keep: int) -> Scores:
    """Return what the experiment's criterion says about the dense network, which is where the first round begins."""
    method = experiment.pruning()
    probe = Probe(**_scoring(network, experiment, options))
    with probe.at(None, 0, keep, method.batches_per_round):
        return method.criterion(probe)


def _scoring(network: Network, experiment: Experiment, options: RunOptions) -> dict[str, Any]:
    """Return the network that is scored, the batches, and the settings of scoring."""
    return {
        "model": network.initial(experiment.scoring_init) if experiment.scoring_init else network.model,
        "batches": network.data.train.scoring(experiment.plan().batch_size, experiment.seed),
        "loss": experiment.loss,
        "scope": experiment.scope,
        "bn": experiment.scoring_bn,
        "seed": experiment.seed,
        "precision": experiment.scoring_precision or "fp32",
        "micro_batch": options.micro_batch,
    }


def check_micro_batch(model: nn.Module, experiment: Experiment, options: RunOptions, until: str) -> None:
    """Raise a `ValueError` if a run would split batches that layers of the network need whole."""
    row = METHODS.get(experiment.method)  # none for a method of the user's own, which may read data
    scores_by_batch = experiment.scoring_bn == "batch" and (row is None or row.needs_data)
    splits = options.micro_batch is not None and options.micro_batch < (experiment.batch_size or 1)
    if not splits or (until == "prune" and not experiment.pretrain and not scores_by_batch):
        return
    if norms := [name for name, module in model.named_modules() if _needs_batch(module)]:
        raise ValueError(
            f"--micro-batch splits batches, but layers of {experiment.model} take statistics of whole batches "
            f"({shortened(norms)}); leave it out"
        )


def check_pruning(model: nn.Module, experiment: Experiment, example: Tensor | None = None) -> None:
    """Raise a `ValueError` if the settings of pruning do not fit the network; with an example, also its channels."""
    if experiment.method != DENSE and experiment.mask is None:
        probe, method = Probe(model, scope=experiment.scope, example=example), experiment.pruning()
        planned(probe, method, keep := count_kept(probe, method, experiment.sparsity))
        if example is not None and method.unit == "channel":
            find_channels(probe, method.target, keep / size(probe.parameters))


def check_each(experiments: Iterable[Experiment]) -> None:
    """Check several experiments like this, before any data is read; those with a user's own code check as they run."""
    network = lru_cache(maxsize=2)(built)
    for experiment in experiments:
        if (inputs := known_inputs(experiment)) is not None and not is_code(experiment.model):
            try:
                check_pruning(network(experiment.model, inputs), experiment)
            except ValueError as error:
                raise ValueError(f"{experiment.folder}: {error}") from None


def _needs_batch(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) or (isinstance(module, _NormBase) and module.track_running_stats)


def initial(experiment: Experiment, inputs: Inputs) -> nn.Module:
    """Build the experiment's network for such inputs at its initial weights, on the CPU; these depend on the seed."""
    with forked(torch.device("cpu"), seed=digest.text(experiment.seed, "build")):
        model = built(experiment.model, inputs)
    generator = torch.Generator("cpu").manual_seed(digest.text(experiment.seed, "init"))
    initialize(model, experiment.init, generator, norm_scale=experiment.norm_scale or "ones")
    return model


def built(name: str, inputs: Inputs) -> nn.Module:
    if not inputs.size and not is_code(name):
        shape = shape_of(inputs.shape)
        raise ValueError(
            f"{name} takes images, but the inputs have the shape {shape}; name a network of your own, file.py:factory"
        )
    return build(name, inputs.classes, inputs.size, inputs.channels)


def known_inputs(experiment: Experiment) -> Inputs | None:
    """Return what the network has to take, if it is known without loading the data: for a data set of the library."""
    if experiment.data not in DATA:
        return None
    inputs, wish = DATA[experiment.data].inputs, wanted(experiment.model)
    return replace(inputs, shape=(inputs.channels, wish.size, wish.size)) if wish else inputs


def resized(experiment: Experiment) -> str:
    """Say that the images of a data set of the library are resized for the network; an empty string if they are not."""
    name, inputs = experiment.data, known_inputs(experiment)
    if inputs is None or inputs == DATA[name].inputs:
        return ""
    before, after = (" x ".join(map(str, each.shape[1:])) for each in (DATA[name].inputs, inputs))
    return f"The images of {name}, {before}, are resized to {after} for {experiment.model}."


def beginning(experiment: Experiment, model: nn.Module, data: str) -> str:
    """Return what a run begins with: digests of the initial weights, and of data and a method of the user's own."""
    method = ""
    if is_code(experiment.method) and experiment.mask is None:
        method = source_digest(experiment.method)
        method_named(experiment.method)  # so that the folder of the run tells how to show it
    return f"{digest.hexadecimal(model.parameters())}+{data}+{method}".rstrip("+")


def _unread(experiment: Experiment, device: torch.device) -> Data:
    inputs = known_inputs(experiment)
    assert inputs is not None
    images = inputs.example(experiment.plan().batch_size)
    plain = Normalization((), (), device=device, channels_last=device.type == "cuda")
    split = TensorSplit(images, torch.zeros(len(images)), plain, pad=0, flip=False)
    return Data(experiment.data, inputs.classes, inputs.shape, split, None, split)


def data_of(experiment: Experiment, options: RunOptions) -> Data:
    """Load the experiment's data in the form that its network wants, once in a process however many runs use it."""
    return cached_data(experiment.data, options.data_root, options.device, options.download, wanted(experiment.model))


@lru_cache(maxsize=2)
def cached_data(name: str, root: Path | None, device: str, download: bool, wish: Wanted | None) -> Data:
    form = wish._asdict() if wish else {}
    return load_data(name, root, device, download, channels_last=device.startswith("cuda"), **form)
