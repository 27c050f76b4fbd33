"""Phrases that several messages share, and tables as plain text."""

import difflib
import re
from collections.abc import Iterable, Sequence
from html import escape
from io import StringIO
from typing import Any

from rich.console import Console
from rich.containers import Lines
from rich.text import Text

WIDTH = 80  # columns of tables as plain text
LONGEST = 60  # characters of a wrong value that an error shows


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggest the known name that is closest to a misspelled one; an empty string if none is close.

    >>> did_you_mean("forse", ["force", "snip"]), did_you_mean("xyz", ["force", "snip"])
    ("; did you mean 'force'?", '')
    """
    closest = difflib.get_close_matches(name.lower(), list(known), n=1)
    return f"; did you mean {closest[0]!r}?" if closest else ""


def unknown(kind: str, name: object, known: Iterable[str]) -> str:
    """Say that a name is not known, suggest the closest one and list all.

    >>> unknown("method", "forse", ["force", "snip"])
    "there is no method 'forse'; did you mean 'force'? Choose one of force, snip"
    """
    names = list(known)
    hint = did_you_mean(str(name)[:LONGEST], names)
    return f"there is no {kind} {shown(name)}{hint + ' Choose' if hint else '; choose'} one of {', '.join(names)}"


def shortened(names: Iterable[str], most: int = 5) -> str:
    """List the first names and count the others.

    >>> shortened(["a", "b", "c", "d"], most=2), shortened(["a", "b"], most=2)
    ('a, b and 2 more', 'a, b')
    """
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def empty_layers(names: Sequence[str], layers: int) -> str:
    """Say how many of a network's layers are empty, and name the first of them; an empty string if none is.

    >>> empty_layers(["fc.weight"], 3), empty_layers(["a", "b"], 2), empty_layers([], 3)
    ('1 of 3 layers keeps no weight: fc.weight', '2 of 2 layers keep no weight: a, b', '')
    """
    verb = "keeps" if len(names) == 1 else "keep"
    return f"{len(names)} of {layers} layers {verb} no weight: {shortened(names)}" if names else ""


def disconnected_outputs(disconnected: int | None, outputs: int | None) -> str:
    """Say how many outputs of a network no signal reaches; an empty string if there are none or that is not known.

    >>> disconnected_outputs(6, 10), disconnected_outputs(0, 10), disconnected_outputs(None, None)
    ('no signal reaches 6 of 10 outputs', '', '')
    """
    return f"no signal reaches {disconnected} of {outputs} outputs" if disconnected else ""


def counted(number: int, noun: str, plural: str = "s") -> str:
    """Return a number with its noun.

    >>> counted(1, "epoch"), counted(2, "epoch"), counted(3, "batch", "es")
    ('1 epoch', '2 epochs', '3 batches')
    """
    return f"{number} {noun}{plural * (number != 1)}"


def shape_of(tensor: Any) -> str:
    """Write the shape of a tensor, or a tuple of sizes, as people do.

    >>> shape_of((64, 3, 3, 3)), shape_of(())
    ('64×3×3×3', 'a scalar')
    """
    return "×".join(map(str, getattr(tensor, "shape", tensor))) or "a scalar"


def printable(text: str) -> str:
    """Return the text on one line that no terminal takes for commands: what cannot be printed becomes an escape.

    >>> printable("a\\nb – \\x1b[2J")
    'a\\\\nb – \\\\x1b[2J'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message that is not empty, or its class; of an OSError without the number.

    >>> first_line(ValueError("no such file\\nat line 3")), first_line(StopIteration())
    ('no such file', 'StopIteration')
    """
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


class Dotted(Text):
    """A name in a table, broken after its dots where the column is too narrow for it.

    >>> [line.plain for line in Dotted("encoder.layer.0.query").wrap(Console(), 16)]
    ['encoder.layer.0.', 'query']
    """

    def wrap(self, console: Console, width: int, *args: Any, **options: Any) -> Lines:
        lines = re.findall(rf".{{1,{width}}}(?:(?<=\.)|$)|[^.]+\.?", self.plain)
        return Text("\n".join(lines), self.style).wrap(console, width, *args, **options | {"overflow": "fold"})


def plain_text(table: Any) -> str:
    """Return what rich would print, without colors and spaces at the end of lines.

    >>> plain_text("[red]FORCE[/] ")
    'FORCE'
    """
    console = Console(file=StringIO(), width=WIDTH, color_system=None, legacy_windows=False, force_jupyter=False)
    with console.capture() as text:
        console.print(table)
    return "\n".join(line.rstrip() for line in text.get().splitlines())


def html_bars(text: str, layers: Iterable[tuple[str, int, int, int]]) -> str:
    """Return a text and a bar for each layer as HTML, for notebooks.

    A layer has a name, its weights, the kept ones and the effective ones; the bar is pale where these last two differ.

    >>> html_bars("Pruned", [("fc", 8, 4, 2)]).count("<tr>"), "50 %" in html_bars("Pruned", [("fc", 8, 4, 2)])
    (1, True)
    """
    rows = []
    for name, total, kept, effective in layers:
        parts = ((effective, "#d55e00"), (kept - effective, "#f2c9ad"))
        widths = ((f"{12 * part / max(total, 1):.3f}em", color) for part, color in parts)
        bar = "".join(f'<i style="display:inline-block;height:.8em;width:{w};background:{c}"></i>' for w, c in widths)
        share = f"{100 * kept / max(total, 1):.3g} %" if kept else "empty"
        frame = f'<div style="width:12em;background:#8883;white-space:nowrap;line-height:1">{bar}</div>'
        cells = (escape(name), f"{kept:,} of {total:,}", share, frame)
        rows.append("<tr>" + "".join(f'<td style="text-align:left">{cell}</td>' for cell in cells) + "</tr>")
    return f'<pre style="white-space:pre-wrap">{escape(text)}</pre><table>{"".join(rows)}</table>'


def shown(value: Any) -> str:
    """Return a value from a file as one short line for an error.

    >>> shown("a\\nb"), shown("x" * 100)[-5:]
    ("'a\\\\nb'", 'xx...')
    """
    text = printable(repr(value))
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
