"""The list of faults is true: every test that it names is there, and in the suite that it says."""

import re
from pathlib import Path

from suites import in_suite

ROOT = Path(__file__).parents[1]


def test_every_fault_has_its_test():
    page = (ROOT / "tests" / "FAULTS.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("|") and not line.startswith(("| Fault", "| ---"))]
    named = [re.search(r"`(tests/[\w/]+\.py)::(test_\w+)` \| (\w+)", row) for row in rows]
    assert rows
    assert [row for row, name in zip(rows, named, strict=True) if name is None] == []
    wrong = [f"{name[0]}: {found}" for name in named if name and (found := suite(ROOT / name[1], name[2])) != name[3]]
    assert wrong == []


def suite(path: Path, name: str) -> str:
    """Return the smallest suite that runs a test."""
    before, found, _ = (path.read_text(encoding="utf-8") if path.exists() else "").partition(f"def {name}(")
    if not found:
        return "not there"
    decorators = before.rpartition("\n\n")[2]
    marks = {mark for mark in ("slow", "nightly") if in_suite(path, mark) or f"@pytest.mark.{mark}\n" in decorators}
    return "nightly" if "nightly" in marks else "test" if marks else "quick"
