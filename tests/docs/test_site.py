"""The documentation site builds without a warning, names everything public, and asks no other server; its tables."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import barebones as bb

ROOT = Path(__file__).parents[2]
FETCHED = re.compile(
    r"<(?:(?:script|img|iframe|source)\b[^>]*\ssrc|link\b[^>]*\shref)=[\"']?([^\"'\s>]+)"
)  # by a browser


@pytest.fixture(scope="module")
def site() -> Path:
    for package in ("zensical", "mkdocstrings", "griffe"):
        if not importlib.util.find_spec(package):
            pytest.skip(f"needs {package}: pip install 'barebones[docs]'")
    done = subprocess.run([sys.executable, "docs/website.py"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr  # a dead link or anchor is an error
    return ROOT / "build/site"


def script(name: str) -> ModuleType:
    """Return a script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_making_the_tables_again_changes_nothing():
    tables = script("tables")
    assert {page.name for page in tables.PAGES} >= {"results.md", "controls.md", "empty-channels.md"}
    for page in tables.PAGES:
        assert tables.filled(page.read_text("utf-8")) == page.read_text("utf-8"), f"{page.name}: run make results"
    assert json.loads(tables.FIGURES.read_text("utf-8")) == json.loads(json.dumps(tables.listed())), "run make results"


def test_every_page_is_in_the_navigation_and_its_links_lead_somewhere(tmp_path, monkeypatch):
    pytest.importorskip("griffe", reason="pip install 'barebones[docs]'")
    website = script("website")
    monkeypatch.setattr(website, "OUT", tmp_path)
    assert website.gather() == []
    assert "(docs/tutorial.md)" in (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "```python\nimport " in (tmp_path / "docs/tutorial.md").read_text(encoding="utf-8")
    monkeypatch.setattr(website, "PAGES", ["tests/FAULTS.md", "CHANGELOG.md"])
    monkeypatch.setattr(website, "LINK", website.re.compile("^# (Changelog)"))
    missing = "CHANGELOG.md links to Changelog, which does not exist"
    assert website.gather() == ["tests/FAULTS.md is not in the navigation of mkdocs.yml", missing]


@pytest.mark.nightly
def test_the_site_loads_nothing_from_elsewhere(site):
    pages = {path: FETCHED.findall(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert len(pages) > 10
    for path, urls in pages.items():
        assert urls
        assert path.name == "404.html" or not [url for url in urls if re.match(r"(https?:)?//", url)], path


def test_the_reference_lists_every_public_name():
    listed = re.findall(r"^::: barebones\.(\w+)$", (ROOT / "docs/api.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(set(bb.__all__) - {"__version__"})


@pytest.mark.nightly
def test_examples_of_docstrings_are_code(site):
    text = (site / "docs/api.html").read_text(encoding="utf-8")
    assert '<span class="gp">&gt;&gt;&gt; </span>' in text
    assert "<blockquote>" not in text  # what Markdown makes of >>>
