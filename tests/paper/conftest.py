"""Fixtures of the figures' tests: coarse pictures, and analyses that are computed once."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from figure_rows import PAIR, TINY_FIGURES, context, touched

from barebones.lab.figures import plots, sources
from barebones.lab.figures.registry import write
from barebones.lab.records import records, tables
from barebones.lab.run.options import RunOptions
from barebones.models import MODELS, SmallResNet, SmallVGG
from barebones.paper.figures import layers


@pytest.fixture(autouse=True, scope="module")
def _fast() -> Iterator[None]:
    """Use one thread, networks of few channels, and coarse pictures."""
    with sources.threads(1), pytest.MonkeyPatch.context() as patch:
        for name, network, width in (("small-vgg", SmallVGG, 4), ("small-resnet", SmallResNet, 2)):
            patch.setitem(MODELS, name, MODELS[name]._replace(network=partial(network, width=width)))
        patch.setattr(plots, "DPI", 50)
        yield


@pytest.fixture(scope="session")
def computed(tmp_path_factory) -> Callable[[str], Path]:
    """Return a function that computes an analysis once, with tiny settings, and returns the folder of its files."""
    folder = tmp_path_factory.mktemp("analyses")

    def compute(name: str) -> Path:
        if not (folder / f"{name}.csv").exists():
            write(name, TINY_FIGURES[name], "smoke", folder, context(folder))
        return folder

    return compute


@pytest.fixture
def rows_of(computed) -> Callable[[str], tables.Rows]:
    """Return a function from the name of an analysis to its rows."""
    return lambda name: tables.read(computed(name) / f"{name}.csv")


@pytest.fixture
def stored(monkeypatch):
    """Return the list that takes the place of the records of all runs; pictures are not rendered."""
    rows: list[dict[str, Any]] = []
    monkeypatch.setattr(records, "records", lambda runs: list(rows))
    monkeypatch.setattr(plots, "save", touched)
    return rows


@pytest.fixture(scope="module")
def network(_fast) -> Any:
    """Return the network of the tiny analyses at its initial weights."""
    return next(layers.networks(PAIR, RunOptions()))
