"""Tidy rows: the numbers behind a figure, written to a CSV file and read back; and their statistics over seeds."""

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from ...files.container import atomically
from ...messages import shortened

Row = dict[str, Any]
Rows = list[Row]
TEXTS = ("source", "data", "model", "method", "control", "kind", "widths")  # columns that hold text
FORMULA = re.compile(r"[\t\r\n]|\s*[=+\-@＝＋－＠]")  # the beginning of a cell that a spreadsheet may compute
QUOTED = re.compile(rf"'+({FORMULA.pattern})")


def write(rows: Sequence[Row], path: Path, columns: Iterable[str] = ()) -> None:
    """Write one line for each row; the columns are `columns`, then others in the order of their first appearance."""
    names = dict.fromkeys([*columns, *(name for row in rows for name in row)])
    lines = [names, *([row.get(name) for name in names] for row in rows)]
    text = "".join(",".join(map(cell_of, line)) + "\n" for line in lines)
    with atomically(path) as file:
        file.write(text.encode())


def markdown(head: Sequence[str], body: Iterable[Sequence[str]], note: str) -> str:
    """Return a table in Markdown, the first column aligned left and the others right, and a note below it.

    >>> print(markdown(["method", "accuracy"], [["SNIP", "10.0"]], "In %."))
    | method | accuracy |
    | --- | ---: |
    | SNIP | 10.0 |
    <BLANKLINE>
    In %.
    <BLANKLINE>
    """
    ruler = ["---", *["---:"] * (len(head) - 1)]
    lines = (" | ".join(encodable(cell).replace("|", "\\|") for cell in line) for line in (head, ruler, *body))
    return "".join(f"| {line} |\n" for line in lines) + f"\n{note}\n"


def read(path: Path, columns: Sequence[str] = (), texts: Sequence[str] = ()) -> Rows:
    """Return the rows that `write` wrote, perhaps packed as .gz; numbers in the columns `texts` stay text."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            text = file.read().decode()
        lines = [line for line in csv.reader(io.StringIO(text, newline="")) if line]
    except (UnicodeDecodeError, csv.Error, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is not a CSV file that barebones figure wrote ({error})") from None
    if len(lines) < 2:
        raise ValueError(f"{path} holds no rows")
    head, *body = [[_unquoted(cell) for cell in lines[0]], *lines[1:]]
    if missing := [name for name in columns if name not in head]:
        raise ValueError(f"{path} is not the table of this figure: it has no column {shortened(missing, most=1)}")
    for number, line in enumerate(body, 1):
        if len(line) != len(head):
            raise ValueError(f"{path} is damaged: row {number} has {len(line)} fields instead of {len(head)}")
    if not text.endswith(("\n", "\r")):
        raise ValueError(f"{path} is damaged: its last line is incomplete")
    readers = [(lambda cell: _unquoted(cell) or None) if name in texts else value_of for name in head]
    rows = [{name: read(cell) for name, read, cell in zip(head, readers, line, strict=True)} for line in body]
    for row, name in product(rows, columns):
        if isinstance(row[name], str) != (name in TEXTS) and row[name] is not None:
            wrong = f"the column {name} holds {str(row[name])[:40]!r}, not {'text' if name in TEXTS else 'a number'}"
            raise ValueError(f"{path} is not the table of this figure: {wrong}")
    return rows


def cell_of(value: Any) -> str:
    """Return a value as a cell. A text that a spreadsheet would compute gets a quote before it; a number does not.

    Python's csv does not enclose a carriage return, which would break the line.

    >>> [cell_of(value) for value in ("snip", "=1+1", "-1", -1, None, "'=1", "a\\rb", 'a "b"')]
    ['snip', "'=1+1", '-1', '-1', '', "''=1", '"a\\rb"', '"a ""b\"""']
    """
    text = "" if value is None else encodable(str(value))
    if isinstance(value, str) and (QUOTED.match(text) or (FORMULA.match(text) and isinstance(value_of(text), str))):
        text = f"'{text}"
    return '"' + text.replace('"', '""') + '"' if re.search('[,"\r\n]', text) else text


def encodable(text: str) -> str:
    """Return the text with an escape for each half of a character, which UTF-8 cannot hold but JSON can."""
    return text.encode(errors="backslashreplace").decode()


def value_of(cell: str | None) -> Any:
    """Return the number or text in a cell, without the quote that `cell_of` puts before a formula.

    >>> [value_of(cell) for cell in ("", "3", "0.5", "snip", "True", "'=1")]
    [None, 3, 0.5, 'snip', True, '=1']
    """
    if cell is None or cell == "":
        return None
    if cell in ("True", "False"):
        return cell == "True"
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return _unquoted(cell)


def _unquoted(cell: str) -> str:
    return cell[1:] if QUOTED.match(cell) else cell


def grouped(rows: Iterable[Row], *names: str) -> dict[Any, Rows]:
    """Group the rows by the values of these columns, in the order of their first appearance.

    >>> grouped([{"a": 1, "b": 2}, {"a": 1, "b": 3}], "a")
    {1: [{'a': 1, 'b': 2}, {'a': 1, 'b': 3}]}
    """
    groups: dict[Any, Rows] = {}
    for row in rows:
        values = tuple(row[name] for name in names)
        groups.setdefault(values[0] if len(names) == 1 else values, []).append(row)
    return groups


class Spread(NamedTuple):
    """The mean of some numbers, their standard deviation and how many there are."""

    mean: float | None  # None without any number
    deviation: float | None  # of a sample; None for fewer than two numbers
    number: int


def spread(values: Iterable[float | None]) -> Spread:
    """Return the mean and standard deviation of the values that are not None.

    >>> spread([1.0, 3.0, None])
    Spread(mean=2.0, deviation=1.4142135623730951, number=2)
    >>> spread([2.0]), spread([])
    (Spread(mean=2.0, deviation=None, number=1), Spread(mean=None, deviation=None, number=0))
    """
    known = [value for value in values if value is not None]
    return Spread(fmean(known) if known else None, stdev(known) if len(known) > 1 else None, len(known))


def one_per_seed(rows: Iterable[Row]) -> Rows:
    """Return a row for each seed, the first with an accuracy if it has one; so a copied run folder changes nothing.

    >>> one_per_seed([{"seed": 0, "top1": 0.5}, {"seed": 1, "top1": 0.7}, {"seed": 0, "top1": 0.5}])
    [{'seed': 0, 'top1': 0.5}, {'seed': 1, 'top1': 0.7}]
    """
    seeds = grouped(sorted(rows, key=lambda row: row["top1"] is None), "seed").values()
    return [copies[0] for copies in seeds]
