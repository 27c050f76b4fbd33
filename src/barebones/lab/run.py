"""A run: one experiment in one folder; a stage that is finished is not done again, one that was begun goes on."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import nn

from ..accounting import account
from ..data import Data
from ..data import load as load_data
from ..deploy.shrink import Shrunk, require_torch_pruning
from ..files import container as files
from ..files import masks as maskfile
from ..holding import audit
from ..masks import Masks, everything
from ..models import build, initialize
from ..pruning.probe import Probe
from ..pruning.prune import prune
from ..pruning.round import Round
from ..running import digest
from ..running.rng import forked
from ..scope import parameters, prunable
from ..version import __version__
from .experiment import DENSE, FILE, Experiment
from .metrics import Line, Metrics, read
from .shrunk import account_of, images_per_second, laid_out, to_train
from .training import Epoch, Training, TrainingPlan

RESULT, EXPERIMENT, MASK, WEIGHTS = "result.json", "experiment.json", "mask.safetensors", "weights.safetensors"
ROUND, CHECKPOINT = "round.safetensors", "checkpoint.safetensors"  # of what is under way
PRETRAINED, PRETRAINING = "pretrained.safetensors", "pretraining.safetensors"
SHRUNK = "shrunk.json"  # what became of the network, and how fast it trains
LOCK = "lock"
SPARE = 16 * 2**20  # bytes, for everything but weights
PAYS = 100  # epochs from which on compiling a network (half a minute) is won back on a GPU
FLUSH = 1.0  # seconds between looks at the numbers of a pruning on an accelerator, which each look delays
WEIGHTS_KIND, WEIGHTS_VERSION = "barebones-weights", 1


Steps = Generator[None, None, dict[str, Any]]  # of a run; its value is the result


@dataclass(frozen=True)
class RunOptions:
    """Where and how to run; nothing of it is part of an experiment."""

    runs: Path = Path("runs")  # holds a folder for each run
    device: str = "cpu"
    data_root: Path | None = None
    download: bool = False
    compiled: bool | None = None  # None: on a GPU, for as many epochs as pay for it
    captured: bool = True
    save_every: float = 30.0  # seconds between checkpoints
    tensorboard: bool = False
    mask: Path | None = None  # the file to train, for the method "file"

    def folder(self, experiment: Experiment) -> Path:
        """Of the experiment's run."""
        return self.runs / experiment.folder

    def compiles(self, epochs: int) -> bool:
        """Whether torch compiles a network that trains for so many epochs."""
        return self.device.startswith("cuda") and epochs >= PAYS if self.compiled is None else self.compiled


class Busy(ValueError):
    """Another process is at work on the run."""


class Stopped(Exception):
    """The run was asked to stop; what it had done is saved."""


def run(
    experiment: Experiment,
    place: RunOptions,
    report: Callable[[Line], None] = lambda line: None,
    stopping: Callable[[], bool] = lambda: False,
    until: str = "train",
) -> Steps:
    """Prune, train, test: one training step for each `next`, the result at the end as the generator's value.

    Every finished round and epoch is a line for `report`. When `stopping()` turns true the run saves itself and raises
    `Stopped`. With `until="prune"` it ends at the mask.
    """
    folder = place.folder(experiment)
    if (result := finished(folder, experiment)) is not None and until == "train":
        (folder / CHECKPOINT).unlink(missing_ok=True)  # if it was killed between the two
        return result
    if experiment.shrink:
        require_torch_pruning()
    device = torch.device(place.device)
    network = Network(experiment, place, device)
    with _reserved(folder, experiment, network.bytes):
        metrics = Metrics(folder, report, place.tensorboard)
        try:
            work = Stages(experiment, place, folder, network, metrics, stopping)
            if experiment.pretrain:
                yield from work.pretrain()
            masks, about = work.masks()
            if until == "prune":
                return about
            return (yield from work.train(masks, about))
        finally:
            metrics.close()


