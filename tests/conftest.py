"""Settings and fixtures for all tests: repeatable, and no deadline that a busy machine could miss."""

import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("barebones", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("barebones")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Run torch on one thread: networks as small as those of the tests only lose by more, above all if it is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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


@pytest.fixture
def mistake(command) -> Callable[..., None]:
    """Return a function that checks that a command prints nothing but an error of one line, with this text in it."""

    def check(text: str, *words: object) -> None:
        done = command(*words)
        assert (done.code, done.out) == (2, "")
        last = done.err.splitlines()[-1]  # progress may stand before it
        assert last.startswith("error: ")
        assert text in last

    return check
