"""Gathering: what a report needs of every run folder, in plain values; what cannot be read is said, not raised."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import nn

from ...accounting import Layer, account
from ...data import DATA
from ...files.masks import load_masks
from ...masks import Masks
from ...models import MODELS, build
from ..experiment import DENSE, Experiment
from ..folder import EXPERIMENT, MASK, RESULT, progress
from ..metrics import COUNTED, Line
from ..metrics import read as read_metrics
from ..records import DONE, FAILED, FAILURE, SETTINGS, UNREADABLE, Row, read, record

UNFINISHED = "unfinished"
METRICS = "metrics.jsonl"
MOST = 150  # points of a series; longer ones are thinned out
DEEPEST = 6  # folders within folders
NAMED = 6  # layers in a sentence
KEY = ("data", "model", "method", "sparsity")  # what everybody sees of a run; the other settings are details
TROUBLE = (ValueError, TypeError, KeyError, AttributeError, OSError, RuntimeError, RecursionError)

Watch = Callable[[int, int], None]


def gather(runs: Path, effective: bool = True, watch: Watch = lambda done, total: None) -> dict[str, Any]:
    """Every run under a folder, and the groups of those that differ in the seed alone."""
    if not runs.is_dir():
        raise ValueError(f"there is no folder {runs}; name the one that holds the run folders")
    folders = sorted(_folders(runs, set(), 0))
    if not folders:
        raise ValueError(f"there is no run in {runs}; barebones run and barebones sweep make some")
    found: list[Row] = []
    for folder in folders:
        watch(len(found), len(folders))
        name = folder.name if folder == runs else folder.relative_to(runs).as_posix()
        found.append(one(folder, name, effective))
    watch(len(found), len(folders))
    found.sort(key=_order)
    groups = _groups(found)
    return {
        "title": runs.resolve().name,
        "runs": [{"index": index, **run} for index, run in enumerate(found)],
        "groups": groups,
        "settings": list(SETTINGS),
    }


def _folders(folder: Path, seen: set[Path], depth: int) -> Iterator[Path]:
    """The run folders in it, however deep, or itself; none twice."""
    real = folder.resolve()
    if real in seen or depth > DEEPEST:
        return
    seen.add(real)
    try:
        inside = sorted(folder.iterdir())
        if any(path.name in (EXPERIMENT, RESULT, FAILURE, MASK, METRICS) for path in inside):
            yield folder
            return
        for path in inside:
            if path.is_dir() and not path.name.startswith("."):
                yield from _folders(path, seen, depth + 1)
    except OSError:
        if depth:  # a folder that may not be read is named, as a run that cannot be
            yield folder
        else:
            raise


def _order(run: Row) -> list[tuple[bool, Any]]:
    settings = run["settings"] or {}
    return [((value := settings.get(name)) is None, value) for name in (*KEY, "seed")] + [(False, run["folder"])]


def one(folder: Path, name: str, effective: bool = True) -> Row:
    """All about one run folder."""
    reading = _Reading(folder)
    row = reading.part(RESULT, lambda: record(folder)) or {}
    settings = _chosen(row) or reading.part(EXPERIMENT, lambda: _settings(folder))
    status = row.get("status") or (UNFINISHED if settings else UNREADABLE)
    if row.get("status") == UNREADABLE:
        reading.problems.append(str(row["reason"]))
    lines = reading.part(METRICS, lambda: _lines(folder)) or []
    mask = reading.part(MASK, lambda: _mask(folder, settings, effective)) or {}
    result = {} if status != DONE else reading.part(RESULT, lambda: read(folder / RESULT)) or {}
    numbers = {**mask.get("stated", {}), **result, **mask.get("counted", {})}
    seconds = {"prune": row.get("prune_seconds"), "train": row.get("train_seconds")}
    if seconds["prune"] is None:
        seconds["prune"] = mask.get("seconds")
    collapsed = _names(result.get("collapsed", mask.get("collapsed")))
    run: Row = {
        "folder": name,
        "status": status,
        "state": "finished" if status == DONE else reading.part(METRICS, lambda: _progress(folder)) or "",
        "settings": settings,
        "accuracy": row.get("top1"),
        "top5": row.get("top5"),
        "best_validation": row.get("best_validation"),
        "best_validation_epoch": row.get("best_validation_epoch"),
        "accuracy_at_best_validation": row.get("top1_at_best_validation"),
        "seconds": seconds,
        **{key: _number(numbers.get(key)) for key in NUMBERS},
        "collapsed": collapsed,
        "layers": mask.get("layers", []),
        "series": {stage: _series(stage, lines) for stage in COUNTED},
        "environment": _flat(result.get("environment")),
        "problems": reading.problems,
    }
    run["words"] = _words(run, row, mask)
    return _finite(run)


NUMBERS = (
    *("prunable", "kept", "effective", "sparsity", "effective_sparsity"),
    *("flops_dense", "flops_effective", "flops_shrunk"),
)


class _Reading:
    """Of the files of a folder; what goes wrong is a sentence in `problems`, without the folder's path."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.problems = folder, list[str]()

    def part(self, name: str, read: Callable[[], Any]) -> Any:
        """What `read` returns; None where it fails or there is no such file."""
        try:
            return read()
        except FileNotFoundError:
            return None
        except TROUBLE as error:
            said = f"it has no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
            if isinstance(error, OSError) and error.strerror:
                said = error.strerror
            said = said.replace(f"{self.folder}/", "").splitlines()[0][:300]
            said = said if said.startswith(name) else f"{name}: {said}"
            if said not in self.problems:
                self.problems.append(said)
            return None


