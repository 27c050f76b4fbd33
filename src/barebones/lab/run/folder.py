"""A run's folder: the names of its files, its owner, its record and result, and the progress of the run."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ...files import container, masks, weights
from ...masks import Masks, empty
from ..experiment.experiment import Experiment, folder_of
from ..experiment.styles import look, remember
from . import checksums
from .checksums import check_stamp, stamp
from .checksums import write as write_json
from .lock import Busy, Lock, is_lock, locked
from .metrics import METRICS, REMEDY
from .metrics import read as read_metrics

EXPERIMENT, RESULT, FAILURE = "experiment.json", "result.json", "failure.json"
MASK, WEIGHTS = "mask.safetensors", "weights.safetensors"
PRETRAINED = "pretrained.safetensors"
ROUND, PRETRAINING, CHECKPOINT = "round.safetensors", "pretraining.safetensors", "checkpoint.safetensors"  # to resume
TRACKED = "tracked.json"  # the ids that trackers know the run by

REMEDIES = {  # all files of a run, in the order of deleting; and how to go on if one is damaged or of another run
    RESULT: "delete it and run the experiment again, which trains from the start",
    WEIGHTS: f"delete the {RESULT} beside it and run the experiment again, which trains from the start",
    CHECKPOINT: "delete it and run the experiment again, which trains from the start",
    MASK: REMEDY,
    ROUND: "delete it and run the experiment again, which prunes from the start",
    PRETRAINED: REMEDY,
    PRETRAINING: "delete it and run the experiment again, which pretrains from the start",
    METRICS: REMEDY,
    TRACKED: "delete it and run the experiment again, which is then tracked as a new run",
    FAILURE: "delete it and run the experiment again",
    EXPERIMENT: "move its folder away and run the experiment again",
}


@dataclass(frozen=True)
class Folder:
    """The folder of a run that this process owns; `run` is the name that its settings give it."""

    path: Path
    run: str
    lock: Lock

    @contextmanager
    def writing(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the metadata of a file that is written within; it is put in place if this process owns the folder."""
        self.lock.check()
        with container.put_only_if(self.lock.check):
            yield {"run": stamp(self.run, name)}

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        with self.writing(name):
            write_json(self.path / name, content, self.run)

    def delete(self, name: str) -> None:
        self.lock.check()
        (self.path / name).unlink(missing_ok=True)


