"""Records: one row per run, from folders or a table, with mean and deviation over seeds; CSV, Parquet, short table."""

import importlib
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from ...files.container import atomically
from ...messages import printable
from ..experiment.experiment import KINDS, Experiment, with_role
from ..experiment.styles import titled
from ..run.folder import failed, finished, recorded
from . import tables
from .tables import Row, one_per_seed, spread

CSV, PARQUET = "records.csv", "records.parquet"
DONE, FAILED, UNREADABLE = "done", "failed", "unreadable"

KEY = with_role("key")  # the settings that every table shows

SETTINGS: dict[str, type] = {f.name: KINDS[str(f.type).partition(" | ")[0]][0] for f in fields(Experiment)}
RESULTS: dict[str, type] = {
    "status": str,  # done, failed or unreadable
    "reason": str,  # why it is not done
    "epochs_trained": int,  # 0 if the network is disconnected and its training was skipped
    "top1": float,  # on the test images, after the last epoch; accuracies are fractions
    "top5": float,
    "best_validation_epoch": int,
    "best_validation": float,
    "top1_at_best_validation": float,  # on the test images, after that epoch
    "kept": int,  # weights
    "effective": int,  # kept weights on a path from input to output
    "effective_sparsity": float,
    "flops_left": float,  # of the kept weights on a path, as a share of the dense network's
    "flops_shrunk": float,  # after shrink, as such a share
    "collapsed": bool,
    "collapsed_layers": str,  # their names, separated by spaces
    "empty_layers": int,  # how many keep no weight
    "disconnected_outputs": int,  # how many no signal reaches
    "prune_seconds": float,
    "train_seconds": float,
    "torch": str,  # its version
    "device": str,
    "compiled": bool,
    "finished": str,  # when
    "command": str,
    "commit": str,  # of the working folder, if it is known
    "folder": str,
    "seeds": int,  # number of finished runs that differ in the seed alone
    "top1_mean": float,
    "top1_std": float,  # of a sample; empty for a single seed
}
COLUMNS = SETTINGS | RESULTS
GROUP = tuple(name for name in SETTINGS if name != "seed")  # runs for which these are equal are averaged


def records(runs: Path) -> list[Row]:
    """Return a row of `COLUMNS` for each ended run in `runs`, sorted; without runs, the rows of its records.csv."""
    if not (rows := _of_folders(Path(runs))) and (path := Path(runs) / CSV).exists():
        texts = [name for name, kind in COLUMNS.items() if kind is str]
        rows = arranged(_stored(line) for line in tables.read(path, (*KEY, "seed", "top1"), texts))
    return rows


def _of_folders(runs: Path) -> list[Row]:
    if not runs.is_dir():
        raise ValueError(f"there is no folder {runs}; name the one that holds the run folders")
    return arranged(row for folder in runs.iterdir() if folder.is_dir() and (row := record(folder)))


def _stored(line: Row) -> Row:
    """Return a line of a table as a row; a setting that the table lacks has its default."""
    settings = Experiment.settings({name: line[name] for name in SETTINGS if name in line})
    return settings | {name: line.get(name) for name in RESULTS}


def arranged(rows: Iterable[Row]) -> list[Row]:
    """Return the rows sorted by their settings, with the statistics of their groups."""
    order = ("data", *KEY, "seed", "folder")
    return with_statistics(sorted(rows, key=lambda row: [(row[name] is None, row[name]) for name in order]))


def record(folder: Path, experiment: Experiment | None = None) -> Row | None:
    """Return the row of one run folder, without the statistics of its group; None if the run has not ended."""
    blank: Row = dict.fromkeys(COLUMNS) | {"folder": folder.name}
    try:
        if (result := finished(folder, experiment)) is not None:
            values = {key: None if v is None else COLUMNS[key](v) for key, v in _result(result).items()}
            return blank | Experiment.settings(result["experiment"]) | values
        if (failure := failed(folder)) is not None:
            return blank | Experiment.settings(failure["experiment"]) | {"status": FAILED, "reason": failure["reason"]}
    except (ValueError, OverflowError, OSError) as error:
        with suppress(ValueError, OSError):  # its settings may be readable
            blank |= Experiment.settings(recorded(folder)[0])
        return blank | {"status": UNREADABLE, "reason": str(error).replace(f"{folder}{os.sep}", "")[:300]}
    return None


def lost(rows: Iterable[Row]) -> list[str]:
    """Return a sentence about each run that is not done."""
    return [f"{row['folder']} is {row['status']}: {row['reason']}" for row in rows if row["status"] != DONE]


