"""A run's folder: the names of its files, its owner, its record and result, and the progress of the run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ...deploy.shrink import cuts
from ...files import container, masks, weights
from ...masks import Masks, empty
from ...pruning import round as rounds
from ..experiment.experiment import Experiment, folder_of
from . import training
from .checksums import Identity, misfit, sealed, unsealed
from .lock import Busy, Lease, is_lease, leased
from .metrics import MARK, METRICS, REMEDY
from .metrics import read as read_metrics

EXPERIMENT, RESULT, FAILURE = "experiment.json", "result.json", "failure.json"
MASK, WEIGHTS = "mask.safetensors", "weights.safetensors"
PRETRAINED = "pretrained.safetensors"
ROUND, PRETRAINING, CHECKPOINT = "round.safetensors", "pretraining.safetensors", "checkpoint.safetensors"  # to resume
CUTS = "cuts.safetensors"  # how to shrink the network, for each process that trains it
SHRUNK = "shrunk.json"  # what shrinking did to the network, and how fast it trains
TRACKED = "tracked.json"  # the ids that trackers know the run by
SPARE = 16 * 2**20  # bytes of disk for everything but weights

FORMATS = {  # of the files with tensors: the kind and the version of their container
    MASK: (masks.KIND, masks.VERSION),
    ROUND: (rounds.FORMAT, rounds.VERSION),
    CUTS: (cuts.KIND, cuts.VERSION),
    **dict.fromkeys((WEIGHTS, PRETRAINED), (weights.KIND, weights.VERSION)),
    **dict.fromkeys((CHECKPOINT, PRETRAINING), (training.KIND, training.VERSION)),
}
REMEDIES = {  # how to go on if a file is damaged, missing, or belongs to another run
    EXPERIMENT: "move its folder away and run the experiment again",
    MASK: REMEDY,
    PRETRAINED: REMEDY,
    ROUND: "delete it and run the experiment again, which prunes from the start",
    PRETRAINING: "delete it and run the experiment again, which pretrains from the start",
    CHECKPOINT: "delete it and run the experiment again, which trains from the start",
    WEIGHTS: f"delete the {RESULT} beside it and run the experiment again, which trains from the start",
    CUTS: "delete it and run the experiment again, which shrinks the network again",
    SHRUNK: "delete it and run the experiment again, which measures it again",
    RESULT: "delete it and run the experiment again, which trains from the start",
    TRACKED: "delete it and run the experiment again, which is then tracked as a new run",
    FAILURE: "delete it and run the experiment again",
}
SHRUNK_FORM = {
    "parameters": "list[int]",
    "flops": "float",
    "images_per_second": (None, {"masked": "float", "shrunk": "float"}),
}
FORMS: dict[str, dict[str, Any]] = {  # of the JSON files
    EXPERIMENT: {},
    FAILURE: {"experiment": {}, "reason": "str"},
    SHRUNK: SHRUNK_FORM,
    TRACKED: {"wandb?": "str", "mlflow?": "str"},
    RESULT: {
        "experiment": {},
        "test": training.ACCURACY,
        "best_validation": (None, training.BEST),
        "prunable": "int",
        "kept": "int",
        "effective": "int | None",
        "sparsity": "float",
        "effective_sparsity": "float | None",
        "flops_dense": "int | None",
        "flops_effective": "int | None",
        "collapsed": "list[str]",
        "empty?": "list[str]",  # missing in the results of older versions
        "layers?": "int",
        "silent_outputs?": "int | None",
        "outputs?": "int | None",
        "found_for_these_weights": "bool",
        "seconds": {"pretrain": "float", "prune": "float", "train": "float"},
        "plan?": {"epochs": "int"},
        "shrunk": (None, SHRUNK_FORM),
        "weights": "str",
        "metrics": (None, MARK),
        "environment": {},
    },
}


@dataclass(frozen=True)
class Folder:
    """The folder of a run that this process owns."""

    path: Path
    identity: Identity
    lease: Lease

    def check(self) -> None:
        """Raise `Busy` if this process no longer owns the folder."""
        self.lease.check()

    @contextmanager
    def writing(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the metadata of a file that is written within; it is put in place if this process owns the folder then.

        If another process takes the folder over after the last check, it has deleted the temporary file.
        """
        self.check()
        with container.put_only_if(self.check):
            yield {"run": self.identity.stamp(name)}

    def about(self, name: str) -> dict[str, Any]:
        """Return the metadata of one of the files with tensors, which must belong to this run."""
        return verified(self.path / name, self.identity)

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write one of the JSON files."""
        with self.writing(name):
            write_json(self.path / name, content, self.identity)

    def read(self, name: str) -> dict[str, Any]:
        """Read one of the JSON files, which must belong to this run."""
        return read_json(self.path / name, self.identity)


@contextmanager
def reserved(path: Path, experiment: Experiment, initial: str, weight_bytes: int) -> Iterator[Folder]:
    """Make the run's folder and own it; check that the disk has room for what a run writes.

    `initial` is the digest of the initial weights.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    fresh = all(is_lease(file.name) for file in path.iterdir())  # new, or emptied by --again
    with leased(path) as lease:
        try:
            _check_space(path, weight_bytes)
            for unfinished in path.glob(".*.tmp"):  # a process was killed while it wrote them
                unfinished.unlink(missing_ok=True)
            folder = Folder(path, Identity(experiment.folder, initial), lease)
            if not (path / EXPERIMENT).exists():
                folder.write(EXPERIMENT, experiment.to_dict())
            folder.read(EXPERIMENT)  # raises if it is the record of another run
            yield folder
        except Exception as error:
            if fresh and path.is_dir() and not isinstance(error, Busy) and _untouched(path):  # it was refused
                shutil.rmtree(path, ignore_errors=True)
                for parent in missing[1:]:
                    if parent.is_dir() and not any(parent.iterdir()):
                        parent.rmdir()
            raise


