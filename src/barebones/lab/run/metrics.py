"""Metrics: one line of JSON per round and epoch. The lines do not depend on how often a run was interrupted."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from ...files import container as files
from .checksums import SEAL, Identity, digest, misfit

METRICS = "metrics.jsonl"
REMEDY = "delete its folder and run the experiment again"  # for a file that is damaged, or belongs to another run
COUNTED = {"pretrain": "epoch", "prune": "round", "train": "epoch"}  # what the lines of a stage count
ELAPSED = {"prune": {"elapsed": "float"}}
MARK = {"lines": "int", "seal": "str"}

Line = dict[str, Any]  # it counts rounds and epochs from 1
Mark = dict[str, Any]  # how many lines a file has, and the seal of the last; the form of MARK


class Track(Protocol):
    """What gets each line besides the file, see `tracking`."""

    def begin(self, lines: Sequence[Line]) -> None:
        """Get the lines that are in the file when the run begins or resumes."""

    def log(self, index: int, line: Line) -> None:
        """Get one more line, and its place among all lines."""


class Metrics:
    """The file metrics.jsonl of a run.

    The first line says which run the file belongs to. Then a line is appended when a round or an epoch ends. Each has
    a seal, which depends on all lines before it. So a change, a lost line and a line of another run are noticed.

    `lines` are as they are in the file. A file that is written after some lines keeps their `mark`. The run that
    resumes from this file begins with `rewind`, which checks that these lines are there, and removes those that the run
    will write again.
    """

    def __init__(
        self,
        path: Path,
        identity: Identity,
        report: Callable[[Line], None] = lambda line: None,
        track: Track | None = None,
        owned: Callable[[], None] = lambda: None,
    ) -> None:
        self.path, self.stamp, self.report, self.track = path, identity.stamp(METRICS), report, track
        self.owned = owned  # raises if the folder of the run belongs to another process now
        self.file: BinaryIO | None = None  # kept open: what is written never gets into a file that replaced it
        self.lines, self.seals, self.problem = _parsed(path, identity)
        self.seals = self.seals or [_seal("", self.stamp)]  # of the first line and of each of `lines`

    def check(self, mark: Mark) -> None:
        """Raise a `ValueError` unless the lines up to a mark are there."""
        count = mark["lines"]
        if count > len(self.lines):
            since = f" after {_words(self.lines[-1])}" if self.lines else ""
            why = f", because {self.problem}" if self.problem else ""
            lost = f"{count - len(self.lines)} of {count} lines{since}{why}"
            raise ValueError(f"{self.path} has lost {lost}; {REMEDY}")
        if count < 0 or mark["seal"] != self.seals[count]:
            raise ValueError(f"{self.path} has other lines than those that the run had written; {REMEDY}")

    def rewind(self, mark: Mark | None = None) -> None:
        """Remove the lines after a mark; without one, all lines. The lines before it are checked."""
        count = mark["lines"] if mark else 0
        if mark:
            self.check(mark)
        if self.file is None or count < len(self.lines):
            self.owned()
            del self.lines[count:], self.seals[count + 1 :]
            self._rewrite()

    def mark(self) -> Mark:
        """Put all lines on the disk, and return the mark for the file that is written next."""
        assert self.file is not None
        os.fsync(self.file.fileno())
        return {"lines": len(self.lines), "seal": self.seals[-1]}

    def __call__(self, line: Line) -> None:
        """Append a line, report it, and track it."""
        assert self.file is not None
        self.owned()
        self.lines.append(finite(line))
        self.seals.append(_seal(self.seals[-1], self.lines[-1]))
        rest = memoryview(_text(self.lines[-1], self.seals[-1]))
        try:
            while rest:
                rest = rest[self.file.write(rest) :]
        except OSError as error:  # a full disk does not name the file
            raise OSError(error.errno, f"cannot write ({error.strerror})", str(self.path)) from None
        if self.track is not None:
            self.track.log(len(self.lines) - 1, self.lines[-1])
        self.report(line)

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()

    def _rewrite(self) -> None:
        """Write the file again with the present lines, and track them."""
        self.close()
        with files.put_only_if(self.owned), files.atomically(self.path) as file:
            file.write(b"".join(map(_text, [self.stamp, *self.lines], self.seals)))
        self.file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (open until the run ends)
        if self.track is not None:
            self.track.begin(self.lines)


def read(path: Path, identity: Identity | None = None, mark: Mark | None = None) -> list[Line]:
    """Return the lines of a metrics file; half a line at its end, which a running process may leave, is ignored.

    Raise a `ValueError` if a line is damaged or lost, if the file belongs to another run than that of `identity`, or
    if it does not end where `mark` says.
    """
    lines, seals, problem = _parsed(path, identity)
    if not problem and mark and seals and (len(lines), seals[-1]) != (mark["lines"], mark["seal"]):
        problem = f"it has {len(lines)} lines instead of the {mark['lines']} that the run had written"
    if problem:
        raise ValueError(f"{path} is damaged ({problem}); {REMEDY}")
    return lines


def _parsed(path: Path, identity: Identity | None) -> tuple[list[Line], list[str], str]:
    """Return the whole lines of a file without seals, all seals, and what is wrong with the line after the last one."""
    try:
        rows = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return [], [], ""
    contents: list[Line] = []
    seals: list[str] = []
    for number, row in enumerate(rows, 1):
        try:
            content = json.loads(row)
            seal = content.pop(SEAL)
            if seal != _seal(seals[-1] if seals else "", content):
                return contents[1:], seals, f"line {number} has changed, or a line before it is lost"
            if contents and (wrong := _misfit(content)):
                return contents[1:], seals, f"line {number} is no line of metrics: {wrong}"
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            return contents[1:], seals, f"line {number} is not a sealed line"
        if not contents and identity is not None and (problem := identity.problem(content, METRICS)):
            raise ValueError(f"{path} {problem}; {REMEDY}")
        contents.append(content)
        seals.append(seal)
    return contents[1:], seals, "" if seals else "its first line is missing"


def _misfit(line: Line) -> str:
    """Say which value of a line does not have the form of its stage; return an empty string if all have it."""
    if line.get("stage") not in COUNTED:
        return "it has no stage"
    unit = COUNTED[line["stage"]]
    return misfit(line, {unit: "int", unit + "s": "int", "seconds": "float"} | ELAPSED.get(line["stage"], {}))


def _seal(before: str, content: Any) -> str:
    return digest([before, content])[:16]


def _text(content: Line, seal: str) -> bytes:
    return json.dumps(content | {SEAL: seal}).encode() + b"\n"


def _words(line: Line) -> str:
    """Return the place of a line in words.

    >>> _words({"stage": "train", "epoch": 3})
    'epoch 3 of train'
    """
    unit = COUNTED[line["stage"]]
    return f"{unit} {line[unit]} of {line['stage']}"


def finite(value: Any) -> Any:
    """Replace infinity and NaN, which JSON does not have, by None."""
    return json.loads(json.dumps(value), parse_constant=lambda name: None)