@contextmanager
def reserved(path: Path, experiment: Experiment, initial: str) -> Iterator[Folder]:
    """Make the run's folder and own it; `initial` has the digests of weights, data and method that it begins with."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    fresh = all(is_lock(file.name) for file in path.iterdir())  # new, or emptied by --overwrite
    with locked(path) as lock:
        try:
            for unfinished in path.glob(f".{16 * '[0-9a-f]'}.tmp"):  # a process was killed while it wrote them
                unfinished.unlink(missing_ok=True)
            folder = Folder(path, experiment.folder, lock)
            if not (path / EXPERIMENT).exists():
                about = {"experiment": experiment.to_dict(), "look": look(experiment.method)._asdict()}
                folder.write(EXPERIMENT, about | {"initial": initial})
            check_initial(path, experiment, initial)
            yield folder
        except Exception as error:
            if fresh and path.is_dir() and not isinstance(error, Busy) and _untouched(path):  # it was refused
                shutil.rmtree(path, ignore_errors=True)
                for parent in missing[1:]:
                    if parent.is_dir() and not any(parent.iterdir()):
                        parent.rmdir()
            raise


def check_initial(path: Path, experiment: Experiment, initial: str) -> None:
    known = read_json(path / EXPERIMENT, experiment.folder)["initial"]
    if known != initial:
        names = (experiment.model, experiment.data, experiment.method)
        parts = zip(names, *(f"{each}++".split("+")[:3] for each in (known, initial)), strict=True)
        *_, changed = (name for name, before, now in parts if before != now)  # other data may have another network
        raise ValueError(
            f"{changed} has changed since {path} was written; delete that folder, or pass --overwrite to run anew; "
            "to keep it, rename what you have changed, or choose another folder with --runs"
        )


def _untouched(path: Path) -> bool:
    """Return whether a run has done nothing yet: no round or epoch is in its metrics, and it has saved nothing."""
    names = {file.name for file in path.iterdir() if file.is_file()}
    begun = METRICS in names and (path / METRICS).read_bytes().count(b"\n") > 1  # the first line names the run
    return not begun and all(name in (EXPERIMENT, METRICS) or is_lock(name) for name in names)


def emptied(path: Path) -> None:
    """Delete the files of a run, if there are any, and nothing else that is in its folder."""
    if path.is_symlink():
        raise ValueError(f"{path} is a link, and what it leads to may not be a run; delete the link first")
    if not path.is_dir() or all(is_lock(file.name) for file in path.iterdir()):
        return
    known = [path / name for name in (EXPERIMENT, FAILURE) if (path / name).is_file()]
    if not known:
        raise ValueError(f"{path} is not the folder of a run: it has no {EXPERIMENT}; move it away")
    read_json(known[0], path.name)  # it must be of this run
    with locked(path):
        for name in REMEDIES:  # the result first: a run without it is unfinished
            (path / name).unlink(missing_ok=True)


def finished(folder: Path, experiment: Experiment | None = None) -> dict[str, Any] | None:
    """Return the result of a finished run, which must be whole and of this run; None if the run is not finished."""
    return _ending(folder, RESULT, experiment.folder if experiment is not None else None)


def failed(folder: Path) -> dict[str, Any] | None:
    """Return why a sweep could not finish the run; None if it did not fail."""
    return _ending(folder, FAILURE)


def _ending(folder: Path, name: str, run: str | None = None) -> dict[str, Any] | None:
    if run is None and (folder / EXPERIMENT).exists():  # a run may fail before it is written
        run = recorded(folder)[1]
    with suppress(FileNotFoundError, NotADirectoryError):
        return read_json(folder / name, run)
    return None


def recorded(folder: Path) -> tuple[dict[str, Any], str]:
    """Return the settings in the experiment.json of a run's folder, and the name of the run, which they give."""
    try:
        content = read_json(folder / EXPERIMENT)
    except FileNotFoundError:
        raise ValueError(f"{folder} is not the folder of a run: it has no {EXPERIMENT}") from None
    settings = Experiment.settings(content["experiment"])
    remember(settings["method"], content.get("look"))
    return settings, folder_of(settings)


def load_mask(folder: Path, run: str, model: nn.Module | None = None, evolved: bool = False) -> Masks:
    """Return the masks of a run, with what their file says about them; they must belong to this run.

    With `evolved`, those that it ended with, if it has ended.
    """
    with reading(folder / MASK, run):
        found = masks.load_masks(folder / MASK, model)
    if evolved and (folder / WEIGHTS).exists():
        with reading(folder / WEIGHTS, run):
            found.update(weights.load_weights(folder / WEIGHTS).masks)
    found.about |= (found.about.get("account") or {}) | {"empty": empty(found), "layers": len(found)}
    return found


@contextmanager
def reading(path: Path, run: str) -> Iterator[dict[str, Any]]:
    """Yield the metadata of a file with tensors, which is there when the file is read within.

    That reading checks that the file belongs to this run. Each error about the file says how to go on.
    """
    about: dict[str, Any] = {}

    def check(found: dict[str, Any]) -> None:
        check_stamp(path, found.get("run"), run)
        about.update(found)

    with explained(path), container.checked_by(check):
        if not path.exists():
            raise ValueError(f"{path} is missing")
        yield about


def read_json(path: Path, run: str | None = None) -> dict[str, Any]:
    """Read one of the JSON files of a run, which must be as it was written; with `run`, it must belong to this run."""
    with explained(path):
        return checksums.read(path, run)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Add to each error about a file of a run how to go on."""
    try:
        yield
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