def _check_space(path: Path, weight_bytes: int) -> None:
    needed = 5 * weight_bytes + SPARE  # the weights, and two checkpoints of weights and momentum
    free = shutil.disk_usage(path).free
    if free < needed:
        raise ValueError(
            f"{path} needs about {needed / 1e6:.0f} MB, but its disk has {free / 1e6:.0f} MB left; "
            "delete something first"
        )


def _untouched(path: Path) -> bool:
    """Return whether a run has done nothing yet: no round or epoch is in its metrics, and it has saved nothing."""
    names = {file.name for file in path.iterdir() if file.is_file()}
    begun = METRICS in names and (path / METRICS).read_bytes().count(b"\n") > 1  # the first line names the run
    return not begun and all(name in (EXPERIMENT, METRICS) or is_lease(name) for name in names)


def emptied(path: Path) -> None:
    """Delete the files of a run, if there are any; a folder in which a process works raises `Busy`."""
    if not path.exists():
        return
    with leased(path):
        for file in sorted(path.iterdir(), key=lambda file: file.name != RESULT):  # a run without result is unfinished
            if not is_lease(file.name) and file.is_file():
                file.unlink()


def finished(folder: Path, experiment: Experiment | None = None) -> dict[str, Any] | None:
    """Return the result of a finished run, None if the run is not finished.

    A result that is damaged, or that belongs to another run than `experiment` or than its folder, raises a
    `ValueError`.
    """
    result = _ending(folder / RESULT, experiment)
    if result is not None and result.get("counted_from") is None and result["best_validation"]:
        result["best_validation"]["epoch"] += 1
    return result


def failed(folder: Path) -> dict[str, Any] | None:
    """Return why a sweep could not finish the run; None if it did not fail."""
    return _ending(folder / FAILURE, None)


def _ending(path: Path, experiment: Experiment | None) -> dict[str, Any] | None:
    owner = Identity(experiment.folder, None) if experiment is not None else None
    if (path.parent / EXPERIMENT).exists():  # a run may fail before it is written
        owner = recorded(path.parent, experiment)[1]
    try:
        return read_json(path, owner)
    except (FileNotFoundError, NotADirectoryError):
        return None


