"""Sources of a figure's rows: either runs, of which a sweep makes the missing ones, or an analysis without training."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ...messages import counted, shortened
from ..experiment.experiment import DENSE, Experiment, with_role
from ..records import records, tables
from ..records.tables import Row, Rows
from ..run.heartbeat import heartbeat
from ..run.network import deterministic
from ..run.options import RunOptions
from ..run.run import Stopped
from ..sweep.sweep import sweep

VERSION = 2  # of cached analyses; those of version 1 were not computed with deterministic algorithms
PARTS = ("pairs", "seeds", "sparsities")  # settings of an analysis that divide it into parts, each cached by itself
ALONE = "alone"  # the subfolder for runs that are made one at a time
HOW = with_role("computing")  # how it is computed: this depends on the device, not on the figure
COLUMNS = (
    "data", "model", "method", "sparsity", "seed", "rounds", "batches_per_round", "pretrain", "epochs", "top1", "top5",
    "top1_at_best_validation", "effective_sparsity", "collapsed", "prune_seconds", "train_seconds",
)  # fmt: skip
Settings = dict[str, Any]


@dataclass(frozen=True)
class FigureContext:
    """Everything a source needs besides the figure itself: where to run, where to print, when to stop."""

    options: RunOptions
    console: Console
    jobs: int | None = None
    retry_failed: bool = False
    stopping: Callable[[], bool] = lambda: False
    failed: list[str] = field(default_factory=list)  # names of figures that are incomplete


@dataclass(frozen=True)
class Runs:
    """Experiments that are pruned, trained and tested; their records become the rows of the figure."""

    experiments: Callable[[str], list[Experiment]]
    rows: Callable[[Sequence[Row]], Rows]
    free: tuple[str, ...] = ("sparsity", "seed")  # settings in which stored runs may differ from the experiments
    jobs: int | None = None  # runs at the same time; None for as many as fit
    columns: tuple[str, ...] = ("source", *COLUMNS, "mean", "std", "seeds")  # required to draw the figure

    def compute(self, name: str, scale: str, context: FigureContext) -> Rows:
        """Sweep over the runs that are missing and return the rows of all."""
        listed = [experiment.resolved(context.options.device) for experiment in self.experiments(scale)]
        options = context.options.for_smoke() if scale == "smoke" else context.options
        options = replace(options, runs=self._folder(options.runs))
        outcome = sweep(
            listed,
            options,
            jobs=self.jobs or context.jobs,
            retry_failed=context.retry_failed,
            console=context.console,
            stopping=context.stopping,
        )
        if context.stopping() or outcome.stopped:
            raise Stopped
        if outcome.failed:
            context.failed.append(name)
        wanted = {experiment.folder: experiment.to_dict() for experiment in listed}
        rows = records.records(options.runs)
        stored = [row for row in rows if row["folder"] in wanted and wanted[row["folder"]].items() <= row.items()]
        return self._finished_rows(name, stored, options.runs, rows)

    def load(self, name: str, scale: str, folder: Path) -> tuple[Rows, bool]:
        """Return the rows of the figure's runs that are in a folder, and whether none has failed. Nothing is run."""
        folder = self._folder(folder) if self._folder(folder).is_dir() else folder
        identities = {_identity(each.resolved().to_dict(), self.free) for each in self.experiments(scale)}
        found = records.records(folder)
        stored = [row for row in found if row["method"] and _identity(row, self.free) in identities]
        rows = self._finished_rows(name, _usual_first(stored), folder, found)
        finished = {_identity(row) for row in stored if row["status"] == records.DONE}
        return rows, all(_identity(row) in finished for row in stored)

    def _folder(self, runs: Path) -> Path:
        """Return the folder of its runs. Runs whose time is measured run alone, and have a folder of their own."""
        return runs / ALONE if self.jobs == 1 else runs

    def _finished_rows(self, name: str, stored: Sequence[Row], folder: Path, found: Sequence[Row]) -> Rows:
        finished = [row for row in stored if row["status"] == records.DONE]
        if not finished:
            why = f" ({shortened(lost, most=2)})" if (lost := records.lost(found)) else ""
            raise ValueError(f"{folder} holds no finished run of the figure {name}{why}")
        return self.rows(finished)


