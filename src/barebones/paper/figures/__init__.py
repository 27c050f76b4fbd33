"""Figures and tables of the paper: each file in this folder holds some, in its `FIGURES`."""

from pathlib import Path

from rich.table import Table

from ...lab.figures import registry as lab
from ...lab.figures.registry import Figure
from ...lab.figures.sources import FigureContext
from . import accuracy, layers, saliency, tables, theory

__all__ = ["FIGURES", "FigureContext", "figure", "listed", "named"]

FIGURES: dict[str, Figure] = accuracy.FIGURES | saliency.FIGURES | layers.FIGURES | tables.FIGURES | theory.FIGURES


def named(name: str) -> Figure:
    """Return the figure of that name.

    >>> named("layer")
    Traceback (most recent call last):
    ValueError: there is no figure 'layer'; did you mean 'layers'? run `barebones figure --list` to see all figures
    """
    return lab.named(name, FIGURES)


def figure(name: str, scale: str | None, out: Path, context: FigureContext, source: Path | None = None) -> list[Path]:
    """Write a figure of the paper into the folder `out`; see `registry.write`."""
    return lab.write(name, named(name), scale, out, context, source)


def listed() -> Table:
    return lab.listed(FIGURES)
