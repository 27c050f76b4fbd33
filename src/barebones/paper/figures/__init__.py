"""Figures and tables of the paper: each file in this folder holds some, in its `FIGURES`."""

from pathlib import Path

from ...lab.figures import accuracy as runs
from ...lab.figures.registry import Figure, write
from ...lab.figures.sources import FigureContext
from ...messages import did_you_mean
from . import accuracy, layers, saliency, tables

__all__ = ["FIGURES", "FigureContext", "figure", "named"]

FIGURES: dict[str, Figure] = accuracy.FIGURES | saliency.FIGURES | layers.FIGURES | tables.FIGURES


def named(name: str) -> Figure:
    """Return the figure of that name.

    >>> named("layer")
    Traceback (most recent call last):
    ValueError: there is no figure 'layer'; did you mean 'layers'? Run `barebones figure --list` to see all figures
    """
    if name in FIGURES:
        return FIGURES[name]
    hint = did_you_mean(name, [*FIGURES, runs.NAME]) or "."
    raise ValueError(f"there is no figure {name!r}{hint} Run `barebones figure --list` to see all figures")


def figure(name: str, scale: str | None, out: Path, context: FigureContext, source: Path | None = None) -> list[Path]:
    """Write a figure of the paper into the folder `out`; see `registry.write`."""
    return write(name, named(name), scale, out, context, source)
