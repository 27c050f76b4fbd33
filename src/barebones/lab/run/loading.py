"""Stored networks: the trained network of a finished run, or an experiment's initial one, without reading any data."""

from collections.abc import Collection
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ...data import DATA, Inputs
from ...files.masks import load_masks, masks_digest
from ...files.weights import load_weights
from ...imports import check_trusted
from ...masks import Masks
from ...messages import printable
from ...names import NONE, STATISTICS
from ...pruning.probe import Probe
from ...running import digest
from ..experiment.experiment import DENSE, FILE, FINDING, SETTLED, Experiment
from ..experiment.styles import remember
from .folder import EXPERIMENT, MASK, RESULT, WEIGHTS, check_initial, finished, load_mask, progress, reading, recorded
from .network import beginning, data_of, initial, known_inputs
from .options import RunOptions


def load(
    source: Path, model: str | None = None, data: str | None = None, trust: bool = False
) -> tuple[Experiment, nn.Module, Masks]:
    """Load the experiment, the network and the masks, on the CPU, of a run's folder or of a mask file.

    The network of a folder is the trained one, that of a mask file the initial one. Code is imported only if `model`
    names it, or with `trust`.
    """
    if not source.exists():
        raise ValueError(f"there is no file or folder {source}; name a run's folder or a mask file")
    if source.is_dir():
        return trained(source, model, data, trust)
    experiment = experiment_for_mask(source, {k: v for k, v in (("model", model), ("data", data)) if v}, trust)
    network = initial(experiment, inputs_of(experiment, source, [data], trust))
    return experiment, network, load_masks(source, network)


def experiment_for_mask(path: Path, changes: dict[str, Any], trust: bool = False) -> Experiment:
    """Return the experiment that trains the masks of a file: the one that found them, with these settings changed.

    Unless the file is trusted, its network must be one of `MODELS` or named in the changes.
    """
    inside = path.name == MASK and (path.parent / EXPERIMENT).exists()  # masks in a run's folder are those of the run
    with reading(path, recorded(path.parent)[1]) if inside else nullcontext():
        masks = load_masks(path)
    record = masks.about.get("experiment") or {}
    if not record and not {"model", "data"} <= changes.keys():
        raise ValueError(f"{path} does not name its network and data set; pass --model and --data")
    finder = Experiment.settings(record)
    if wrong := [name for name in sorted(SETTLED) if name in changes]:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in wrong)
        raise ValueError(f"the masks are found already, so {options} has no effect; leave it out")
    grouped = masks.about.get("pattern") or masks.about.get("unit") == "channel"
    if grouped and changes.get("evolve") not in (None, NONE):
        what = f"the masks of {path} have a pattern or whole channels"
        raise ValueError(f"{what}, which moving single weights would break; leave out --evolve")
    if finder["pretrain"]:
        raise ValueError(f"{path} was found after pretraining; use barebones run, which repeats the pretraining")
    method = finder["method"] if record and finder["method"] != DENSE else FILE
    remember(method, masks.about.get("look"))
    settings = {"method": method, "mask": masks_digest(masks), "sparsity": float(masks.about["sparsity"])}
    if changes.get("optimizer", finder["optimizer"]) != finder["optimizer"]:
        finder |= {"lr": None, "weight_decay": None}  # those of the file are for its optimizer
    unset = {name: getattr(Experiment, name) for name in FINDING}
    experiment = Experiment.from_dict(finder | unset | settings | changes)
    check_trusted(experiment.model, path, [changes.get("model")], trust)
    return experiment


def trained(
    folder: Path, model: str | None = None, data: str | None = None, trust: bool = False
) -> tuple[Experiment, nn.Module, Masks]:
    """Return the experiment of a finished run, its trained network and its masks, all on the CPU; see `load`."""
    settings, run = recorded(folder)
    experiment = Experiment.from_dict(settings)
    if model not in (None, experiment.model) or data not in (None, experiment.data):
        name = f"{printable(experiment.model)} on {experiment.data}"
        raise ValueError(f"{folder} is a run of {name}; --model and --data are for mask files")
    check_trusted(experiment.model, folder, [model], trust)
    if (result := finished(folder, experiment)) is None:
        found = f"the run in {folder} is not finished ({progress(folder)})"
        raise ValueError(f"{found}; finish it, or name its {MASK} for the network before training")
    network, path = initial(experiment, inputs_of(experiment, folder, [data], trust)), folder / WEIGHTS
    masks = load_mask(folder, run, network)
    with reading(path, run):
        masks.update(load_weights(path, network).masks)  # evolved ones differ from those that pruning found
        if digest.hexadecimal(network.parameters()) != result["weights"]:
            raise ValueError(f"{path} does not hold the weights that {RESULT} names")
    return experiment, network, masks


def inputs_of(experiment: Experiment, source: Path, named: Collection[str | None] = (), trust: bool = False) -> Inputs:
    """Return what the network of a file or run takes; data that no file describes is loaded if its code is trusted."""
    if (known := known_inputs(experiment)) is not None:
        return known
    about = load_masks(source / MASK if source.is_dir() else source).about
    found = about.get("inputs")
    if found is not None and (source.is_dir() or (about.get("experiment") or {}).get("data") == experiment.data):
        return Inputs(**found | {"shape": tuple(found["shape"])})
    check_trusted(experiment.data, source, named, trust, "--data")
    return data_of(experiment, RunOptions()).inputs


def found_for(masks: Masks, network: nn.Module) -> bool:
    """Return whether the masks were found for these weights; with bn="eval", their digest counts statistics, too."""
    digests = (int(Probe(network, bn=bn).weights_digest()) % 2**64 for bn in STATISTICS)
    return masks.about.get("weights") in [f"{digest:016x}" for digest in digests]


def check_unchanged(folder: Path, experiment: Experiment, options: RunOptions) -> None:
    """Raise a `ValueError` if the experiment's network, data or method is not what this folder's run began with."""
    data = "" if experiment.data in DATA else data_of(experiment, options).digest
    network = initial(experiment, known_inputs(experiment) or data_of(experiment, options).inputs)
    check_initial(folder, experiment, beginning(experiment, network, data))


def example(experiment: Experiment, source: Path, batch: int = 2) -> Tensor:
    """Return random inputs for the network that `load` has loaded from this source, the same in every call."""
    return inputs_of(experiment, source, trust=True).example(batch)