def _chosen(row: Row) -> Row | None:
    return {name: row[name] for name in SETTINGS} if row.get("method") is not None else None


def _settings(folder: Path) -> Row:
    return Experiment.settings(read(folder / EXPERIMENT))


def _lines(folder: Path) -> list[Line]:
    path = folder / METRICS
    lines = read_metrics(path)
    if not lines and path.exists() and path.stat().st_size:
        raise ValueError("its first line is no line of metrics")
    return lines


def _progress(folder: Path) -> str:
    try:
        return progress(folder)
    except KeyError:
        return "begun"


def _mask(folder: Path, settings: Row | None, effective: bool) -> Row:
    """What the mask file says, and what its masks keep of each layer."""
    masks, about = load_masks(folder / MASK)
    layers = [Layer(name, tuple(m.shape), m.numel(), int(m.count_nonzero())) for name, m in masks.items()]
    dense = settings is not None and settings["method"] == DENSE
    note = None
    if effective and settings is not None and not dense:
        try:
            layers = _followed(masks, settings)
        except TROUBLE as error:
            note = str(error).splitlines()[0][:300]
    stated: Row = said if isinstance(said := about.get("account"), dict) else {}
    total, kept = sum(layer.total for layer in layers), sum(layer.kept for layer in layers)
    own: Row = {"prunable": total, "kept": kept, "sparsity": (total - kept) / max(total, 1)}
    if all(layer.effective is not None for layer in layers) and layers:
        count = sum(layer.effective or 0 for layer in layers)
        own |= {"effective": count, "effective_sparsity": (total - count) / max(total, 1)}
    return {
        "stated": stated,
        "counted": own,
        "collapsed": about.get("collapsed"),
        "seconds": _number(about.get("seconds")),
        "note": note or stated.get("not_followed"),
        "layers": [] if dense else [[la.name, list(la.shape), la.total, la.kept, la.effective] for la in layers],
    }


def _followed(masks: Masks, settings: Row) -> list[Layer]:
    """The layers with their effective weights, by following the network from input to output, on the CPU."""
    if settings["model"] not in MODELS:  # whatever a stranger's run folder names is not imported
        raise ValueError("the network is not one of barebones's own, so its layers are not followed here")
    data = DATA[settings["data"]]
    example = torch.zeros(1, data.channels, data.size, data.size)
    return account(_network(settings["model"], settings["data"]), masks, example).layers