def result_of(steps: Steps) -> dict[str, Any]:
    """Exhaust a run and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def finished(folder: Path, experiment: Experiment | None = None) -> dict[str, Any] | None:
    """The result of a run that has one."""
    try:
        result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, OSError) as error:
        raise ValueError(f"{folder / RESULT} cannot be read ({error}); delete it to run this again") from None
    known = isinstance(result, dict) and {"experiment", "test", "seconds"} <= result.keys()
    if not known or (experiment is not None and not experiment.is_record(result.get("experiment"))):
        raise ValueError(f"{folder / RESULT} is the result of something else; delete it to run this again")
    return result


def progress(folder: Path) -> str:
    """In words, how far a run is."""
    if (folder / RESULT).exists():
        return "finished"
    lines = read(folder / "metrics.jsonl")
    if (folder / MASK).exists():
        epochs = [line for line in lines if line["stage"] == "train"]
        return f"pruned; trained {epochs[-1]['epoch'] + 1} of {epochs[-1]['epochs']} epochs" if epochs else "pruned"
    if lines:
        last = lines[-1]
        what = "round" if last["stage"] == "prune" else "epoch"
        return f"{last['stage']}: {last[what] + 1} of {last[what + 's']} {what}s"
    return "begun" if folder.exists() else "not begun"


class Network:
    """The experiment's data and network at its initial weights, on the device."""

    def __init__(self, experiment: Experiment, place: RunOptions, device: torch.device) -> None:
        self.experiment, self.device = experiment, device
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError("there is no CUDA device here; use --device cpu")
        if device.type == "cuda":
            if device.index is not None:
                torch.cuda.set_device(device)
            torch.backends.cudnn.benchmark = True  # all batches but the last are of one size: looking around pays
        self.data = _data(experiment.data, place.data_root, place.device, place.download)
        self.model = self.initial()
        self._check()
        self.bytes = sum(p.numel() * p.element_size() for p in self.model.parameters())

    def _check(self) -> None:
        """That the network takes these images and tells these classes apart: else one sentence, not a traceback."""
        images, flags = next(self.data.test.epoch(2))[0], [m.training for m in self.model.modules()]
        try:
            with torch.no_grad(), forked(self.device):
                shape = tuple(self.model.eval()(images).shape)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a stranger's network may raise anything
            why = f"{type(error).__name__}: {next(iter(str(error).splitlines()), 'no reason given')}"
            raise ValueError(f"{self.experiment.model} does not take the images of {self.data.name} ({why})") from error
        finally:
            for module, flag in zip(self.model.modules(), flags, strict=True):
                module.training = flag
        if shape != (len(images), self.data.classes):
            raise ValueError(
                f"{self.experiment.model} gives outputs of shape {shape} for {len(images)} images of {self.data.name}, "
                f"which has {self.data.classes} classes"
            )

    def initial(self) -> nn.Module:
        """The network at initialization: always the same weights for the same seed."""
        experiment, data = self.experiment, self.data
        with forked(torch.device("cpu"), seed=digest.text(experiment.seed, "build")):
            model = build(experiment.model, data.classes, data.size, data.channels)
        generator = torch.Generator("cpu").manual_seed(digest.text(experiment.seed, "init"))
        initialize(model, experiment.init, generator)
        if self.device.type == "cuda":
            return model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model


@lru_cache(maxsize=2)
def _data(name: str, root: Path | None, device: str, download: bool) -> Data:
    """Read once in a process, however many runs use it."""
    return load_data(name, root, device, download, channels_last=device.startswith("cuda"))


