"""The list of faults is true: every test that it names is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_fault_has_its_test():
    page = (ROOT / "tests" / "FAULTS.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("|") and not line.startswith(("| Fault", "| ---"))]
    named = [re.search(r"`(tests/[\w/]+\.py)::(test_\w+)` \| (?:quick|test|nightly)\b", row) for row in rows]
    assert rows
    assert [row for row, name in zip(rows, named, strict=True) if name is None] == []
    gone = [name[0] for name in named if name is not None and not defines(ROOT / name[1], name[2])]
    assert gone == []


def defines(path: Path, name: str) -> bool:
    return path.exists() and re.search(rf"^ *def {name}\(", path.read_text(encoding="utf-8"), re.MULTILINE) is not None
