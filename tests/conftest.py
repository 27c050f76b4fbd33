"""Settings and fixtures for all tests: repeatable, and no deadline that a busy machine could miss."""

import sys
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import NamedTuple

import hypothesis
import pytest
import torch
from suites import FILES, in_suite

hypothesis.settings.register_profile("barebones", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("barebones")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the files of the suites that are not asked for, before they are imported."""
    left_out = (suite for suite in FILES if f"not {suite}" in config.option.markexpr)
    return any(in_suite(collection_path, suite) for suite in left_out) or None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of these files, and skip those for a GPU where there is none."""
    for suite in FILES:
        if in_suite(item.path, suite):
            item.add_marker(suite)
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        item.add_marker(pytest.mark.skip("needs a CUDA device"))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Run torch on one thread: networks as small as those of the tests only lose by more, above all if it is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def forks() -> BaseContext:
    """The way to start processes from one that has imported torch already, so that each start takes no seconds."""
    context = get_context("forkserver")
    # The first step of an optimizer would import torch._dynamo.
    modules = ["barebones.lab.sweep.worker", "sklearn.datasets", "torch._dynamo", "torch.distributed.fsdp"]
    context.set_forkserver_preload([*modules, "pytest"])
    return context


@pytest.fixture
def forkserver(forks, monkeypatch) -> BaseContext:
    """Start workers from the fork server. As with "spawn", which the library uses, they share nothing with the test."""
    from barebones.lab.sweep import processes

    monkeypatch.setattr(processes, "get_context", lambda method: forks)
    return forks


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
