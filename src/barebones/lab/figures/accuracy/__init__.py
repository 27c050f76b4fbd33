"""The figure "accuracy": accuracy of any runs, against sparsity, effective sparsity, FLOPs left or pruning time."""

from math import isfinite
from pathlib import Path

from ....messages import unknown
from ...experiment.experiment import DENSE
from ...records import records, tables
from ...records.records import DONE
from ...records.tables import Rows
from ...run.folder import EXPERIMENT
from .. import plots
from .axes import AXES, Axis
from .drawing import draw
from .lines import arranged

__all__ = ["ABOUT", "AXES", "NAME", "write"]

NAME = "accuracy"
ABOUT = "Accuracy of your own runs against sparsity, or against what --x names. It runs nothing."
NEEDED = ("data", "model", "method", "sparsity", "seed", "top1")  # columns of a table that can be drawn


def write(folder: Path, x: str, out: Path) -> tuple[list[Path], list[str]]:
    """Draw the finished runs in a folder, or those of its accuracy.csv, and write pictures and a table into `out`.

    Return the paths of what was written, and a sentence about each run that is left out.
    """
    if x not in AXES:
        raise ValueError(unknown("axis", x, AXES))
    plots.require_matplotlib()
    rows, left_out = _read(folder, AXES[x])
    shown, panels = arranged(rows, AXES[x])
    out.mkdir(parents=True, exist_ok=True)
    written = []
    with plots.styled():
        for number, picture in enumerate(draw(panels, AXES[x]), 1):
            written += plots.save(picture, out / (NAME if number == 1 else f"{NAME}-{number}"))
    tables.write(shown, out / f"{NAME}.csv")
    return [*written, out / f"{NAME}.csv"], left_out


def _read(folder: Path, axis: Axis) -> tuple[Rows, list[str]]:
    """Return the rows of a folder that can be drawn, and a sentence about each other run."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; name the one that holds the run folders")
    alone = records.record(folder) if (folder / EXPERIMENT).exists() else None
    found = records.records(folder) if alone is None else [alone]
    left_out = [f"{row['folder']} is {row['status']}: {row['reason']}" for row in found if row["status"] != DONE]
    rows = [row for row in found if row["status"] == DONE]
    if not rows and (path := folder / f"{NAME}.csv").exists():
        table = tables.read(path, NEEDED)
        rows = records.arranged({name: row.get(name) for name in records.COLUMNS} for row in table)
    if not rows:
        raise ValueError(f"{folder} holds no finished run; barebones run and barebones sweep make some")
    known = []
    for row in rows:
        needed = ("top1",) if row["method"] == DENSE else ("top1", axis.column)
        if missing := [name for name in needed if not isinstance(row[name], (int, float)) or not isfinite(row[name])]:
            left_out.append(f"{row['folder']} has no number of {missing[0].replace('_', ' ')}")
        else:
            known.append(row)
    if not known:
        raise ValueError(f"no run in {folder} can be drawn: {left_out[-1]}; choose another --x")
    return known, left_out
