"""Stored networks: the trained network of a finished run, or an experiment's initial one, without reading any data."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from ..data import DATA
from ..files.masks import load_masks
from ..masks import Masks
from .experiment import Experiment
from .folder import EXPERIMENT, MASK, WEIGHTS, finished, progress, recorded
from .network import initial_network
from .stages import read_weights


def trained(folder: Path) -> tuple[Experiment, nn.Module, Masks]:
    """Return the experiment of a finished run, its trained network and its masks, all on the CPU."""
    record = folder / EXPERIMENT
    if not record.exists():
        raise ValueError(f"{folder} is not the folder of a run: it has no {EXPERIMENT}")
    experiment = Experiment.from_dict(recorded(record))
    if finished(folder, experiment) is None:
        raise ValueError(
            f"the run in {folder} is not finished ({progress(folder)}); finish it, or name its {MASK} "
            "for the network before training"
        )
    model = initial(experiment)
    read_weights(model, folder / WEIGHTS)
    return experiment, model, load_masks(folder / MASK, model)[0]


def initial(experiment: Experiment) -> nn.Module:
    """Return the experiment's network at its initial weights, on the CPU."""
    data = DATA[experiment.data]
    return initial_network(experiment, data.classes, data.size, data.channels)


def example(experiment: Experiment, batch: int = 2) -> Tensor:
    """Return noise in the shape of the experiment's images, always the same."""
    data = DATA[experiment.data]
    return torch.randn(batch, data.channels, data.size, data.size, generator=torch.Generator("cpu").manual_seed(0))
