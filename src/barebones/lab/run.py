"""A run: one experiment in one folder. Finished stages are skipped; an interrupted stage resumes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .experiment import Experiment
from .folder import CHECKPOINT, finished, reserved
from .metrics import Line, Metrics
from .network import Network
from .options import RunOptions
from .stages import Stages, Steps, Stopped

__all__ = ["RunOptions", "Steps", "Stopped", "result_of", "run"]


def run(
    experiment: Experiment,
    options: RunOptions,
    report: Callable[[Line], None] = lambda line: None,
    stopping: Callable[[], bool] = lambda: False,
    until: str = "train",
) -> Steps:
    """Prune, train and test: a generator that does one training step per `next` and returns the result.

    `report` gets the metrics of every finished round and epoch. When `stopping()` becomes true, the run saves a
    checkpoint and raises `Stopped`. With `until="prune"` it ends after pruning and returns what the mask file says.
    """
    folder = options.folder(experiment)
    if (result := finished(folder, experiment)) is not None and until == "train":
        (folder / CHECKPOINT).unlink(missing_ok=True)  # left over if the run was killed just before deleting it
        return result
    network = Network(experiment, options, torch.device(options.device))
    with reserved(folder, experiment, network.bytes):
        metrics = Metrics(folder, report, options.tensorboard)
        try:
            stages = Stages(experiment, options, folder, network, metrics, stopping)
            if experiment.pretrain:
                yield from stages.pretrain()
            masks, about = stages.prune()
            if until == "prune":
                return about
            return (yield from stages.train(masks, about))
        finally:
            metrics.close()


def result_of(steps: Steps) -> dict[str, Any]:
    """Do all steps of a run and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
