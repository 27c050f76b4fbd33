"""Sources: where the rows of a figure come from. Either runs, swept where they are missing, or an analysis."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ...lab import records, tidy
from ...lab.experiment import Experiment
from ...lab.options import RunOptions
from ...lab.run import Stopped
from ...lab.sweep import sweep
from ...lab.tidy import Row, Rows

SCALES = ("smoke", "short", "paper")
ALONE = "alone"  # the folder, within that of the runs, of those that run one at a time
DEVICE_ONLY = ("precision", "scoring_precision")  # what follows from the device, not from the figure
COLUMNS = (
    "data", "model", "method", "sparsity", "seed", "rounds", "batches", "pretrain", "epochs", "top1", "top5",
    "top1_at_best_validation", "effective_sparsity", "collapsed", "prune_seconds", "train_seconds",
)  # fmt: skip
Settings = Mapping[str, Any]

# Seconds of an epoch on one H200, with four side by side: (data, network). The CIFAR ones of ResNet-50 and VGG-19 were
# measured (benchmarks/lab.md), the others follow from their multiplications and images, and are no better than that.
SECONDS = {
    ("cifar10", "resnet50"): 3.0, ("cifar10", "vgg19"): 0.66, ("cifar10", "mobilenet-v2"): 1.5,
    ("cifar100", "resnet50"): 3.0, ("cifar100", "vgg19"): 0.66,
    ("tiny-imagenet", "resnet50"): 27.0, ("tiny-imagenet", "vgg19"): 6.0,
    ("imagenet", "resnet50"): 600.0, ("imagenet", "vgg19"): 1200.0,
}  # fmt: skip
PRUNING = 15.0  # seconds, about, to a mask there
SMOKE = (8.0, 0.7)  # seconds on a CPU, about: to start and draw, and of each run


@dataclass(frozen=True)
class Work:
    """What a source needs to work with."""

    place: RunOptions
    console: Console
    jobs: int | None = None
    retry_failed: bool = False
    stopping: Callable[[], bool] = lambda: False
    failed: list[str] = field(default_factory=list)  # figures that lack something


@dataclass(frozen=True)
class Runs:
    """Experiments that are pruned, trained and tested; their records become rows."""

    experiments: Callable[[str], list[Experiment]]
    rows: Callable[[Sequence[Row]], Rows]
    free: tuple[str, ...] = ("sparsity", "seed")  # what may differ from the experiments where runs are only drawn
    jobs: int | None = None  # at once; None for as many as fit
    columns: tuple[str, ...] = ("source", *COLUMNS, "mean", "std", "seeds")  # without which it cannot be drawn

    def cost(self, scale: str) -> str:
        """In words."""
        listed = set(self.experiments(scale))
        if scale == "smoke":
            return f"{len(listed)} runs, {SMOKE[0] + len(listed) * SMOKE[1] / (self.jobs or 2):.0f} s"
        hours = sum(_seconds(one) for one in listed) / 3600
        time = f"{hours:.0f} h" if hours >= 10 else f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min"
        return f"{len(listed)} runs, {time}"

    def made(self, name: str, scale: str, work: Work) -> Rows:
        """The rows, after a sweep over what is missing."""
        listed = [one.resolved(work.place.device) for one in self.experiments(scale)]
        place = replace(work.place, runs=self._folder(work.place.runs))
        outcome = sweep(
            listed,
            place,
            jobs=self.jobs or work.jobs,
            retry_failed=work.retry_failed,
            console=work.console,
            stopping=work.stopping,
        )
        if work.stopping() or outcome.stopped:
            raise Stopped
        work.failed.extend([name] * bool(outcome.failed))
        wanted = {one.folder for one in listed}
        done = [row for row in records.records(place.runs) if row["folder"] in wanted]
        return self._rows(name, done, place.runs)

    def _folder(self, runs: Path) -> Path:
        """Where its runs are. Those whose times are told share no device, and so no folder, with those of others."""
        return runs / ALONE if self.jobs == 1 else runs

    def found(self, name: str, scale: str, folder: Path, work: Work) -> Rows:
        """The rows of the runs in a folder that belong to the figure; nothing is run, and failed ones are told."""
        folder = self._folder(folder) if self._folder(folder).is_dir() else folder
        kinds = {_kind(one.resolved().to_dict(), self.free) for one in self.experiments(scale)}
        own = [row for row in records.records(folder) if row["method"] and _kind(row, self.free) in kinds]
        rows = self._rows(name, own, folder)
        done = {_kind(row) for row in own if row["status"] == records.DONE}
        work.failed.extend([name] * any(_kind(row) not in done for row in own))
        return rows

    def _rows(self, name: str, found: Iterable[Row], folder: Path) -> Rows:
        done = [row for row in found if row["status"] == records.DONE]
        if not done:
            raise ValueError(f"{folder} holds no finished run of the figure {name}")
        return self.rows(done)


@dataclass(frozen=True)
class Analysis:
    """Numbers that need no training; computed once for each setting and kept as a CSV file beside the runs."""

    compute: Callable[[Settings, RunOptions], Iterator[Row]]
    settings: Mapping[str, Settings]  # of each scale
    costs: Mapping[str, str]
    columns: tuple[str, ...]  # without which it cannot be drawn
    finish: Callable[[Rows], Rows] = field(default=lambda rows: rows)  # adds what needs all rows

    def cost(self, scale: str) -> str:
        """In words."""
        return self.costs[scale]

    def cache(self, name: str, scale: str, folder: Path) -> Path:
        """Where the rows of these settings are kept."""
        told = json.dumps(self.settings[scale], sort_keys=True, default=list)
        return folder / f"{name}-{scale}-{sha256(told.encode()).hexdigest()[:10]}.csv"

    def made(self, name: str, scale: str, work: Work) -> Rows:
        """The rows, computed unless they were before."""
        path = self.cache(name, scale, work.place.runs)
        if path.exists():
            return tidy.read(path, self.columns)
        rows: Rows = []
        with threads(1 if scale == "smoke" else None):
            for row in self.compute(self.settings[scale], work.place):
                rows.append(row)
                if work.stopping():
                    raise Stopped
        rows = self.finish(rows)
        path.parent.mkdir(parents=True, exist_ok=True)
        tidy.write(rows, path)
        return tidy.read(path)

    def found(self, name: str, scale: str, folder: Path, work: Work) -> Rows:
        """The rows that were kept in a folder; nothing is computed."""
        path = self.cache(name, scale, folder)
        if not path.exists():
            raise ValueError(f"{folder} holds neither {name}.csv nor {path.name}, the numbers of the figure {name}")
        return tidy.read(path, self.columns)


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """So many threads of torch: small networks gain nothing by more, and give the same numbers on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _kind(settings: Mapping[str, Any], free: tuple[str, ...] = ()) -> tuple[Any, ...]:
    """What an experiment and a record must agree in."""
    names = [f.name for f in fields(Experiment) if f.name not in (*free, *DEVICE_ONLY)]
    dense = settings["method"] == "dense"  # whose sparsity is none
    return tuple(None if dense and name in ("sparsity", *free) else settings[name] for name in names)


def _seconds(experiment: Experiment) -> float:
    epochs = experiment.resolved().epochs or 0
    return PRUNING + (epochs + experiment.pretrain) * SECONDS.get((experiment.data, experiment.model), 0.1)