@dataclass(frozen=True)
class Analysis:
    """Numbers that need no training, each part cached as CSV beside the runs, so that a stopped analysis resumes."""

    analyse: Callable[[Settings, RunOptions], Iterator[Row]]
    settings: Mapping[str, Settings]  # by scale
    columns: tuple[str, ...]  # required to draw the figure
    finish: Callable[[Rows], Rows] = field(default=lambda rows: rows)  # adds what needs all rows of a part

    def parts(self, scale: str) -> list[Settings]:
        """Return the settings of each network, with each seed and sparsity where the settings list them."""
        settings = self.settings[scale]
        if "seeds" not in settings:
            return [settings]
        lists = {name: settings[name] for name in PARTS if name in settings}
        choices = product(*([[one] for one in values] for values in lists.values()))
        return [settings | dict(zip(lists, choice, strict=True)) for choice in choices]

    def compute(self, name: str, scale: str, context: FigureContext) -> Rows:
        """Return the rows from the cache; compute and cache those that are missing."""
        options = context.options.for_smoke() if scale == "smoke" else context.options
        rows: Rows = []
        told = heartbeat(context.console, lambda: f"{name}: {counted(len(rows), 'row')}")
        with told, threads(1 if scale == "smoke" else None), deterministic():
            for settings in self.parts(scale):
                path = _cache(name, scale, settings, options.runs)
                if not path.exists():
                    before = len(rows)
                    for row in self.analyse(settings, context.options):
                        rows.append(row)
                        if context.stopping():
                            raise Stopped
                    path.parent.mkdir(parents=True, exist_ok=True)
                    tables.write(self.finish(rows[before:]), path)
                    del rows[before:]
                try:
                    rows += tables.read(path, self.columns)
                except ValueError as error:
                    raise ValueError(f"{error}; delete it to compute it again") from None
        return rows

    def load(self, name: str, scale: str, folder: Path) -> tuple[Rows, bool]:
        """Return the rows that are cached in a folder, and whether they are all. Nothing is computed."""
        paths = [_cache(name, scale, settings, folder) for settings in self.parts(scale)]
        stored = [path for path in paths if path.exists()]
        if not stored:
            raise ValueError(f"{folder} holds neither {name}.csv nor files such as {paths[0].name}")
        return [row for path in stored for row in tables.read(path, self.columns)], stored == paths


def _cache(name: str, scale: str, settings: Settings, folder: Path) -> Path:
    text = json.dumps({"version": VERSION, **settings}, sort_keys=True, default=list)
    return folder / f"{name}-{scale}-{sha256(text.encode()).hexdigest()[:10]}.csv"


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Use so many threads of torch inside the block, or as many as before; with one, results repeat everywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _identity(settings: Mapping[str, Any], free: tuple[str, ...] = ()) -> tuple[Any, ...]:
    """Return the settings in which an experiment and a stored run must agree."""
    names = [f.name for f in fields(Experiment) if f.name not in (*free, *HOW)]
    dense = settings["method"] == DENSE  # has no sparsity
    return tuple(None if dense and name == "sparsity" else settings[name] for name in names)


def _usual_first(rows: Sequence[Row]) -> Rows:
    """Order the rows so that, of equal runs, the one comes first that was computed like most others."""
    how = [tuple(row[name] for name in HOW) for row in rows]
    often, place = Counter(how), dict[tuple[Any, ...], int]()
    keys = [(place.setdefault(_identity(row), len(place)), -often[way]) for row, way in zip(rows, how, strict=True)]
    return [row for _, row in sorted(zip(keys, rows, strict=True), key=lambda pair: pair[0])]
