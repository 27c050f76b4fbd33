"""Gathering: collect the data of the page about each run folder, as plain values, and report unreadable files."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ....accounting import Account, LayerAccount, account
from ....data import DATA
from ....files.masks import NUMBERS, load_masks
from ....masks import Masks
from ....messages import shortened
from ....models import MODELS
from ...experiment.experiment import DENSE, SETTLED
from ...experiment.styles import look, titled
from ...records.records import DONE, FAILED, GROUP, KEY, SETTINGS, UNREADABLE, Row, differences, record
from ...run import connectivity
from ...run.folder import CHECKPOINT, EXPERIMENT, FAILURE, MASK, RESULT, finished, load_mask, progress, recorded
from ...run.lock import is_lock
from ...run.metrics import COUNTED, METRICS, Line, finite
from ...run.metrics import read as read_metrics
from ...run.network import built

PRUNED, UNFINISHED = "pruned", "unfinished"
FILES = (EXPERIMENT, RESULT, FAILURE, MASK, METRICS)  # a folder with one of these is a run's
LONGEST = 150  # points of a series; longer series are thinned out
SERIES = {  # the numbers that are drawn of each stage
    "prune": ("keep", "pruned", "recovered", "saliency"),
    "pretrain": ("loss", "accuracy", "validation", "test"),
    "train": ("loss", "accuracy", "validation", "test"),
}
TRAINED = tuple(name for name in SETTINGS if name not in (*SETTLED, "method", "mask", "seed", "shrink"))
"""The data, the network and how it is trained: only runs that share all of these are in one chart."""
MARKS = {  # Plotly's name of each of Matplotlib's markers, and a letter that looks like it
    "o": ("circle", "●"), "s": ("square", "■"), "^": ("triangle-up", "▲"), "v": ("triangle-down", "▼"),
    "D": ("diamond", "◆"), "P": ("cross", "✚"), "X": ("x", "✖"), "*": ("star", "★"), "p": ("pentagon", "⬟"),
    "h": ("hexagon", "⬢"), "<": ("triangle-left", "◀"), ">": ("triangle-right", "▶"),
}  # fmt: skip
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
UNREADABLE_ERRORS = (ValueError, TypeError, KeyError, AttributeError, OSError, RuntimeError, OverflowError)

Stamp = tuple[tuple[str, int, int], ...]
Known = dict[Path, tuple[Stamp, Row]]  # what was read of a folder, and the stamp that the folder had then


def gather(
    runs: Path,
    effective: bool = True,
    watch: Callable[[int, int], None] = lambda done, total: None,
    known: Known | None = None,
) -> dict[str, Any]:
    """Collect every run under a folder, and the groups of runs that differ only in the seed.

    With `effective`, the weights of each layer that are on a path from input to output are counted. `watch` gets the
    number of runs that are read, and of all. Folders that have not changed since they were `known` are not read again.
    """
    if not runs.is_dir():
        raise ValueError(f"there is no folder {runs}; name the one that holds the run folders")
    folders = stamps(runs)
    if not folders:
        raise ValueError(f"there is no run in {runs}; create some with barebones run or barebones sweep")
    known = {} if known is None else known
    rows: list[Row] = []
    for folder, stamp in folders.items():
        watch(len(rows), len(folders))
        if folder not in known or known[folder][0] != stamp:
            name = folder.name if folder == runs else folder.relative_to(runs).as_posix()
            known[folder] = stamp, _run(folder, name, effective)
        rows.append(known[folder][1])
    watch(len(rows), len(folders))
    rows.sort(key=_order)
    return {
        "title": runs.resolve().name,
        "runs": [{"index": index, **run} for index, run in enumerate(rows)],
        "groups": _groups(rows),
        "settings": list(SETTINGS),
    }


def stamps(runs: Path) -> dict[Path, Stamp]:
    """Return the run folders under a folder, each with the times and sizes of its files, which change as it does."""
    return {folder: tuple(sorted(_stamp(folder))) for folder in sorted(_run_folders(runs))}


def _stamp(folder: Path) -> Iterator[tuple[str, int, int]]:
    with suppress(OSError):  # a file or a folder may vanish, or be unreadable, which its reader tells
        for path in folder.iterdir():
            with suppress(FileNotFoundError):
                if not is_lock(path.name):  # its time is renewed although nothing else changes
                    yield path.name, (about := path.stat()).st_mtime_ns, about.st_size


def _run_folders(runs: Path) -> Iterator[Path]:
    """Yield the folder itself if it is a run folder, else all run folders at any depth inside it, each once."""
    visited = set()
    unreadable: list[OSError] = []  # without permission to read them, the page reports them as unreadable
    for place, folders, names in os.walk(runs, onerror=unreadable.append, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if (real := Path(place).resolve()) in visited or not set(FILES).isdisjoint(names):
            folders.clear()
        if real not in visited and not set(FILES).isdisjoint(names):
            yield Path(place)
        visited.add(real)
    yield from (Path(error.filename) for error in unreadable)


def _order(run: Row) -> list[tuple[bool, Any]]:
    settings = run["settings"] or {}
    return [((value := settings.get(name)) is None, value) for name in (*KEY, "seed")] + [(False, run["folder"])]


def _run(folder: Path, name: str, effective: bool) -> Row:
    problems: list[str] = []

    def attempt(file: str, read: Callable[[], Any]) -> Any:
        """Return what `read` returns; None if there is no such file, or if it fails, which becomes a sentence."""
        try:
            return read()
        except FileNotFoundError:
            return None
        except UNREADABLE_ERRORS as error:
            problem = f"it has no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
            if isinstance(error, OSError) and error.strerror:
                problem = error.strerror
            problem = problem.replace(f"{folder}/", "").splitlines()[0][:300]
            problem = problem if problem.startswith(FILES) else f"{file}: {problem}"
            if problem not in problems:
                problems.append(problem)
            return None

    row = attempt(RESULT, lambda: record(folder)) or {}
    if row.get("status") == UNREADABLE:
        problems.append(row["reason"])
    settings = {key: row[key] for key in SETTINGS} if row.get("method") is not None else None
    values, owner = attempt(EXPERIMENT, lambda: recorded(folder)) or (None, None)
    settings = settings or values
    dense = settings is not None and settings["method"] == DENSE
    state = attempt(METRICS, lambda: progress(folder)) or ""
    only_pruned = state == PRUNED and settings and not (dense or settings["mask"] or (folder / CHECKPOINT).exists())
    status = row.get("status") or (PRUNED if only_pruned else UNFINISHED if settings else UNREADABLE)
    result = (attempt(RESULT, lambda: finished(folder)) or {}) if status == DONE else {}
    lines = attempt(METRICS, lambda: read_metrics(folder / METRICS, owner, result.get("metrics"))) or []
    mask = attempt(MASK, lambda: _mask(folder, owner, settings, effective and not dense)) or {}
    numbers = {**mask.get("stated", {}), **result, **mask.get("counted", {})}
    pruning_took = mask.get("seconds") if row.get("prune_seconds") is None else row["prune_seconds"]
    run: Row = {
        "folder": name,
        "status": status,
        "state": state,
        "settings": settings,
        "dense": dense,
        "accuracy": row.get("top1"),
        "top5": row.get("top5"),
        "accuracy_at_best_validation": row.get("top1_at_best_validation"),
        "seconds": {"prune": pruning_took, "train": row.get("train_seconds")},
        **{key: numbers.get(key) for key in NUMBERS},
        "untrained": bool(result) and connectivity.untrained(result),
        "collapsed": result.get("collapsed", mask.get("collapsed")) or [],
        "layers": [] if dense else mask.get("layers", []),
        "series": {stage: _series(stage, lines) for stage in COUNTED},
        "environment": result.get("environment", {}),
        "problems": problems,
    }
    run["words"] = _words(run, row.get("reason"), mask.get("note"))
    return finite(run)


def _mask(folder: Path, owner: str | None, settings: Row | None, effective: bool) -> Row:
    """Return the metadata of the mask file, and how many weights its masks keep in each layer."""
    if not (folder / MASK).exists():
        return {}
    evolved = settings is not None and settings["evolve"] is not None
    masks = load_masks(folder / MASK) if owner is None else load_mask(folder, owner, evolved=evolved)
    layers = [LayerAccount(name, tuple(m.shape), m.numel(), int(m.count_nonzero())) for name, m in masks.items()]
    note = None
    if effective and settings is not None:
        try:
            layers = _effective_layers(masks, settings)
        except UNREADABLE_ERRORS as error:
            note = str(error).splitlines()[0][:300]
    sums = Account(layers, 0, 0, 0)
    counted: Row = {"prunable": sums.total, "kept": sums.kept, "sparsity": sums.sparsity}
    if layers and sums.effective is not None:
        counted |= {"effective": sums.effective, "effective_sparsity": sums.effective_sparsity}
    stated = masks.about.get("account") or {}
    return {
        "stated": stated,
        "counted": counted,
        "note": note or stated.get("not_followed"),
        "collapsed": masks.about.get("collapsed"),
        "seconds": masks.about.get("seconds"),
        "layers": [[la.name, list(la.shape), la.total, la.kept, la.effective] for la in layers],
    }


def _effective_layers(masks: Masks, settings: Row) -> list[LayerAccount]:
    """Return the layers with their effective weights, by following the network on the CPU."""
    if settings["model"] not in MODELS or settings["data"] not in DATA:  # a stranger's code is not imported
        raise ValueError("the network or the data set is not one of barebones's own, so its layers are not followed")
    example = torch.zeros(1, *DATA[settings["data"]].inputs.shape)
    return account(_network(settings["model"], settings["data"]), masks, example).layers


@lru_cache(maxsize=2)
def _network(model: str, data: str) -> nn.Module:
    """Return the network with arbitrary weights: only its structure matters."""
    with torch.random.fork_rng(devices=[]):
        return built(model, DATA[data].inputs)


def _series(stage: str, lines: Sequence[Line]) -> Row | None:
    """Return the numbers of a stage as columns, thinned out; `at` counts from 1, as people do."""
    stage_lines = [line for line in lines if line["stage"] == stage]
    drawn = [stage_lines[index] for index in thinned(len(stage_lines))]
    columns: Row = {name: [_rounded(line.get(name)) for line in drawn] for name in SERIES[stage]}
    return columns | {"at": [int(line[COUNTED[stage]]) for line in drawn]} if drawn else None


def thinned(length: int, most: int = LONGEST) -> list[int]:
    """Return at most `most` indices, evenly spread, with the first and the last.

    >>> thinned(3), thinned(7, 3), thinned(0)
    ([0, 1, 2], [0, 3, 6], [])
    """
    if length <= most:
        return list(range(length))
    return [round(i * (length - 1) / (most - 1)) for i in range(most)]


def _groups(runs: Sequence[Row]) -> list[Row]:
    """Return the groups of runs that differ only in the seed; a run with unknown settings is a group of its own."""
    members: dict[Any, list[int]] = {}
    for index, run in enumerate(runs):
        group = run["settings"] and tuple(run["settings"][name] for name in GROUP)
        members.setdefault(group or index, []).append(index)
    firsts = [settings for indices in members.values() if (settings := runs[indices[0]]["settings"]) is not None]
    groups = [_group(indices, runs, firsts) for indices in members.values()]
    _mark(groups)
    return groups


def _group(indices: Sequence[int], runs: Sequence[Row], firsts: Sequence[Row]) -> Row:
    """Return a group: which settings tell it apart from others, and from which runs it can be told apart at all."""
    settings = runs[indices[0]]["settings"]
    shared: Row = {"runs": list(indices), "dense": runs[indices[0]]["dense"]}
    if settings is None:
        return dict.fromkeys(KEY) | shared | {"panel": None, "protocol": "", "line": "", "variant": ""}
    trained_otherwise = [settings | {name: other[name] for name in TRAINED} for other in firsts]
    return shared | {
        **{name: settings[name] for name in KEY},
        "panel": [settings[name] for name in TRAINED],
        "protocol": differences(settings, trained_otherwise, equal_in=("data", "model")),  # among the panels
        "line": _variant(settings, firsts, (*TRAINED, "method", "control")),  # within its panel
        "variant": _variant(settings, firsts, ("data", "model", "method", "control")),
    }


def mark(marker: str) -> tuple[str, str]:
    """Return Plotly's name of one of Matplotlib's markers, and a letter like it; for an unknown one, a dot."""
    name, letter = MARKS.get(marker, MARKS["o"])
    return name, letter + "\ufe0e"  # a letter, not an emoji


def _mark(groups: Sequence[Row]) -> None:
    """Give the groups of each method and variant a marker and dashes that no other of the same color has."""
    chosen: dict[tuple[str | None, str], tuple[tuple[str, str], str]] = {}
    taken = set()
    for each in groups:
        name = (each["method"], each["line"])
        _, color, first = look(each["method"] or "")
        if name not in chosen:
            choices = [(m, dash) for dash in DASHES for m in dict.fromkeys([mark(first), *map(mark, MARKS)])]
            chosen[name] = next((choice for choice in choices if (color, choice) not in taken), choices[-1])
            taken.add((color, chosen[name]))
        (each["symbol"], each["glyph"]), each["dash"] = chosen[name]


def _variant(settings: Row, firsts: Sequence[Row], equal_in: Sequence[str]) -> str:
    """Return what tells a group from others of the same method: its control, and the settings that differ."""
    return ", ".join(filter(None, (titled("", settings["control"]), differences(settings, firsts, equal_in))))


def _rounded(value: Any) -> Any:
    """Return a number, or the accuracy of a test, with five digits, which is more than a chart shows."""
    value = value["top1"] if isinstance(value, dict) else value
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _words(run: Row, reason: str | None, note: str | None) -> list[tuple[str, str]]:
    """Return pairs of urgency ("bad", "warn", "note", "plain" or "good") and sentence."""
    states = {
        FAILED: ("bad", f"It failed: {reason}"),
        UNFINISHED: ("note", f"It is not finished ({run['state'] or 'begun'})."),
        PRUNED: ("note", "It is pruned and not trained; barebones run with the same settings trains it."),
    }
    pairs = [states[run["status"]]] if run["status"] in states else []
    pairs += [("bad", f"Not readable: {problem.rstrip('.')}.") for problem in run["problems"]]
    short = {name: name.removesuffix(".weight") for name, *_ in run["layers"]}
    empty = [short[name] for name, _, total, kept, _ in run["layers"] if total and not kept]
    apart = [short[name] for name, _, _, kept, effective in run["layers"] if kept and effective == 0 < run["effective"]]
    collapsed = [short.get(name, name) for name in run["collapsed"]]
    about = run | {"collapsed": collapsed, "empty": empty, "layers": len(short)}
    troubles = [sentence for sentence, _ in connectivity.findings(about, run["untrained"])]
    troubles += [f"No weight is on such a path in {shortened(apart)}."] * bool(apart)
    if short:
        on_path = "" if run["effective"] is None else f", {run['effective']:,} on a path from input to output"
        pairs.append(("plain", f"{run['kept']:,} of {run['prunable']:,} prunable weights are left{on_path}."))
    pairs += [("bad" if collapsed else "warn", sentence) for sentence in troubles]
    if short and not (empty or apart or collapsed or run["disconnected_outputs"]):
        pairs.append(("good", "Every layer keeps weights" + (", and a signal passes." if run["effective"] else ".")))
    if run["dense"]:
        pairs.append(("plain", "Nothing is pruned: this is the dense network."))
    if note:
        pairs.append(("note", f"No effective weights per layer: {note.rstrip('.')}."))
    return pairs
