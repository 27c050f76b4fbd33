"""The report: one page about the runs of a folder, complete in itself, that works without a network."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any

from ...files.container import atomically
from ...version import __version__
from ..colours import COLOURS, MARKERS
from .runs import gather

__all__ = ["gather", "page", "write"]


def write(
    runs: Path, out: Path, effective: bool = True, watch: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, Any]:
    """Write the page about all run folders under `runs`, and return what is in it.

    Without `effective` no network is built to count the weights of each layer that lie on a path from input to output;
    `watch` is told how many of the runs are read.
    """
    out = Path(out)
    if not out.parent.is_dir():
        raise ValueError(f"there is no folder {out.parent} to write {out.name} into; make it first")
    if out.is_dir():
        raise ValueError(f"{out} is a folder; name a file to write the report into, such as report.html")
    content = gather(Path(runs), effective, watch)
    with atomically(out) as file:
        file.write(page(content).encode("utf-8", "replace"))
    return content


def page(content: Mapping[str, Any]) -> str:
    """What `gather` found, as HTML with style, script and data inside.

    Nothing of the content can become markup: the data stand in a script element that holds JSON, without any "<", and
    the page may run only the one script whose hash it names.
    """
    template, style, script = (_part(name) for name in ("page.html", "page.css", "page.js"))
    known = {"colours": COLOURS, "markers": MARKERS, "version": __version__}
    parts = {
        "title": html.escape(f"{content['title']} – barebones report"),
        "policy": f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:",
        "style": style,
        "script": script,
        "data": _embedded({**content, **known}),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def _part(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"


def _embedded(value: Any) -> str:
    """JSON that no HTML parser mistakes for markup.

    >>> _embedded(["</script>"])
    '["\\\\u003c/script\\\\u003e"]'
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII alone, so no line separators either
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