class Stages:
    """The stages of a run. Each leaves a file; where the file is, the stage is over."""

    def __init__(
        self,
        experiment: Experiment,
        place: RunOptions,
        folder: Path,
        network: Network,
        metrics: Metrics,
        stopping: Callable[[], bool],
    ) -> None:
        self.experiment, self.place, self.folder, self.network = experiment, place, folder, network
        self.metrics, self.stopping = metrics, stopping
        self.model, self.data = network.model, network.data
        self.saved, self.cost = monotonic(), 0.0  # when it was last saved, and how many seconds that took

    def pretrain(self) -> Iterator[None]:
        """Dense epochs before pruning, at the first learning rate."""
        done = self.folder / PRETRAINED
        if not done.exists():
            plan = replace(self.experiment.plan(self.experiment.pretrain), milestones=())
            yield from self._training("pretrain", plan, None, self.folder / PRETRAINING)
            write_weights(self.model, done)
        (self.folder / PRETRAINING).unlink(missing_ok=True)
        read_weights(self.model, done)

    def masks(self) -> tuple[Masks, dict[str, Any]]:
        """From the file, where pruning is over; else by pruning."""
        path = self.folder / MASK
        if not path.exists():
            if self.experiment.method == FILE:
                _copy_mask(self.place.mask, path, self.experiment, self.model)
            elif self.experiment.method == DENSE:
                self._keep(everything(prunable(self.model)), [], 0.0, method=DENSE)
            else:
                self._prune()
        (self.folder / ROUND).unlink(missing_ok=True)
        masks, about = maskfile.load_masks(path, self.model)
        masks = {name: mask.to(self.network.device) for name, mask in masks.items()}
        if "account" not in about:  # of a stranger's file
            about["account"], about["collapsed"] = _account(self.model, masks, self.data)
        if self.experiment.method == FILE:  # other initial weights are allowed, but worth a word
            own = int(Probe(self.model).weights_digest()) % 2**64
            about["found_for_these_weights"] = about.get("weights") == f"{own:016x}"
        return masks, about

    def _prune(self) -> None:
        experiment, method = self.experiment, self.experiment.pruning()
        partial = self.folder / ROUND
        after = Round.load(partial) if partial.exists() else None
        self.metrics.rewind("prune", after.index + 1 if after else 0)
        lines = [line for line in read(self.metrics.path) if line["stage"] == "prune"]
        before, began = (lines[-1]["elapsed"] if lines else 0.0), monotonic()
        waiting: list[Round] = []
        flushed = monotonic()

        def flush() -> None:
            nonlocal flushed
            flushed = monotonic()
            for step in waiting:
                numbers = asdict(step.record)
                number = numbers.pop("index")
                elapsed = before + monotonic() - began
                self.metrics(
                    {"stage": "prune", "round": number, "rounds": method.rounds, **numbers, "elapsed": elapsed}
                )
            waiting.clear()

        def watch(step: Round) -> None:
            waiting.append(replace(step, masks=dict.fromkeys(step.masks)))  # type: ignore[arg-type]  # numbers alone
            stop = self.stopping()
            if stop or _watches_every_round(self.network.device) or monotonic() - flushed > FLUSH:
                flush()
            if step.index + 1 < method.rounds and (stop or self._due()):
                flush()  # a line that the checkpoint is past would never be written
                self._save(lambda: step.save(partial))
            if stop:
                raise Stopped

        with _deterministic():
            result = prune(
                self.model,
                self.data.train.scoring(experiment.plan().batch, experiment.seed),
                experiment.sparsity,
                method,
                experiment.loss,
                precision=experiment.scoring_precision or "fp32",
                capture=self.place.captured and self.network.device.type == "cuda",
                on_collapse="ignore",
                on_round=watch,
                after=after,
                seed=experiment.seed,
            )
        flush()
        self._keep(result.masks, result.collapsed, before + monotonic() - began, **result.about)
        partial.unlink(missing_ok=True)

    def _keep(self, masks: Masks, collapsed: list[str], seconds: float, **about: Any) -> None:
        own, dead = _account(self.model, masks, self.data)
        about |= {"experiment": self.experiment.to_dict(), "method": self.experiment.method, "seconds": seconds}
        about |= {"collapsed": collapsed or dead, "account": own}
        maskfile.save_masks(masks, self.folder / MASK, **about)

    def train(self, masks: Masks, about: dict[str, Any]) -> Steps:
        """Train to the end, test, and write the result; the last file is the result."""
        experiment = self.experiment
        if experiment.rewind:
            self.model = self.network.initial()
        plan, held = experiment.plan(), None if experiment.method == DENSE else masks
        small = self._shrunk(masks) if experiment.shrink else None
        if small is not None:
            self.model, held = small.module, small.masks
        training = yield from self._training("train", plan, held, self.folder / CHECKPOINT)
        audit(self.model, held or {})
        if small is not None:
            self.model = small.expand()  # what is kept is the network that everybody knows
            audit(self.model, masks)
        last = training.last
        test = last.test if last is not None else training.evaluate(self.data.test)
        assert test is not None
        write_weights(self.model, self.folder / WEIGHTS)
        lines = read(self.metrics.path)
        result = {
            "experiment": experiment.to_dict(),
            "id": experiment.id,
            "test": asdict(test),
            "best_validation": training.best and asdict(training.best),
            **about["account"],
            "collapsed": about["collapsed"],
            "found_for_these_weights": about.get("found_for_these_weights", True),
            "seconds": {
                "pretrain": sum(line["seconds"] for line in lines if line["stage"] == "pretrain"),
                "prune": about.get("seconds", 0.0),
                "train": sum(line["seconds"] for line in lines if line["stage"] == "train"),
            },
            "plan": asdict(plan),
            "shrunk": json.loads((self.folder / SHRUNK).read_text(encoding="utf-8")) if small is not None else None,
            "weights": f"{int(digest.content(self.model.parameters())) % 2**64:016x}",
            "environment": environment(self.place, plan.epochs),
        }
        write_json(self.folder / RESULT, result)
        (self.folder / CHECKPOINT).unlink(missing_ok=True)
        return result

    def _shrunk(self, masks: Masks) -> Shrunk:
        """The small network, always the same; what it is like and how fast is in a file of its own."""
        images = next(self.data.test.epoch(2))[0]
        small = to_train(self.model, masks, images)
        if not (path := self.folder / SHRUNK).exists():
            experiment = self.experiment
            speeds = images_per_second(
                {"masked": (laid_out(deepcopy(self.model), images), masks), "shrunk": (small.module, small.masks)},
                self.data,
                experiment.plan(),
                seed=experiment.seed,
                precision=experiment.precision or "fp32",
                captured=self.place.captured,
            )
            write_json(path, account_of(small, self.model, masks, images[:1]) | {"images_per_second": speeds})
        return small

    def _training(
        self, stage: str, plan: TrainingPlan, masks: Masks | None, checkpoint: Path
    ) -> Generator[None, None, Training]:
        """One training, from its checkpoint on where there is one; saved now and then and when asked to stop."""
        training = Training(
            self.model,
            self.data,
            plan,
            masks,
            seed=self.experiment.seed if stage == "train" else digest.text(self.experiment.seed, stage),
            precision=self.experiment.precision or "fp32",
            captured=self.place.captured,
            compiled=self.place.compiles(plan.epochs),
        )
        if checkpoint.exists():
            training.load(checkpoint)
        self.metrics.rewind(stage, training.epoch)
        for epoch in training.steps():
            if epoch is not None:
                self.metrics(_line(stage, epoch, plan.epochs))
            over = training.epoch == plan.epochs
            stop = self.stopping()
            if stop or over or self._due():
                self._save(lambda: training.save(checkpoint))
            if stop and not over:
                raise Stopped
            yield
        return training

    def _due(self) -> bool:
        """Whether it is time to save: now and then, and so seldom that it costs a fiftieth of the time at most."""
        return monotonic() - self.saved >= max(self.place.save_every, 50 * self.cost if self.place.save_every else 0)

    def _save(self, save: Callable[[], None]) -> None:
        began = monotonic()
        save()
        self.saved = monotonic()
        self.cost = self.saved - began


