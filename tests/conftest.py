"""Settings and fixtures for all tests: repeatable, and no deadline that a busy machine could miss."""

import sys
from collections.abc import Callable
from typing import NamedTuple

import hypothesis
import pytest

hypothesis.settings.register_profile("barebones", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("barebones")


class Done(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(monkeypatch, capsys, tmp_path) -> Callable[..., Done]:
    """Return a function that runs `barebones` with these words, in this process and in an empty working folder."""
    from barebones.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("BAREBONES_DATA", str(tmp_path / "no data here"))

    def call(*words: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["barebones", *map(str, words)])
        with pytest.raises(SystemExit) as leaving:
            main()
        return Done(leaving.value.code or 0, *capsys.readouterr())

    return call