def with_statistics(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with `seeds`, `top1_mean` and `top1_std` over the finished runs of their groups.

    >>> row = dict.fromkeys(SETTINGS) | {"status": "done"}
    >>> rows = [row | {"seed": seed, "top1": top1} for seed, top1 in enumerate([0.5, 0.7])]
    >>> [(r["seeds"], round(r["top1_mean"], 3), round(r["top1_std"], 3)) for r in with_statistics(rows)]
    [(2, 0.6, 0.141), (2, 0.6, 0.141)]
    """
    statistics = {}
    for group, members in tables.grouped(rows, *GROUP).items():
        done = one_per_seed(row for row in members if row["status"] == DONE)
        mean, std, number = spread(row["top1"] for row in done)
        statistics[group] = {"seeds": number, "top1_mean": mean, "top1_std": std}
    return [row | statistics[tuple(row[name] for name in GROUP)] for row in rows]


def update(runs: Path) -> tuple[list[Row], list[Path]]:
    """Write the tables of all runs in a folder; return their rows and the paths of what was written.

    Another sweep may write the same tables, and end runs meanwhile. So whoever writes last has read last.
    """
    rows: list[Row] = []
    written: list[Path] = []
    while (latest := _of_folders(runs)) != rows or not written:
        rows, written = latest, write(latest, runs)
    return rows, written


def write(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write records.csv and, if pyarrow is installed, records.parquet; return the paths of what was written."""
    written = [folder / CSV]
    tables.write(rows, written[0], COLUMNS)
    if parquet := _parquet(rows):
        written.append(folder / PARQUET)
        with atomically(written[1]) as file:
            file.write(parquet)
    return written


def _parquet(rows: Sequence[Row]) -> bytes | None:
    """Return the rows as a Parquet file; None without pyarrow, which `pip install 'barebones[lab]'` installs."""
    try:
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        return None
    kinds = {str: arrow.string(), int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}
    schema = arrow.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
    sink = io.BytesIO()
    lines = [{name: tables.encodable(v) if isinstance(v, str) else v for name, v in row.items()} for row in rows]
    parquet.write_table(arrow.Table.from_pylist(lines, schema=schema), sink)
    return sink.getvalue()


def summary(rows: Sequence[Row]) -> Table:
    """Return a table with one line per group: mean and standard deviation of the test accuracy over its seeds."""
    groups = tables.grouped((row for row in rows if row["method"] is not None), *GROUP)
    firsts = [members[0] for members in groups.values()]
    troubles = {"collapsed": "collapsed", "empty_layers": "empty layers,\nat most"}
    troubles |= {"disconnected_outputs": "disconnected\noutputs, at most"}
    lines = []
    for members in groups.values():
        row, lost = members[0], sum(row["status"] != DONE for row in members)
        counts = {name: max(_told(row, name) for row in members) for name in troubles}
        counts["collapsed"] = sum(bool(row["collapsed"]) for row in members)
        cells = {"data": row["data"], "network": row["model"], "method": titled(row["method"], row["control"])}
        cells |= {"sparsity %": f"{100 * row['sparsity']:g}", "accuracy %": _spread(row), "seeds": str(row["seeds"])}
        cells |= {title: str(counts[name] or "") for name, title in troubles.items()}
        lines.append(cells | {"with": differences(row, firsts), "not done": str(lost or "")})
    columns = [name for name in (lines[0] if lines else {}) if any(line[name] for line in lines)]
    same = {n: lines[0][n] for n in ("network", "data", "seeds") if len({line[n] for line in lines}) == 1}
    place = " on ".join(same[name] for name in ("network", "data") if name in same)
    number = same.get("seeds", "")
    seeds = "one seed" if number == "1" else f"mean ± standard deviation over {number + ' ' * bool(number)}seeds"
    title = ", ".join(filter(None, ("Test accuracy", place, seeds)))
    shown = Table(title=Text(printable(title)), title_justify="left")
    for name in (left := [name for name in columns if name not in same]):
        justify: Any = "left" if name in ("data", "network", "method", "with") else "right"
        shown.add_column(name, justify=justify, overflow="fold")
    for line in lines:
        shown.add_row(*(Text(printable(line[name])) for name in left))
    return shown


def _told(row: Row, name: str) -> int:
    """Return a number to tell about a run's masks; a disconnected network has no connected outputs anyway."""
    return 0 if name == "disconnected_outputs" and row["collapsed"] else row[name] or 0


def _spread(row: Row) -> str:
    if row["top1_mean"] is None:
        return "–"
    return f"{100 * row['top1_mean']:.2f}" + (f" ± {100 * row['top1_std']:.2f}" if row["top1_std"] is not None else "")


def differences(row: Row, others: Sequence[Row], equal_in: Sequence[str] = KEY) -> str:
    """Return the settings of a group that differ from those of other groups with the same values of `equal_in`."""
    alike = [other for other in others if all(row[name] == other[name] for name in equal_in)]
    names = [n for n in SETTINGS if n not in (*KEY, "seed") and any(other[n] != row[n] for other in alike)]
    values = {name: str(row[name])[:12] if name == "mask" else row[name] for name in names}  # a hash is long
    return ", ".join(f"{name.replace('_', '-')} {value}" for name, value in values.items())


def _result(content: Mapping[str, Any]) -> Row:
    best = content["best_validation"] or {}
    flops = {name: content.get(f"flops_{name}") for name in ("dense", "effective", "shrunk")}
    environment, made = content["environment"], content.get("made") or {}
    same = ("kept", "effective", "effective_sparsity", "collapsed", "disconnected_outputs")
    return {
        "status": DONE,
        "epochs_trained": content["plan"]["epochs"],
        **{name: content["test"][name] for name in ("top1", "top5")},
        "best_validation_epoch": best.get("epoch"),
        "best_validation": best.get("validation"),
        "top1_at_best_validation": best.get("test"),
        **{name: content[name] for name in same},
        "flops_left": _share(flops["effective"], flops["dense"]),
        "flops_shrunk": _share(flops["shrunk"], flops["dense"]),
        "collapsed_layers": " ".join(content["collapsed"]) or None,
        "empty_layers": len(content["empty"]),
        **{f"{stage}_seconds": content["seconds"][stage] for stage in ("prune", "train")},
        **{name: environment.get(name) for name in ("torch", "device", "compiled")},
        **{name: made.get(name) for name in ("finished", "command", "commit")},
    }


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if whole and part is not None else None