@lru_cache(maxsize=2)
def _network(model: str, data: str) -> nn.Module:
    """Of any weights: only its shape matters."""
    with torch.random.fork_rng(devices=[]):
        return build(model, *DATA[data].dimensions)


FIELDS = {  # of a line of metrics
    "prune": ("keep", "pruned", "recovered", "recovered_empty", "saliency", "loss"),
    "pretrain": ("loss", "accuracy", "lr"),
    "train": ("loss", "accuracy", "lr"),
}


def _series(stage: str, lines: Sequence[Line]) -> Row | None:
    """The numbers of a stage as columns, thinned out; `at` counts from 1, as people do."""
    own = [line for line in lines if line["stage"] == stage]
    if not own:
        return None
    counted = COUNTED[stage]
    shown = [own[index] for index in thinned(len(own))]
    columns: Row = {"all": len(own), "planned": _number(own[-1].get(counted + "s"))}
    columns["at"] = [int(line[counted]) + 1 for line in shown]
    for name in FIELDS[stage]:
        columns[name] = [_short(_number(line.get(name))) for line in shown]
    if stage == "prune":
        return columns
    for name in ("validation", "test"):
        parts = [line.get(name) for line in shown]
        columns[name] = [_short(_number(part.get("top1"))) if isinstance(part, dict) else None for part in parts]
    return columns


def thinned(length: int, most: int = MOST) -> list[int]:
    """At most so many of the indices, evenly spread, with the first and the last.

    >>> thinned(3), thinned(7, 3), thinned(0)
    ([0, 1, 2], [0, 3, 6], [])
    """
    if length <= most:
        return list(range(length))
    return [round(i * (length - 1) / (most - 1)) for i in range(most)]


def _words(run: Row, row: Row, mask: Row) -> list[list[str]]:
    """What is to be said of a run: how urgent, and the sentence."""
    said = []
    if run["status"] == FAILED:
        said.append(["bad", f"It failed: {row.get('reason')}"])
    if run["status"] == UNFINISHED:
        said.append(["note", f"It is not finished ({run['state'] or 'begun'})."])
    said += [["bad", f"Not readable: {problem}."] for problem in run["problems"]]
    if run["collapsed"]:
        said.append(["bad", f"Collapsed: no signal passes from input to output, cut at {_listed(run['collapsed'])}."])
    layers = run["layers"]
    if dead := [layer[0] for layer in layers if layer[2] and layer[3] == 0]:
        one = len(dead) == 1
        said.append(
            ["warn", f"{'A dead layer' if one else f'{len(dead)} dead layers'}, with no weight left: {_listed(dead)}."]
        )
    idle = [layer[0] for layer in layers if layer[3] and layer[4] == 0]
    if idle and run["effective"] != 0:  # else it is all of them
        one = len(idle) == 1
        begin = "An idle layer, whose" if one else f"{len(idle)} idle layers, whose"
        said.append(["warn", f"{begin} weights lie on no path from input to output: {_listed(idle)}."])
    if run["kept"] is not None and layers:
        kept, total, effective = int(run["kept"]), int(run["prunable"] or 0), run["effective"]
        said.append(["plain", f"{kept:,} of {total:,} prunable weights are left."])
        if effective is not None and kept:
            lost = kept - int(effective)
            share = f"{lost:,} of them ({100 * lost / kept:.1f} %) lie on no path from input to output and do nothing."
            if lost == kept:
                said.append(["bad", "None of them lies on a path from input to output, so they do nothing."])
            else:
                said.append(["plain", share if lost else "All of them lie on a path from input to output."])
    if layers and not (dead or idle or run["collapsed"]):
        passes = ", and a signal passes" if run["effective"] else ""
        said.append(["good", f"Every layer keeps weights{passes}."])
    if (run["settings"] or {}).get("method") == DENSE:
        said.append(["plain", "Nothing is pruned: this is the dense network."])
    if mask.get("note"):
        said.append(["note", f"No effective weights per layer: {mask['note']}."])
    return [[kind, sentence.replace("..", ".") if sentence.endswith("..") else sentence] for kind, sentence in said]


