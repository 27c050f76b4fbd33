"""Metrics: one line of JSON per round and epoch. The lines do not depend on how often a run was interrupted."""

import json
import os
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from ...files import container as files
from .checksums import check_stamp, stamp

METRICS = "metrics.jsonl"
REMEDY = "delete its folder and run the experiment again"  # for a file that is damaged, or belongs to another run
COUNTED = {"pretrain": "epoch", "prune": "round", "train": "epoch"}  # what the lines of a stage count

Line = dict[str, Any]  # it counts rounds and epochs from 1
Mark = dict[str, Any]  # how many lines a file has, and the digest of all of them
Track = Callable[[int, Line], None]  # gets each line besides the file, and its place among all lines; see `tracking`


class Metrics:
    """The file metrics.jsonl of a run: its first row names the run, and a line follows when a round or an epoch ends.

    A file that is written after some lines keeps their `mark`. The run that resumes from this file begins with
    `rewind`, which checks that these lines are there, and removes those that the run will write again.
    """

    def __init__(
        self,
        path: Path,
        run: str,
        report: Callable[[Line], None] = lambda line: None,
        tracks: Sequence[Track] = (),
        owned: Callable[[], None] = lambda: None,
    ) -> None:
        self.path, self.report, self.tracks = path, report, tracks
        self.owned = owned  # raises if the folder of the run belongs to another process now
        self.file: BinaryIO | None = None  # kept open: what is written never gets into a file that replaced it
        self.rows = _rows(path, run) or [_text({"run": stamp(run, METRICS)})]

    @property
    def lines(self) -> list[Line]:
        return [json.loads(row) for row in self.rows[1:]]

    def check(self, mark: Mark) -> None:
        _check(self.path, self.rows, mark)

    def rewind(self, mark: Mark | None = None) -> None:
        """Remove the lines after a mark; without one, all lines. The lines before it are checked."""
        _check(self.path, self.rows, mark)
        count = 1 + mark["lines"] if mark else 1
        if self.file is not None and count == len(self.rows):
            return
        self.owned()
        del self.rows[count:]
        self.close()
        with files.put_only_if(self.owned), files.atomically(self.path) as file:
            file.write(b"".join(self.rows))
        self.file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (open until the run ends)
        for index, line in enumerate(self.lines):
            self._track(index, line)

    def mark(self) -> Mark:
        """Put all lines on the disk, and return the mark for the file that is written next."""
        assert self.file is not None
        os.fsync(self.file.fileno())
        return {"lines": len(self.rows) - 1, "digest": _digest(self.rows)}

    def __call__(self, line: Line) -> None:
        """Append a line, report it, and track it."""
        assert self.file is not None
        self.owned()
        self.rows.append(_text(finite(line)))
        rest = memoryview(self.rows[-1])
        try:
            while rest:
                rest = rest[self.file.write(rest) :]
        except OSError as error:  # a full disk does not name the file
            raise OSError(error.errno, f"cannot write ({error.strerror})", str(self.path)) from None
        self._track(len(self.rows) - 2, finite(line))
        self.report(line)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()

    def _track(self, index: int, line: Line) -> None:
        for track in self.tracks:
            track(index, line)


def read(path: Path, run: str | None = None, mark: Mark | None = None) -> list[Line]:
    """Return the lines of a file, which must end at `mark`; the half line of a running process is ignored."""
    rows = _rows(path, run)
    _check(path, rows, mark)
    if mark and len(rows) > 1 + mark["lines"]:
        raise ValueError(f"{path} has more lines than the {mark['lines']} that the run had written; {REMEDY}")
    lines: list[Line] = []
    for number, row in enumerate(rows[1:], 2):
        try:
            line = json.loads(row)
            unit = COUNTED[line["stage"]]
            if not isinstance(line[unit] + line[unit + "s"], int):
                raise ValueError
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path} is damaged in line {number}; {REMEDY}") from None
        lines.append(line)
    return lines


def _check(path: Path, rows: list[bytes], mark: Mark | None) -> None:
    """Raise a `ValueError` unless the lines up to a mark are there."""
    if mark is None:
        return
    if (lost := 1 + mark["lines"] - max(len(rows), 1)) > 0:
        raise ValueError(f"{path} has lost {lost} of {mark['lines']} lines; {REMEDY}")
    if _digest(rows[: 1 + mark["lines"]]) != mark["digest"]:
        raise ValueError(f"{path} has other lines than those that the run had written; {REMEDY}")


def _rows(path: Path, run: str | None) -> list[bytes]:
    """Return the whole rows of a file, the first of which must name this run; no rows if there is no file."""
    try:
        rows = [row + b"\n" for row in path.read_bytes().split(b"\n")[:-1]]
    except FileNotFoundError:
        return []
    if rows:
        try:
            named = json.loads(rows[0])["run"]
            check_stamp(path, named, named.rpartition("/")[0] if run is None else run)
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError, UnicodeDecodeError):
            raise ValueError(f"{path} is damaged in line 1; {REMEDY}") from None
        except ValueError as error:
            raise ValueError(f"{error}; {REMEDY}") from None
    return rows


def _digest(rows: list[bytes]) -> str:
    return sha256(b"".join(rows)).hexdigest()


def _text(content: Line) -> bytes:
    return json.dumps(content).encode() + b"\n"


def finite(value: Any) -> Any:
    """Replace infinity and NaN, which JSON does not have, by None."""
    return json.loads(json.dumps(value), parse_constant=lambda name: None)
