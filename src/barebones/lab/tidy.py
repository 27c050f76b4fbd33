"""Tidy rows: the numbers behind a picture, as a CSV file and back."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ..files.container import atomically

Row = dict[str, Any]
Rows = list[Row]
WORDS = ("source", "data", "model", "method", "kind", "widths")  # columns without numbers


def write(rows: Sequence[Row], path: Path) -> None:
    """One line for each row; the columns are those of all rows, in the order in which they first appear."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    lines = csv.DictWriter(text, columns, lineterminator="\n")
    lines.writeheader()
    lines.writerows(rows)
    with atomically(path) as file:
        file.write(text.getvalue().encode())


def read(path: Path, columns: Sequence[str] = ()) -> Rows:
    """What `write` wrote: numbers as numbers, empty cells as None; a file of another kind is a `ValueError`.

    So is one that lacks any of these columns, or whose lines are not all as long as the first.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            text = file.read()
        lines = [line for line in csv.reader(io.StringIO(text, newline="")) if line]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is no table of numbers as barebones figure writes it ({error})") from None
    if len(lines) < 2:
        raise ValueError(f"{path} holds no rows; delete it to compute them again")
    head, *body = lines
    if missing := [name for name in columns if name not in head]:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ValueError(f"{path} is not the table of this figure: it has no column {missing[0]!r}{more}")
    for number, line in enumerate(body, 1):
        if len(line) != len(head):
            raise ValueError(f"{path} is damaged: row {number} has {len(line)} fields, and its head {len(head)}")
    if not text.endswith(("\n", "\r")):
        raise ValueError(f"{path} is damaged: its last line has no end")
    rows = [{name: value_of(cell) for name, cell in zip(head, line, strict=True)} for line in body]
    for row, name in product(rows, columns):
        if isinstance(row[name], str) != (name in WORDS) and row[name] is not None:
            kind = "word" if name in WORDS else "number"
            raise ValueError(f"{path} is not the table of this figure: {str(row[name])[:40]!r} is no {kind} for {name}")
    return rows


def value_of(cell: str | None) -> Any:
    """The number or word in a cell.

    >>> [value_of(cell) for cell in ("", "3", "0.5", "snip", "True")]
    [None, 3, 0.5, 'snip', True]
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
    return cell


def grouped(rows: Iterable[Row], *names: str) -> dict[Any, Rows]:
    """The rows by the values of these columns, in the order in which they first appear.

    >>> grouped([{"a": 1, "b": 2}, {"a": 1, "b": 3}], "a")
    {1: [{'a': 1, 'b': 2}, {'a': 1, 'b': 3}]}
    """
    key: Callable[[Row], Hashable] = lambda row: tuple(row[name] for name in names)  # noqa: E731
    found: dict[Any, Rows] = {}
    for row in rows:
        own = key(row)
        found.setdefault(own[0] if len(names) == 1 else own, []).append(row)  # type: ignore[index]
    return found


def spread(values: Iterable[float | None]) -> tuple[float, float]:
    """Mean and standard deviation (of a sample; 0 for a single value) of those that are there.

    >>> spread([1.0, 3.0, None]), spread([2.0])
    ((2.0, 1.4142135623730951), (2.0, 0.0))
    """
    there = [value for value in values if value is not None]
    if not there:
        return float("nan"), float("nan")
    return fmean(there), stdev(there) if len(there) > 1 else 0.0
