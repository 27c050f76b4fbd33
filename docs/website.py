"""The documentation site: this gathers its pages in build/pages, checks them, and lets Zensical build build/site."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build/pages"
PAGES = ("*.md", "docs/*.md", "docs/findings/*.md", "benchmarks/*.md", "results/README.md")
NOTEBOOK = "docs/tutorial.ipynb"
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def gather() -> list[str]:
    """Lay out the pages as in the repository, so that links are the same in both, and return what is wrong."""
    shutil.rmtree(OUT, ignore_errors=True)
    pages = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in pages}
    named = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text("utf-8"))
    wrong = [f"{name} is not in the navigation of mkdocs.yml" for name in texts if name not in named]
    copied = {ROOT / "docs/style.css"}
    for name, text in texts.items():
        for link in LINK.findall(text):
            target = (ROOT / name).parent.joinpath(link).resolve()
            if target.is_file() and target.is_relative_to(ROOT):
                copied.add(target)
            else:
                wrong.append(f"{name} links to {link}, which does not exist")
    texts = {name: text.replace("tutorial.ipynb)", "tutorial.md)") for name, text in texts.items()}
    texts[NOTEBOOK.replace(".ipynb", ".md")] = notebook(json.loads((ROOT / NOTEBOOK).read_text("utf-8")))
    for name in [*texts, *(path.relative_to(ROOT).as_posix() for path in copied)]:
        (OUT / name).parent.mkdir(parents=True, exist_ok=True)
        if name in texts:
            (OUT / name).write_text(texts[name], "utf-8")
        else:
            shutil.copyfile(ROOT / name, OUT / name)
    return wrong


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


if __name__ == "__main__":
    if wrong := gather():
        sys.exit("\n".join(wrong))
    # --strict: dead links between pages and to their headings, which the link check above does not see, are errors
    words = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    sys.exit(done.returncode and done.stdout)
