"""Every folder has a budget of lines, in the table of docs/house.md: what needs more room names what leaves."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "house.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\|`([\w./*]+)`\|.*\|([\d,]+)\|([\d,]+)\|$", PAGE, re.MULTILINE)
SOURCE = (".py", ".js", ".css", ".html", ".cpp")
BUDGETS = {place: int(budget.replace(",", "")) for place, _, budget in ROWS}


def size(place: str) -> int:
    """Return the lines of source in a folder or file; of the pages, the words."""
    if place == "pages":
        pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
        return sum(len(page.read_text(encoding="utf-8").split()) for page in pages)
    path = ROOT / place if place in ("src", "tests", "benchmarks") else ROOT / "src" / "barebones" / place
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.suffix in SOURCE]
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


@pytest.mark.parametrize("place", BUDGETS)
def test_a_place_stays_within_its_budget(place):
    used = size(place)
    assert used <= BUDGETS[place], f"{place} has {used} lines; take as many out as you put in, or change docs/house.md"


def test_every_place_has_a_budget():
    package = ROOT / "src" / "barebones"
    places = {p.name + "/" * p.is_dir() for p in package.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    rooms = {f"lab/{p.name}/" for p in (package / "lab").iterdir() if (p / "__init__.py").exists()}
    assert places - {"__main__.py", "lab/"} | rooms <= set(BUDGETS)
    assert sum(size(place) for place in places) <= BUDGETS["src"]