def _watches_every_round(device: torch.device) -> bool:
    """Whether looking at the numbers of each round costs nothing: an accelerator would be waited for."""
    return device.type == "cpu"


@contextmanager
def _deterministic() -> Iterator[None]:
    """cuDNN takes the same algorithm each time: a pruning that was interrupted must end with the same masks."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    cudnn.benchmark, cudnn.deterministic = False, True
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before


def _line(stage: str, epoch: Epoch, epochs: int) -> Line:
    """An epoch as a line of metrics."""
    numbers = asdict(epoch)
    return {"stage": stage, "epoch": numbers.pop("index"), "epochs": epochs, **numbers}


def _account(model: nn.Module, masks: Masks, data: Data) -> tuple[dict[str, Any], list[str]]:
    """What the masks keep, in a few numbers; and the layers that cut the network."""
    example = next(data.test.epoch(1))[0]
    trouble = None
    try:
        full = account(model, masks, example)
    except ValueError as error:  # a module that cannot be followed; the counts need no path
        full, trouble = account(model, masks), str(error)
    return {
        "prunable": full.total,
        "kept": full.kept,
        "effective": full.effective,
        "sparsity": full.sparsity,
        "effective_sparsity": full.effective_sparsity,
        "flops_dense": full.flops_dense,
        "flops_effective": full.flops_effective,
        "flops_shrunk": full.flops_shrunk,
        "not_followed": trouble,
    }, full.collapsed or []


def environment(place: RunOptions, epochs: int) -> dict[str, Any]:
    """What the bits of a result may depend on."""
    device = torch.device(place.device)
    return {
        "barebones": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
        "compiled": place.compiles(epochs),
        "captured": place.captured and device.type == "cuda",
    }


def _copy_mask(source: Path | None, target: Path, experiment: Experiment, model: nn.Module) -> None:
    if source is None:
        raise ValueError("the masks to train are not there yet; name their file with --mask FILE")
    content = source.read_bytes()
    if maskfile.content(maskfile.load_masks(source)[0]) != experiment.mask:
        raise ValueError(f"{source} has changed since it was read; start again")
    maskfile.load_masks(source, model)  # that they fit is told before they are copied
    with files.atomically(target) as file:
        file.write(content)


def write_json(path: Path, value: Any) -> None:
    """A JSON file, whole or not at all."""
    with files.atomically(path) as file:
        file.write((json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def write_weights(model: nn.Module, path: Path) -> None:
    """The network's state, tied weights once, under its own names."""
    tensors = {**parameters(model), **dict(model.named_buffers())}
    files.write(path, tensors, WEIGHTS_KIND, WEIGHTS_VERSION, {})


