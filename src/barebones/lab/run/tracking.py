"""Tracking: the lines of metrics go to TensorBoard, wandb or mlflow too, each line once."""

import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import time
from typing import Any

from ...messages import first_line
from ..experiment.experiment import Experiment
from .folder import TRACKED, Folder, read_json
from .metrics import COUNTED, Line

PROJECT = "barebones"  # the project or experiment that holds all tracked runs

Axis = tuple[str, int]  # for example ("train/epoch", 0)


@dataclass(frozen=True)
class Tracked:
    """A tracked run that is open. It has already seen so many lines, which are not sent again."""

    log: Callable[[int, Axis, dict[str, float]], None]  # a line: its place in the file, its round or epoch, its numbers
    close: Callable[[bool], None]  # whether the run has come to its end
    id: str | None = None
    seen: int = 0


def check(name: str) -> None:
    """Raise an error unless there is a tracker of this name, and its package is installed."""
    if name not in TRACKERS:
        raise ValueError(f"tracker {name!r} is unknown; choose {', '.join(TRACKERS)}")
    if find_spec(name) is None:
        raise ImportError(f"--track {name} needs the package {name}: pip install 'barebones[{name}]'")


@contextmanager
def tracking(name: str, folder: Folder, experiment: Experiment) -> Iterator[Callable[[int, Line], None]]:
    """Yield a function that sends a line of metrics, with its place among all lines, to a tracker.

    A resumed run continues its tracked run after the last line that has arrived.
    """
    ids = read_json(folder.path / TRACKED, folder.run) if (folder.path / TRACKED).exists() else {}
    known, settings = ids.get(name), {key: value for key, value in experiment.to_dict().items() if value is not None}
    start, remedy = TRACKERS[name]
    with _one_sentence(name, f"delete {folder.path / TRACKED} to track it as a new one" if known else remedy):
        tracked = start(folder.path, settings, known)
    seen, finished = tracked.seen, False

    def track(index: int, line: Line) -> None:
        nonlocal seen
        if index >= seen:
            seen, stage, counted = index + 1, line["stage"], COUNTED[line["stage"]]
            numbers = {f"{stage}/{key}": value for key, value in _numbers(line) if key.rstrip("s") != counted}
            with _one_sentence(name, "the same command resumes the run"):
                tracked.log(index, (f"{stage}/{counted}", line[counted]), numbers)

    try:
        if tracked.id is not None:
            folder.write(TRACKED, ids | {name: tracked.id})
        yield track
        finished = True
    finally:
        tracked.close(finished)


@contextmanager
def _one_sentence(name: str, remedy: str) -> Iterator[None]:
    """Turn the errors of a tracker's own, such as a server that does not answer, into one sentence."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(name):
            raise
        why = first_line(error).split(". ")[0].rstrip(".")
        raise ValueError(f"{name} cannot track the run ({why}); {remedy}") from error


def _tensorboard(folder: Path, settings: dict[str, Any], known: str | None) -> Tracked:
    from torch.utils.tensorboard import SummaryWriter

    shutil.rmtree(folder / "tensorboard", ignore_errors=True)
    writer = SummaryWriter(str(folder / "tensorboard"))

    def log(index: int, axis: Axis, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, axis[1])
        writer.flush()

    return Tracked(log, lambda finished: writer.close())


def _wandb(folder: Path, settings: dict[str, Any], known: str | None) -> Tracked:
    """Log to a server; or offline to a new log in the run's folder, as nobody can ask what an old one has."""
    import wandb

    opened = wandb.init(
        project=PROJECT, name=folder.name, id=known or secrets.token_hex(8), config=settings, dir=folder,
        resume="allow", reinit="create_new", settings=wandb.Settings(silent=True, console="off"),
    )  # fmt: skip
    for stage, counted in COUNTED.items():
        opened.define_metric(f"{stage}/*", step_metric=f"{stage}/{counted}")
    for other in (folder / "wandb").glob("offline-run-*") if opened.offline else ():
        if not other.samefile(Path(opened.dir).parent):
            shutil.rmtree(other)

    def log(index: int, axis: Axis, numbers: dict[str, float]) -> None:
        opened.log(dict([axis]) | numbers, step=index)

    return Tracked(log, lambda finished: opened.finish(exit_code=int(not finished)), opened.id, opened.step)


def _mlflow(folder: Path, settings: dict[str, Any], known: str | None) -> Tracked:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient()  # without mlflow's own "active run", of which there is one per process
    identifier = known
    if identifier is None:
        experiment = client.get_experiment_by_name(PROJECT)
        place = client.create_experiment(PROJECT) if experiment is None else experiment.experiment_id
        identifier = client.create_run(place, run_name=folder.name).info.run_id
        client.log_batch(identifier, params=[Param(name, str(value)) for name, value in settings.items()])
    client.update_run(identifier, status="RUNNING")

    def log(index: int, axis: Axis, numbers: dict[str, float]) -> None:
        now = int(1000 * time())
        last = sorted(numbers, key=lambda name: name.endswith("/seconds"))  # a line has arrived when this has
        client.log_batch(identifier, [Metric(name, numbers[name], now, axis[1]) for name in last])

    def close(finished: bool) -> None:
        client.set_terminated(identifier, "FINISHED" if finished else "KILLED")

    seen = sum(len(client.get_metric_history(identifier, f"{stage}/seconds")) for stage in COUNTED)
    return Tracked(log, close, identifier, seen)


Start = Callable[[Path, dict[str, Any], str | None], Tracked]
TRACKERS: dict[str, tuple[Start, str]] = {  # how to start tracking, and what to do if that fails
    "tensorboard": (_tensorboard, "leave out --track"),
    "wandb": (_wandb, "log in with wandb login, or set WANDB_MODE=offline"),
    "mlflow": (_mlflow, "set MLFLOW_TRACKING_URI to a server, or to a database if all of mlflow is installed"),
}


def _numbers(line: Line, prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in line.items():
        if isinstance(value, dict) and name != "layers":
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield prefix + name, float(value)
