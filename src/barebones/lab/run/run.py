"""A run: one experiment in one folder. Finished stages are skipped; an interrupted stage resumes."""

from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch

from ..experiment.experiment import Experiment
from . import connectivity
from .distributed import ALONE, Team, check_norms
from .folder import CHECKPOINT, MASK, emptied, finished, load_mask, reserved
from .loading import check_unchanged
from .metrics import METRICS, Line, Metrics
from .network import Network, data_of
from .options import RunOptions
from .stages import Stages, Stopped
from .tracking import tracking

__all__ = ["RunOptions", "Stopped", "run"]


def run(
    experiment: Experiment,
    options: RunOptions,
    report: Callable[[Line], None] = lambda line: None,
    stopping: Callable[[], bool] = lambda: False,
    until: str = "train",
    team: Team = ALONE,
    held: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Prune, train and test, and return the result.

    `report` gets the metrics of every finished round and epoch, and between them how far the run is: lines with `part`,
    the part of the current round or epoch that is done. The first line of a stage says whether it is `resumed`. A line
    with `warning` says what is wrong with the masks. When `stopping()` becomes true, the run saves a
    checkpoint and raises `Stopped`. With `until="prune"` it ends after pruning and returns what the mask file says.
    The processes of a `team` all run this function, each with the options of its own; see `distributed`.
    `held` is called when the run owns its folder; a run that is finished already does not get there.
    """
    path = options.folder(experiment)
    if options.overwrite:
        emptied(path)
    if team.any((ending := _ending(path, experiment, until)) is not None):  # only the first process has the folder
        if ending is not None:
            check_unchanged(path, experiment, options)
            if until == "prune":
                connectivity.check(ending, options.on_collapse)
        return ending or {}
    if options.download:
        with team.after_first():
            data_of(experiment, options)
    network = Network(experiment, options, torch.device(options.device))
    check_norms(network.model, experiment, options, team, until)
    with reserved(path, experiment, network.digest) as folder, ExitStack() as stack:
        team.copy_from_first(path)
        if (ending := _ending(path, experiment, until)) is not None:  # another process has finished it meanwhile
            return ending
        held()
        trackers = dict.fromkeys(options.track or ())
        tracks = [stack.enter_context(tracking(name, folder, experiment)) for name in trackers]
        metrics = Metrics(path / METRICS, folder.run, report, tracks, folder.check)
        try:
            stages = Stages(experiment, options, folder, network, metrics, lambda: team.any(stopping()), team)
            if experiment.pretrain:
                stages.pretrain()
            masks, about = stages.prune()
            return about if until == "prune" else stages.train(masks, about)
        finally:
            metrics.close()


def _ending(path: Path, experiment: Experiment, until: str) -> dict[str, Any] | None:
    """Return what the run leaves in its folder at the end; None if it has not come to that. Nothing is locked."""
    result = finished(path, experiment)
    if until == "prune":
        return load_mask(path, experiment.folder).about if (path / MASK).exists() else None
    if result is not None:
        with suppress(OSError):  # the folder may be read-only
            (path / CHECKPOINT).unlink(missing_ok=True)  # if the run was killed just before deleting it
    return result
