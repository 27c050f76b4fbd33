"""A run: one experiment in one folder, in stages: pretrain, prune, shrink, train.

Each stage writes a file. A stage whose file exists is skipped, and an interrupted one resumes.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import torch
from torch import nn

from ...data import DATA, Data
from ...files import masks as maskfile
from ...files.weights import load_weights, save_weights
from ...holding import audit
from ...masks import Masks, empty, everything, kept
from ...pruning.controls import inverted, shuffled
from ...pruning.methods import METHODS
from ...pruning.round import Round
from ...running import digest
from ...scope import prunable
from ..experiment.experiment import DENSE, Experiment
from ..experiment.plan import TrainingPlan
from ..experiment.styles import look
from . import connectivity
from . import folder as files
from .loading import check_unchanged, found_for
from .metrics import COUNTED, METRICS, Line, Mark, Metrics
from .network import Network, check_micro_batch, check_pruning, deterministic, pruned, scores
from .options import SKIP, RunOptions, environment, made
from .shrunk import account_of, counted, expanded, places, to_train
from .tracking import tracking
from .training import Training

__all__ = ["RunOptions", "Stopped", "run"]

FLUSH = {"cuda": 1.0}  # seconds between reading the numbers of pruning rounds, which delays a GPU each time
TICK = 0.2  # seconds between reports of the progress within a round or an epoch

T = TypeVar("T")


class Stopped(Exception):
    """The run was stopped, and has saved a checkpoint."""


def run(
    experiment: Experiment,
    options: RunOptions,
    report: Callable[[Line], None] = lambda line: None,
    stopping: Callable[[], bool] = lambda: False,
    until: str = "train",
    held: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Prune, train and test, and return the result.

    `report` gets the metrics of every finished round and epoch, and between them how far the run is: lines with `part`,
    the part of the current round or epoch that is done. The first line of a stage says whether it is `resumed`. A line
    with `warning` says what is wrong with the masks. When `stopping()` becomes true, the run saves a
    checkpoint and raises `Stopped`. With `until="prune"` it ends after pruning and returns what the mask file says.
    `held` is called when the run owns its folder; a run that is finished already does not get there.
    """
    path = options.folder(experiment)
    if options.overwrite:
        files.emptied(path)
    if (ending := _ending(path, experiment, until)) is not None:
        check_unchanged(path, experiment, options)
        if until == "prune":
            connectivity.check(ending, options.on_collapse)
        return ending
    free = experiment.method in METHODS and not METHODS[experiment.method].needs_data  # it reads no data
    unread = until == "prune" and free and experiment.data in DATA and not (experiment.pretrain or options.download)
    network = Network(experiment, options, torch.device(options.device), unread)
    check_micro_batch(network.model, experiment, options, until)
    example = network.data.inputs.example(1).to(network.device) if experiment.pretrain else None
    check_pruning(network.model, experiment, example)  # without pretraining, the first round checks the channels
    with files.reserved(path, experiment, network.digest) as folder, ExitStack() as stack:
        if (ending := _ending(path, experiment, until)) is not None:  # another process has finished it meanwhile
            return ending
        held()
        trackers = dict.fromkeys(options.track or ())
        tracks = [stack.enter_context(tracking(name, folder, experiment)) for name in trackers]
        metrics = Metrics(path / METRICS, folder.run, report, tracks, folder.lock.check)
        try:
            stages = Stages(options, folder, network, metrics, stopping)
            if experiment.pretrain:
                stages.pretrain()
            masks, about = stages.prune()
            return about if until == "prune" else stages.train(masks, about)
        finally:
            metrics.close()


def _ending(path: Path, experiment: Experiment, until: str) -> dict[str, Any] | None:
    """Return what the run leaves in its folder at the end; None if it has not come to that. Nothing is locked."""
    result = files.finished(path, experiment)
    if until == "prune":
        return files.load_mask(path, experiment.folder).about if (path / files.MASK).exists() else None
    if result is not None:
        with suppress(OSError):  # the folder may be read-only
            (path / files.CHECKPOINT).unlink(missing_ok=True)  # if the run was killed just before deleting it
    return result


