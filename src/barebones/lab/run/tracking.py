"""Tracking: the lines of metrics go to TensorBoard, wandb or mlflow too, each line once."""

import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import time
from typing import Any

from ...messages import first_line
from ..experiment.experiment import Experiment
from .folder import TRACKED, Folder
from .metrics import COUNTED, Line

PROJECT = "barebones"  # the project or experiment that holds all tracked runs


Axis = tuple[str, int]  # for example ("train/epoch", 0)


@dataclass(frozen=True)
class Run:
    """What a tracker needs to know about a run."""

    path: Path  # its folder
    settings: dict[str, Any]
    id: str | None  # of the tracked run, if the run was tracked before


@dataclass(frozen=True)
class Tracked:
    """A tracked run that is open. It has already seen so many lines, which are not sent again."""

    log: Callable[[int, Axis, dict[str, float]], None]  # a line: its place in the file, its round or epoch, its numbers
    close: Callable[[bool], None]  # whether the run has come to its end
    id: str | None = None
    seen: int = 0


class Tracking:
    """Sends lines of metrics to a tracker. A resumed run continues its tracked run, where the last line has arrived.

    Points that were tracked after the last checkpoint of a killed run stay as they are: the lines that the resumed run
    writes in their place are not sent.
    """

    def __init__(self, name: str, folder: Folder, experiment: Experiment) -> None:
        self.name, self.folder = name, folder
        self.settings = {name: value for name, value in experiment.to_dict().items() if value is not None}
        self.tracked: Tracked | None = None

    def begin(self, lines: Sequence[Line]) -> None:
        """Open the tracked run, and send the lines that it has not seen."""
        self.close(False)
        path = self.folder.path
        ids = self.folder.read(TRACKED) if (path / TRACKED).exists() else {}
        known = ids.get(self.name)
        remedy = f"delete {path / TRACKED} to track it as a new one" if known else REMEDIES[self.name]
        with _one_sentence(self.name, remedy):
            self.tracked = TRACKERS[self.name](Run(path, self.settings, known))
        if self.tracked.id is not None:
            self.folder.write(TRACKED, ids | {self.name: self.tracked.id})
        for index, line in enumerate(lines):
            self.log(index, line)

    def log(self, index: int, line: Line) -> None:
        """Send one line, unless the tracker has it."""
        assert self.tracked is not None
        if index >= self.tracked.seen:
            stage, counted = line["stage"], COUNTED[line["stage"]]
            numbers = {f"{stage}/{name}": value for name, value in _numbers(line) if name.rstrip("s") != counted}
            with _one_sentence(self.name, "the same command resumes the run"):
                self.tracked.log(index, (f"{stage}/{counted}", line[counted]), numbers)

    def close(self, finished: bool) -> None:
        """Close the tracked run, if it is open."""
        if self.tracked is not None:
            tracked, self.tracked = self.tracked, None
            tracked.close(finished)


def check(name: str) -> None:
    """Raise an error unless there is a tracker of this name, and its package is installed."""
    if name not in TRACKERS:
        raise ValueError(f"tracker {name!r} is unknown; choose {', '.join(TRACKERS)}")
    if find_spec(name) is None:
        raise ImportError(f"--track {name} needs the package {name}: pip install 'barebones[{name}]'")


@contextmanager
def tracking(name: str, folder: Folder, experiment: Experiment) -> Iterator[Tracking]:
    """Track a run while the block is executed."""
    track, finished = Tracking(name, folder, experiment), False
    try:
        yield track
        finished = True
    finally:
        track.close(finished)


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


def _tensorboard(run: Run) -> Tracked:
    """Write a new log, in the run's folder."""
    from torch.utils.tensorboard import SummaryWriter

    shutil.rmtree(run.path / "tensorboard", ignore_errors=True)
    writer = SummaryWriter(str(run.path / "tensorboard"))

    def log(index: int, axis: Axis, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, axis[1])
        writer.flush()

    return Tracked(log, lambda finished: writer.close())


def _wandb(run: Run) -> Tracked:
    """Log to a server; or offline to a new log in the run's folder, as nobody can ask what an old one has."""
    import wandb

    opened = wandb.init(
        project=PROJECT, name=run.path.name, id=run.id or secrets.token_hex(8), config=run.settings, dir=run.path,
        resume="allow", reinit="create_new", settings=wandb.Settings(silent=True, console="off"),
    )  # fmt: skip
    for stage, counted in COUNTED.items():
        opened.define_metric(f"{stage}/*", step_metric=f"{stage}/{counted}")
    for other in (run.path / "wandb").glob("offline-run-*") if opened.offline else ():
        if not other.samefile(Path(opened.dir).parent):
            shutil.rmtree(other)

    def log(index: int, axis: Axis, numbers: dict[str, float]) -> None:
        opened.log(dict([axis]) | numbers, step=index)

    return Tracked(log, lambda finished: opened.finish(exit_code=int(not finished)), opened.id, opened.step)


def _mlflow(run: Run) -> Tracked:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient()  # without mlflow's own "active run", of which there is one per process
    identifier = run.id
    if identifier is None:
        experiment = client.get_experiment_by_name(PROJECT)
        place = client.create_experiment(PROJECT) if experiment is None else experiment.experiment_id
        identifier = client.create_run(place, run_name=run.path.name).info.run_id
        client.log_batch(identifier, params=[Param(name, str(value)) for name, value in run.settings.items()])
    client.update_run(identifier, status="RUNNING")

    def log(index: int, axis: Axis, numbers: dict[str, float]) -> None:
        now = int(1000 * time())
        last = sorted(numbers, key=lambda name: name.endswith("/seconds"))  # a line has arrived when this has
        client.log_batch(identifier, [Metric(name, numbers[name], now, axis[1]) for name in last])

    def close(finished: bool) -> None:
        client.set_terminated(identifier, "FINISHED" if finished else "KILLED")

    seen = sum(len(client.get_metric_history(identifier, f"{stage}/seconds")) for stage in COUNTED)
    return Tracked(log, close, identifier, seen)


TRACKERS: dict[str, Callable[[Run], Tracked]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
}
REMEDIES = {
    "tensorboard": "leave out --track",
    "wandb": "log in with wandb login, or set WANDB_MODE=offline",
    "mlflow": "set MLFLOW_TRACKING_URI to a server, or to a database if all of mlflow is installed",
}


def _numbers(line: Line, prefix: str = "") -> list[tuple[str, float]]:
    numbers: list[tuple[str, float]] = []
    for name, value in line.items():
        if isinstance(value, dict):
            numbers += [] if name == "layers" else _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            numbers.append((prefix + name, float(value)))
    return numbers
