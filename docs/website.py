"""What mkdocs does for the documentation site: it gathers the pages, the tutorial and the examples in docstrings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
SECTIONS = {"Guides": "docs/*.md", "Measurements": "benchmarks/*.md"}
PAGES = ("README.md", "CHANGELOG.md", *SECTIONS.values(), "docs/findings/*.md", "results/README.md")
NOTEBOOK = "docs/tutorial.ipynb"
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def on_config(config: MkDocsConfig) -> None:
    """Add the pages that the navigation does not name to the end of their section, so that no page is lost."""
    assert config.nav is not None
    known = json.dumps(config.nav)
    for section, pattern in SECTIONS.items():
        pages = next(entry[section] for entry in config.nav if section in entry)
        found = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern))
        pages += [page for page in found if f'"{page}"' not in known]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Lay out the site as the repository: links between pages and to source files are the same in both."""
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    pages = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
    targets = {(page.parent / link).resolve() for page in pages for link in LINK.findall(page.read_text("utf-8"))}
    sources = {path for path in targets if path.is_file() and path.is_relative_to(ROOT)}
    for path in dict.fromkeys([*pages, ROOT / "docs/style.css", *sorted(sources)]):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    text = notebook(json.loads((ROOT / NOTEBOOK).read_text("utf-8")))
    files.append(File.generated(config, NOTEBOOK.replace(".ipynb", ".md"), content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link to the page of the tutorial instead of its notebook."""
    return markdown.replace("tutorial.ipynb)", "tutorial.md)") if page.file.src_uri != "docs/tutorial.md" else markdown


def notebook(content: dict[str, Any]) -> str:
    """Return an executed notebook as a page: its text, its code and its outputs."""
    parts = []
    for cell in content["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                parts.append(f"![output](data:image/png;base64,{''.join(data['image/png']).strip()})")
            else:
                parts.append(f"```text\n{''.join(output.get('text') or data['text/plain']).rstrip()}\n```")
    return "\n\n".join(parts)


class Examples(griffe.Extension):
    """Show the examples of docstrings as code."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Put fences around each example, which goes up to a blank line."""
        if obj.docstring:
            text = re.sub(
                r"(?m)^>>> (?:.+\n?)+", lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", obj.docstring.value
            )
            obj.docstring.value = text