def _listed(names: Sequence[str]) -> str:
    short = [name.removesuffix(".weight") for name in names]
    more = f" and {len(short) - NAMED} more" if len(short) > NAMED else ""
    return ", ".join(short[:NAMED]) + more


def _groups(runs: Sequence[Row]) -> list[Row]:
    """The runs that differ in the seed alone, with mean and deviation over the seeds that are done."""
    parts: dict[Any, list[int]] = {}
    for index, run in enumerate(runs):
        settings = run["settings"]
        key: Any = index if settings is None else tuple(settings[name] for name in SETTINGS if name != "seed")
        parts.setdefault(key, []).append(index)
    members = list(parts.values())
    firsts = [runs[indices[0]]["settings"] for indices in members]
    return [_group(indices, runs, firsts) | {"index": number} for number, indices in enumerate(members)]


def _group(indices: Sequence[int], runs: Sequence[Row], others: Sequence[Row | None]) -> Row:
    own = [runs[index] for index in indices]
    settings = own[0]["settings"]
    seeds = {(run["settings"] or {}).get("seed"): run for run in own if run["status"] == DONE}  # a copy counts once
    done = [run for run in seeds.values() if run["accuracy"] is not None]
    accuracies = [run["accuracy"] for run in done]
    states = [run["status"] for run in own]
    group: Row = {name: None if settings is None else settings[name] for name in KEY}
    return group | {
        "runs": list(indices),
        "variant": "" if settings is None else variant(settings, others),
        "accuracy": _mean(accuracies),
        "deviation": stdev(accuracies) if len(accuracies) > 1 else None,
        "seeds": len(accuracies),
        "effective_sparsity": _mean([run["effective_sparsity"] for run in done]),
        "prune_seconds": _mean([run["seconds"]["prune"] for run in done]),
        "train_seconds": _mean([run["seconds"]["train"] for run in done]),
        "collapsed": sum(bool(run["collapsed"]) for run in own),
        "states": {state: states.count(state) for state in (DONE, UNFINISHED, FAILED, UNREADABLE) if state in states},
    }


def variant(settings: Mapping[str, Any], others: Sequence[Mapping[str, Any] | None]) -> str:
    """The settings that tell a group from others of the same data, network and method.

    >>> base = dict.fromkeys(SETTINGS) | {"data": "digits", "method": "force", "rounds": 60}
    >>> variant(base, [base, {**base, "rounds": 300}, {**base, "sparsity": 0.5}, None])
    'rounds 60'
    """
    alike = ("data", "model", "method")
    same = [other for other in others if other is not None and all(other[n] == settings[n] for n in alike)]
    names = [n for n in SETTINGS if n not in (*KEY, "seed") and any(other[n] != settings[n] for other in same)]
    told = (str(settings[name])[:12] if name == "mask" else settings[name] for name in names)
    return ", ".join(f"{name.replace('_', '-')} {value}" for name, value in zip(names, told, strict=True))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _number(value: Any) -> float | int | None:
    """The value if it is a number that JSON can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        return None


def _short(value: float | int | None) -> float | int | None:
    """With five digits, which is more than a chart shows."""
    return value if value is None or isinstance(value, int) else float(f"{value:.5g}")


def _names(value: Any) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def _flat(value: Any) -> Row:
    return {str(k): v for k, v in value.items() if isinstance(v, str | int | float)} if isinstance(value, dict) else {}


def _finite(value: Any) -> Any:
    """With None for the numbers that JSON has no word for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list) else value