@dataclass
class Stages:
    """The stages of one run, in the folder that it has locked."""

    options: RunOptions
    folder: files.Folder
    network: Network
    metrics: Metrics
    stopping: Callable[[], bool]

    def __post_init__(self) -> None:
        self.experiment, self.model, self.data = self.network.experiment, self.network.model, self.network.data
        self.mark: Mark | None = None  # of the last finished stage: the metrics up to its end
        self.saved_at, self.saving_took = monotonic(), 0.0  # of the last checkpoint
        self.told_at = 0.0  # when progress was reported
        self.plan, self.skipped = self.experiment.plan(), False  # a skipped training has no epochs

    def pretrain(self) -> None:
        """Train the dense network before pruning, at the first learning rate."""
        path = self.folder.path / files.PRETRAINED
        if not path.exists():
            plan = replace(self.experiment.plan(), epochs=self.experiment.pretrain, lr_schedule="constant", warmup=0)
            self._training("pretrain", plan, Masks(), files.PRETRAINING)
            with self._writing(files.PRETRAINED) as stamp:
                save_weights(self.model, {}, path, **stamp)
        with files.reading(path, self.folder.run) as about:
            load_weights(path, self.model)
        self._passed(about["metrics"])
        self.folder.delete(files.PRETRAINING)

    def prune(self) -> tuple[Masks, dict[str, Any]]:
        """Prune, and return the masks and the metadata of their file."""
        path, experiment = self.folder.path / files.MASK, self.experiment
        if not path.exists():
            after = self._resume(files.ROUND, Round.load)
            if experiment.mask is not None:
                self._copy_mask(self.options.mask)
            elif experiment.method == DENSE:
                self._save_masks(everything(prunable(self.model)), 0.0)
            else:
                self._prune(after)
        masks = files.load_mask(self.folder.path, self.folder.run, self.model)
        about = masks.about
        self._passed(about["metrics"])
        self.folder.delete(files.ROUND)
        if experiment.mask is not None or about.get("account") is None:  # what a file says is counted here again
            numbers, about["collapsed"] = _account(self.model, masks, self.data)
            about |= numbers
        if experiment.mask is not None:  # training other initial weights is allowed, but reported
            about["found_for_these_weights"] = found_for(masks, self.model)
        connectivity.check(about, self.options.on_collapse)
        if self.options.on_collapse == SKIP and about.get("collapsed"):
            self.plan, self.skipped = replace(self.plan, epochs=0), True
        if found := list(connectivity.findings(about, self.skipped)):
            sentences, phrases = zip(*found, strict=True)
            told = {"warning": " ".join(sentences), "short": ", ".join(filter(None, phrases))}
            self.metrics.report({"stage": "prune"} | told)
        return masks, about

    def _prune(self, after: Round | None) -> None:
        method = self.experiment.pruning()
        lines = [line for line in self.metrics.lines if line["stage"] == "prune"]
        flushed_at = monotonic()
        began = flushed_at - (lines[-1]["elapsed"] if lines else 0.0)
        unwritten: list[Round] = []
        self._tell("prune", after.index + 1 if after else 0, method.rounds, 0.0, resumed=after is not None)

        def flush() -> None:
            nonlocal flushed_at
            flushed_at = monotonic()
            for step in unwritten:
                line = {"stage": "prune", "round": step.index + 1, "rounds": method.rounds, **asdict(step.record)}
                del line["index"]
                self.metrics(line | {"elapsed": flushed_at - began})
            unwritten.clear()

        def on_round(step: Round) -> None:
            unwritten.append(step.without_masks())
            stop = self.stopping()
            if stop or monotonic() - flushed_at >= FLUSH.get(self.network.device.type, 0.0):
                flush()
            if step.index + 1 < method.rounds and (stop or self._due()):
                flush()  # first: a resumed run does not write the lines of rounds before its checkpoint
                self._save(files.ROUND, step.save)
                if stop:
                    raise Stopped  # after the last round, training stops at once, and the masks are saved

        with deterministic():
            result = pruned(self.network, self.experiment, self.options, on_round, after)
            flush()
            masks = result.masks
            if self.experiment.control == "shuffle":
                masks = shuffled(masks, self.experiment.seed)
            elif self.experiment.control == "invert":
                masks = inverted(masks, scores(self.network, self.experiment, self.options, kept(masks)))
        self._save_masks(masks, monotonic() - began, **result.about)

    def _save_masks(self, masks: Masks, seconds: float, **about: Any) -> None:
        numbers, collapsed = _account(self.model, masks, self.data)
        about |= {"experiment": self.experiment.to_dict(), "method": self.experiment.method, "seconds": seconds}
        about |= {"collapsed": collapsed, "account": numbers, "inputs": asdict(self.data.inputs)}
        about["look"] = look(self.experiment.method)._asdict()
        with self._writing(files.MASK) as stamp:
            maskfile.save_masks(masks, self.folder.path / files.MASK, **about, **stamp)

    def _copy_mask(self, source: Path | None) -> None:
        if source is None:
            raise ValueError("the run has no masks yet; name their file with --mask FILE")
        masks = maskfile.load_masks(source, self.model)  # raises if they do not match the model
        if maskfile.masks_digest(masks) != self.experiment.mask:
            raise ValueError(f"{source} has changed since it was read; start again")
        about = masks.about | {"inputs": asdict(self.data.inputs)}
        with self._writing(files.MASK) as stamp:
            maskfile.save_masks(masks, self.folder.path / files.MASK, **about | stamp)

    def train(self, masks: Masks, about: dict[str, Any]) -> dict[str, Any]:
        """Train to the end, test, and write the weights and, as the last file, the result."""
        experiment, plan = self.experiment, self.plan
        if experiment.control == "reinitialize" or experiment.scoring_init is not None:
            about["found_for_these_weights"] = False
        if experiment.rewind or experiment.control == "reinitialize":
            self.model = self.network.initial(experiment.init if experiment.control == "reinitialize" else None)
        stored = Masks() if experiment.method == DENSE else masks
        held, small, shrunk, among = stored, None, None, None
        if experiment.shrink and not self.skipped:
            images = next(self.data.test.epoch(2))[0]
            small = to_train(self.model, masks, images)
            shrunk = account_of(small, self.model, masks, images[:1])
            self.model, held = small.module, small.masks
            among = places(small, images) if plan.evolve else None
        if self.skipped:  # an earlier command, without this option, may have begun to train
            self.folder.delete(files.CHECKPOINT)
        training = self._training("train", plan, held, files.CHECKPOINT, among)
        audit(self.model, Masks(training.masks))
        if training.evolution is not None:
            stored = Masks(training.masks)
            if small is not None:
                self.model, stored = expanded(small, stored, masks)
            numbers, about["collapsed"] = _account(self.model, stored, self.data)
            about |= numbers | {"empty": empty(stored)}
        elif small is not None:
            self.model = small.expand()  # the network that the user named is the one to keep
        audit(self.model, stored)
        last = training.last
        test = last.test if last is not None else training.evaluate(self.data.test)
        assert test is not None
        with self._writing(files.WEIGHTS) as stamp:
            save_weights(self.model, stored, self.folder.path / files.WEIGHTS, **stamp)
        lines = self.metrics.lines
        result = {
            "experiment": experiment.to_dict(),
            "id": experiment.id,
            "test": asdict(test),
            "best_validation": training.best and asdict(training.best) | {"epoch": training.best.epoch + 1},
            **{name: about.get(name) for name in (*maskfile.NUMBERS, "not_followed")},
            "collapsed": about.get("collapsed") or [],
            "empty": about["empty"],
            "layers": about["layers"],
            "found_for_these_weights": about.get("found_for_these_weights", True),
            "seconds": {
                "pretrain": sum(line["seconds"] for line in lines if line["stage"] == "pretrain"),
                "prune": about.get("seconds") or 0.0,
                "train": sum(line["seconds"] for line in lines if line["stage"] == "train"),
            },
            "plan": asdict(plan),
            "shrunk": shrunk,
            "weights": digest.hexadecimal(self.model.parameters()),
            "metrics": self.metrics.mark(),
            "environment": environment(self.options, plan.epochs),
            "made": made(),
        }
        self.folder.write(files.RESULT, result)
        self.folder.delete(files.CHECKPOINT)
        return result

    def _training(
        self, stage: str, plan: TrainingPlan, masks: Masks, checkpoint: str, among: Masks | None = None
    ) -> Training:
        """Train, from the checkpoint if there is one; save checkpoints from time to time, and before a stop."""
        seed = self.experiment.seed if stage == "train" else digest.text(self.experiment.seed, stage)
        training = Training(
            self.model, self.data, plan, masks, seed=seed, among=among,
            precision=self.experiment.precision or "fp32", compiled=self.options.compiles(plan.epochs),
            captured=self.options.captured, micro_batch=self.options.micro_batch,
        )  # fmt: skip
        resumed = self._resume(checkpoint, training.load) is not None
        steps = math.ceil(len(self.data.train) / plan.batch_size)  # of an epoch
        self._tell(stage, training.epoch, plan.epochs, training.step / steps, resumed)
        for epoch in training.steps():
            self._tell(stage, training.epoch, plan.epochs, training.step / steps)
            if epoch is not None:
                line = {"stage": stage, "epoch": epoch.index + 1, "epochs": plan.epochs, **asdict(epoch)}
                del line["index"]
                self.metrics(line)
            over = training.epoch == plan.epochs
            stop = self.stopping()
            if stop or over or self._due():
                self._save(checkpoint, training.save)
            if stop and not over:
                raise Stopped
        return training

    def _tell(self, stage: str, finished: int, total: int, part: float, resumed: bool | None = None) -> None:
        """Report how far a stage is: its finished rounds or epochs, and the part of the current one that is done.

        The beginning of a stage is reported always, then not too often. Nothing waits for the device.
        """
        if finished == total or (resumed is None and monotonic() - self.told_at < TICK):
            return
        self.told_at, unit = monotonic(), COUNTED[stage]
        line = {"stage": stage, unit: finished + 1, unit + "s": total, "part": part}
        self.metrics.report(line if resumed is None else line | {"resumed": resumed})

    @contextmanager
    def _writing(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the metadata of a file that is written within: its run, and up to where metrics are on the disk."""
        with self.folder.writing(name) as stamp:
            yield {**stamp, "metrics": self.metrics.mark()}

    def _resume(self, name: str, load: Callable[[Path], T]) -> T | None:
        """Load a checkpoint, if there is one; the metrics end where it was saved, or where the last stage ended."""
        path, mark, loaded = self.folder.path / name, self.mark, None
        if path.exists():
            with files.reading(path, self.folder.run) as about:
                loaded = load(path)
            mark = about["metrics"]
        self.metrics.rewind(mark)
        return loaded

    def _passed(self, mark: Mark) -> None:
        """Note up to where the metrics of the stage that has ended go; they must be there."""
        self.metrics.check(mark)
        self.mark = mark

    def _due(self) -> bool:
        """Return whether it is time for a checkpoint: every `save_every` seconds, in at most 2 % of the time."""
        pause = self.options.save_every
        return monotonic() - self.saved_at >= max(pause, 50 * self.saving_took if pause else 0)

    def _save(self, name: str, save: Callable[..., None]) -> None:
        """Save a checkpoint with this function of a path and its metadata."""
        began = monotonic()
        with self._writing(name) as stamp:
            save(self.folder.path / name, **stamp)
        self.saved_at = monotonic()
        self.saving_took = self.saved_at - began


def _account(model: nn.Module, masks: Masks, data: Data) -> tuple[dict[str, Any], list[str]]:
    """Return the counts of the masks, and the names of the collapsed layers."""
    full, problem = counted(model, masks, next(data.test.epoch(1))[0])
    numbers = {name: getattr(full, "total" if name == "prunable" else name) for name in maskfile.NUMBERS}
    return numbers | {"not_followed": problem}, full.collapsed or []
