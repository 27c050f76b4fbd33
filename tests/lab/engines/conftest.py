"""Fixtures of the tests of engines: troubled networks, and the options of their runs."""

import sys
from pathlib import Path

import pytest
from engine_runs import NETWORKS

from barebones.lab.run.options import RunOptions


@pytest.fixture
def nets(tmp_path, monkeypatch) -> Path:
    """The folder of a module with the networks, where they leave files."""
    folder = tmp_path / "nets"
    folder.mkdir()
    (folder / "troubled_nets.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "troubled_nets", raising=False)
    return folder


@pytest.fixture
def options(tmp_path) -> RunOptions:
    return RunOptions(tmp_path / "runs", save_every=0)
