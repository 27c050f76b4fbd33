"""Fixtures of the report's tests: one folder of runs, its content and its page."""

from pathlib import Path
from typing import Any

import pytest
from report_runs import HOSTILE, write_run

from barebones.lab.figures import report
from barebones.lab.run import folder as files


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a sweep in which everything happens: done, pruned, unfinished, failed, collapsed and unreadable runs."""
    folder = tmp_path_factory.mktemp("sweep") / "runs"
    for seed, accuracy in enumerate([0.90, 0.92, 0.97]):
        write_run(folder, "force", 0.98, seed, accuracy)
    write_run(folder, "force", 0.995, 0, 0.8)
    write_run(folder, "snip", 0.98, 0, 0.7)
    write_run(folder, "snip", 0.995, 0, 0.1, dead="features.20.weight")
    write_run(folder, "dense", 0.0, 0, 0.99)
    write_run(folder, "random", 0.98, 0, None)
    write_run(folder, "magnitude", 0.98, 0, None, reached=2)
    write_run(folder, "iter-snip", 0.98, 0, None, failed="OutOfMemoryError: too large")
    write_run(folder, "grasp", 0.98, 0, 0.6, model=HOSTILE, name="hostile")
    write_run(folder / "deeper", "synflow", 0.98, 0, 0.5, rounds=400)
    (folder / "torn").mkdir()
    (folder / "torn" / files.EXPERIMENT).write_text("{")
    (folder / "notes").mkdir()
    (folder / "records.csv").write_text("not a run")
    return folder


@pytest.fixture(scope="session")
def content(runs: Path) -> dict[str, Any]:
    return report.gather(runs)


@pytest.fixture(scope="session")
def text(content: dict[str, Any]) -> str:
    return report.page(content)
