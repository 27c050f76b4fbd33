"""The report: one self-contained page about all runs in a folder, which works without a network."""

import base64
import gzip
import html
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from hashlib import sha256
from importlib import resources
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from ....files.container import atomically
from ....imports import is_code, optional
from ....version import __version__
from ...experiment.experiment import DENSE
from ...experiment.styles import look, looks
from .runs import Known, gather, mark, stamps

__all__ = ["follow", "gather", "page", "plotly", "write"]

SCRIPTS = ("page.js", "charts.js", "search.js", "overview.js", "run.js", "start.js")  # in this order they are one
DARK_DENSE = "#f4f4f4"  # black on a light page is white on a dark one
BRIGHTNESS = 0.53  # the least brightness of a color on a dark page
REFRESH = 10  # seconds after which a page that is being followed loads itself anew


def write(content: dict[str, Any], out: Path, refresh: int | None = None) -> dict[str, Any]:
    """Write the page about what `gather` collected, and return this; the page loads itself anew after `refresh` s."""
    with atomically(out) as file:
        file.write(page(content, refresh).encode("utf-8", "replace"))
    return content


def follow(
    runs: Path, out: Path, effective: bool, stopping: Callable[[], bool], pause: float = 2.0
) -> Iterator[dict[str, Any]]:
    """Write the page whenever a run changes, and yield its content, until `stopping()`; wait for the first run."""
    if runs.exists() and not runs.is_dir():
        raise ValueError(f"{runs} is no folder; name the one that holds the run folders")
    known: Known = {}
    before: object = None
    while not stopping():
        if (now := stamps(runs)) and now != before:
            yield write(gather(runs, effective, known=known), out, REFRESH)
            before = now
        end = monotonic() + pause
        while not stopping() and monotonic() < end:
            sleep(0.05)
    if stamps(runs):
        yield write(gather(runs, effective, known=known), out)


def page(content: Mapping[str, Any], refresh: int | None = None) -> str:
    """Return the content that `gather` collected as HTML, with style, script and data inside.

    Nothing of the content can become markup: the data are packed into letters and digits, and the page may run only two
    scripts, whose hashes it names. The hash of the empty style lets Plotly make a style sheet by its own code.
    """
    library, packed = plotly()
    folder = resources.files(__package__)
    files = (folder / name for name in ("page.html", "page.css", *SCRIPTS))
    template, style, *scripts = (file.read_text(encoding="utf-8") for file in files)
    script = '"use strict";\n(async () => {\n' + "\n".join(scripts) + "})();\n"
    data = {**content, "looks": _looks(), "version": __version__, "refresh": refresh}
    allowed = f"script-src {_hash(script)} {library}; style-src {_hash(style)} {_hash('')}"
    parts = {
        "title": html.escape(f"{content['title']} – barebones report"),
        "policy": f"default-src 'none'; {allowed}; img-src data:",
        "style": style,
        "script": script,
        "library": packed,
        "data": _packed(json.dumps(data, allow_nan=False, separators=(",", ":"))),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda name: parts[name[1]], template)


@cache
def plotly() -> tuple[str, str]:
    """Return the hash of Plotly's JavaScript, and the JavaScript itself, packed."""
    source = optional("plotly.offline", "the report's charts are drawn with Plotly", "report").get_plotlyjs()
    return _hash(source), _packed(source)


def _looks() -> dict[str, dict[str, str]]:
    """Return the colors and glyph of every method ("": of none), and the label of one of the user's own."""
    return {
        name: {"light": color, "dark": DARK_DENSE if name == DENSE else _lighter(color), "glyph": mark(marker)[1]}
        | ({"label": label} if is_code(name) else {})
        for name, (label, color, marker) in (looks() | {"": look("")}).items()
    }


def _lighter(color: str) -> str:
    """Return the same hue, mixed with white until it can be seen on a dark page.

    >>> _lighter("#E69F00"), _lighter("#332288"), _lighter("teal")
    ('#e69f00', '#8b81bb', 'teal')
    """
    if not re.fullmatch("#[0-9a-fA-F]{6}", color):  # a name such as "teal": browsers know it as well
        return color
    channels = [int(color[at : at + 2], 16) for at in (1, 3, 5)]
    brightness = sum(weight * each / 255 for weight, each in zip((0.2126, 0.7152, 0.0722), channels, strict=True))
    white = (BRIGHTNESS - brightness) / (1 - brightness) if brightness < BRIGHTNESS else 0
    return "#" + "".join(f"{round(each + (255 - each) * white):02x}" for each in channels)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"


def _packed(text: str) -> str:
    """Return a text compressed, as letters and digits; the same text always gives the same."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