def read_weights(model: nn.Module, path: Path) -> None:
    """Put the state that `write_weights` wrote into a network of the same kind."""
    tensors, _ = files.read(path, WEIGHTS_KIND, WEIGHTS_VERSION)
    with torch.no_grad():
        for name, tensor in {**parameters(model), **dict(model.named_buffers())}.items():
            if name not in tensors or tensors[name].shape != tensor.shape:
                raise ValueError(f"{path} holds the weights of another network: {name} differs")
            tensor.copy_(tensors[name])


@contextmanager
def _reserved(folder: Path, experiment: Experiment, weights: int) -> Iterator[None]:
    """The folder, for this process alone, with room for what will be written, if it is not there already."""
    _make(folder)
    with open(folder / LOCK, "a") as lock:
        _lock(lock, folder)
        _check_room(folder, 2 * 2 * weights + weights + SPARE)  # a checkpoint beside the one it replaces; the weights
        for stale in folder.glob(".*.tmp"):  # of a process that was killed as it wrote
            stale.unlink(missing_ok=True)
        path = folder / EXPERIMENT
        if not path.exists():
            write_json(path, experiment.to_dict())
        elif not experiment.is_record(recorded(path)):
            raise ValueError(f"{path} is another experiment; move that folder away")
        yield


def recorded(path: Path) -> Any:
    """What is in an experiment.json."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); move its folder away") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged (it holds no experiment); move its folder away")
    return found


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(error.errno, f"cannot make the run's folder ({error.strerror})", str(folder)) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(13, "cannot write into the run's folder", str(folder))


def _lock(file: Any, folder: Path) -> None:
    """Held until the file is closed, be it by a SIGKILL."""
    try:
        import fcntl
    except ImportError:  # Windows: two runs in one folder are then nobody's business but the user's
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise Busy(f"another process is at work in {folder}; wait for it, or stop it first") from None


def _check_room(folder: Path, needed: int) -> None:
    with suppress(OSError):  # a file system that does not say
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise ValueError(
                f"{folder} needs about {needed / 1e6:.0f} MB, and its disk has {free / 1e6:.0f} MB; make room first"
            )