def recorded(folder: Path, experiment: Experiment | None = None) -> tuple[dict[str, Any], Identity]:
    """Return the settings in the experiment.json of a run's folder, and the run that the folder belongs to.

    With `experiment`, the folder of another run raises a `ValueError`.
    """
    try:
        content, stamp = _opened(path := folder / EXPERIMENT)
    except FileNotFoundError:
        raise ValueError(f"{folder} is not the folder of a run: it has no {EXPERIMENT}") from None
    if experiment is not None:
        _check(path, stamp, Identity(experiment.folder, None))
    return content, Identity(stamp["run"], stamp["initial"])


def load_mask(folder: Path, owner: Identity, model: nn.Module | None = None) -> tuple[Masks, dict[str, Any]]:
    """Return the masks of a run and what their file says about them; they must belong to this run."""
    verified(folder / MASK, owner)
    with explained(folder / MASK):
        found, about = masks.load_masks(folder / MASK, model)
    return found, about | {"empty": empty(found), "layers": len(found)}


def verified(path: Path, owner: Identity) -> dict[str, Any]:
    """Return the metadata of a file with tensors; it must be undamaged and belong to this run."""
    with explained(path):
        about = container.read(path, *FORMATS[path.name])[1]
        if misfit(about.get("metrics"), MARK):
            raise ValueError(f"{path} does not say which metrics of its run it follows")
    _check(path, about.get("run"), owner)
    return about


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Add to each error about a file of a run how to go on."""
    try:
        yield
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; {REMEDIES[path.name]}") from None
    except ValueError as error:
        raise ValueError(f"{error}; {REMEDIES[path.name]}") from None


def progress(folder: Path) -> str:
    """Return the progress of a run, in words.

    >>> progress(Path("no/such/folder"))
    'not begun'
    """
    if finished(folder) is not None:
        return "finished"
    lines = read_metrics(folder / METRICS, recorded(folder)[1] if (folder / EXPERIMENT).exists() else None)
    if (folder / MASK).exists():
        epochs = [line for line in lines if line["stage"] == "train"]
        return f"pruned; trained {epochs[-1]['epoch']} of {epochs[-1]['epochs']} epochs" if epochs else "pruned"
    if lines:
        last = lines[-1]
        unit = "round" if last["stage"] == "prune" else "epoch"
        return f"{last['stage']}: {last[unit]} of {last[unit + 's']} {unit}s"
    return "begun" if folder.exists() else "not begun"


def read_json(path: Path, owner: Identity | None = None) -> dict[str, Any]:
    """Read one of the JSON files of a run; it must be undamaged and belong to this run, if one is named."""
    content, stamp = _opened(path)
    if owner is not None:
        _check(path, stamp, owner)
    return content


def _check(path: Path, stamp: Any, owner: Identity) -> None:
    if problem := owner.problem(stamp, path.name):
        raise ValueError(f"{path} {problem}; {REMEDIES[path.name]}")


def _opened(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the content and the stamp of a JSON file, both of which have their form and fit each other."""
    try:
        content, stamp = unsealed(json.loads(path.read_text(encoding="utf-8")))
        if wrong := misfit(content, FORMS[path.name]):
            raise ValueError(wrong)
        settings = content if path.name == EXPERIMENT else content.get("experiment")
        run = stamp.get("run") if settings is None else folder_of(Experiment.settings(settings))
        if problem := Identity(str(run), None).problem(stamp, path.name):
            raise ValueError(f"it {problem}")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); {REMEDIES[path.name]}") from None
    return content, stamp


def write_json(path: Path, content: Mapping[str, Any], owner: Identity) -> None:
    """Write one of the JSON files of a run, atomically, with its seal."""
    text = json.dumps(sealed(content, owner.stamp(path.name)), indent=2)
    with container.atomically(path) as file:
        file.write((text + "\n").encode())
