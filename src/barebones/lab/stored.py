"""Stored: the network of a finished run, or the one that masks were found for, without reading any data."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from ..data import DATA
from ..files.masks import load_masks
from ..masks import Masks
from .experiment import Experiment
from .run import EXPERIMENT, MASK, WEIGHTS, Network, finished, progress, read_weights, recorded


def trained(folder: Path) -> tuple[Experiment, nn.Module, Masks]:
    """The experiment of a finished run, its network as it was trained, and its masks; all on the CPU."""
    record = folder / EXPERIMENT
    if not record.exists():
        raise ValueError(f"{folder} is not the folder of a run: it has no {EXPERIMENT}")
    if not isinstance(values := recorded(record), dict):
        raise ValueError(f"{record} is damaged (it holds no experiment); move its folder away")
    experiment = Experiment.from_dict(values)
    if finished(folder, experiment) is None:
        raise ValueError(
            f"the run in {folder} is not finished ({progress(folder)}); finish it, or name its {MASK} "
            "for the network before training"
        )
    model = initial(experiment)
    read_weights(model, folder / WEIGHTS)
    return experiment, model, load_masks(folder / MASK, model)[0]


def initial(experiment: Experiment) -> nn.Module:
    """The experiment's network at initialization, on the CPU."""
    return _Network(experiment).initial()


def example(experiment: Experiment, batch: int = 2) -> Tensor:
    """Noise in the shape of the experiment's images, always the same."""
    data = DATA[experiment.data]
    return torch.randn(batch, data.channels, data.size, data.size, generator=torch.Generator("cpu").manual_seed(0))


class _Network(Network):
    """An experiment's network, of whose data the shapes are enough."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment, self.device = experiment, torch.device("cpu")
        self.data = DATA[experiment.data]  # type: ignore[assignment]
