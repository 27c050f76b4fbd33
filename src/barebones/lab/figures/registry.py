"""Figures: compute or load the rows of a figure, and write it as PNG, SVG and PDF, or as Markdown, and as CSV."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from ...files.container import atomically
from ...names import SCALES
from ..records import tables
from ..records.tables import Rows
from . import plots
from .plots import Canvas
from .sources import Analysis, FigureContext, Runs

CAUTION = "Smoke test on digits: it shows nothing about the methods."


@dataclass(frozen=True)
class Figure:
    """A figure: what it shows in one sentence, where its rows come from, and how they are drawn."""

    about: str
    source: Runs | Analysis
    draw: Callable[[Rows], Canvas | str]
    costs: tuple[str, str, str]  # the time that it takes at each scale: on two CPU cores at smoke, else on one H200
    is_table: bool = False  # drawn as Markdown, without matplotlib


def write(
    name: str, figure: Figure, scale: str | None, out: Path, context: FigureContext, source: Path | None = None
) -> list[Path]:
    """Run what is missing, write NAME.png, .svg, .pdf and .csv into `out`, or NAME.md and .csv, and return their paths.

    With `source` nothing is run: the rows come from NAME.csv or NAME.csv.gz in that folder, or else from its run
    folders, at the scale with most rows. The name of an incomplete figure is added to `context.failed`.
    """
    if scale is not None and scale not in SCALES:
        raise ValueError(f"scale {scale!r} is unknown; choose one of {', '.join(SCALES)}")
    if not figure.is_table:
        plots.require_matplotlib()
    stored: Path | None = None
    if source is None:
        scale = scale or "smoke"
        rows = [{"scale": scale} | row for row in figure.source.compute(name, scale, context)]
    else:
        rows, stored = _load(name, figure, scale, source, context)
    out.mkdir(parents=True, exist_ok=True)
    try:
        caution = any((row.get("scale"), row.get("data")) == ("smoke", "digits") for row in rows) * CAUTION
        with nullcontext() if figure.is_table else plots.styled():
            drawn = figure.draw(rows)
            if isinstance(drawn, str):
                written = [out / f"{name}.md"]
                with atomically(written[0]) as file:
                    file.write(f"{drawn}\n{caution}".strip().encode() + b"\n")
            else:
                if caution:
                    plots.caution(drawn, caution)
                written = plots.save(drawn, out / name)
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        if stored is None:
            raise
        reason = next(iter(str(error).splitlines()), type(error).__name__)[:200]
        raise ValueError(f"{stored} holds values that {name} cannot be drawn from ({reason})") from error
    tables.write(rows, out / f"{name}.csv")
    return [*written, out / f"{name}.csv"]


def _load(
    name: str, figure: Figure, scale: str | None, folder: Path, context: FigureContext
) -> tuple[Rows, Path | None]:
    """Return the rows in a folder, and the table they were read from if they are from one."""
    if not folder.is_dir():
        what = f"{folder} is a file" if folder.exists() else f"there is no folder {folder}"
        raise ValueError(f"{what}; name a folder that holds run folders or {name}.csv")
    ignored = ""
    path = next((path for end in ("csv", "csv.gz") if (path := folder / f"{name}.{end}").exists()), None)
    if path is not None:
        stored = tables.read(path, figure.source.columns)
        if rows := [row for row in stored if scale in (None, row.get("scale"))]:
            return rows, path
        scales = " and ".join(sorted({str(row["scale"]) for row in stored if row.get("scale")})) or "unknown"
        ignored = f" ({path.name} in it is of scale {scales}; omit --scale to draw it)"
    found: list[tuple[Rows, bool]] = []
    for candidate in [scale] if scale else reversed(SCALES):
        try:
            rows, complete = figure.source.load(name, candidate, folder)
            found.append(([{"scale": candidate} | row for row in rows], complete))
        except ValueError as error:
            last = error
    if found:
        rows, complete = max(found, key=lambda each: len(each[0]))
        if not complete:
            context.failed.append(name)
        return rows, None
    tried = f"at scale {scale}" if scale else "at any scale"
    raise ValueError(f"{last} {tried}{ignored}; without --from, barebones figure {name} runs what is missing")
