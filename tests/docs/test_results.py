"""The tables of the pages are those of the records."""

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docs" / "tables.py"


def test_making_the_tables_again_changes_nothing():
    spec = importlib.util.spec_from_file_location("tables_of_pages", SCRIPT)
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    assert {page.name for page in tables.PAGES} >= {"results.md", "controls.md", "empty-channels.md"}
    for page in tables.PAGES:
        assert tables.filled(page.read_text("utf-8")) == page.read_text("utf-8"), f"{page.name}: run make results"
