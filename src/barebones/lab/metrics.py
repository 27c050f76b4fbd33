"""Metrics: one line of JSON for every round and epoch, the same lines again however often a run was interrupted."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..files import container as files

METRICS = "metrics.jsonl"

Line = dict[str, Any]


class Metrics:
    """The file metrics.jsonl of a run, and its TensorBoard log where that is asked for.

    A line is appended when a round or an epoch ends. A run that was killed may have written lines beyond its last
    checkpoint, or half of one: `rewind` takes them back when it continues.
    """

    def __init__(self, folder: Path, report: Callable[[Line], None], tensorboard: bool = False) -> None:
        self.path, self.report = folder / METRICS, report
        self.board = Board(folder / "tensorboard") if tensorboard else None
        lines = read(self.path)
        self._write_anew(lines)

    def rewind(self, stage: str, after: int) -> None:
        """Forget the lines of a stage from number `after` on, and those of all later stages."""
        lines = read(self.path)
        kept = [line for line in lines if _place(line) < (STAGES.index(stage), after)]
        if len(kept) < len(lines):
            self._write_anew(kept)

    def __call__(self, line: Line) -> None:
        """Append a line, show it, and log it."""
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(_finite(line)) + "\n")
        except OSError as error:  # a full disk names nothing
            raise OSError(error.errno, f"cannot write ({error.strerror})", str(self.path)) from None
        if self.board is not None:
            self.board(_finite(line))
        self.report(line)

    def close(self) -> None:
        """Let go of the TensorBoard log."""
        if self.board is not None:
            self.board.close()

    def _write_anew(self, lines: list[Line]) -> None:
        with files.atomically(self.path) as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines).encode())
        if self.board is not None:
            self.board.begin(lines)


STAGES = ("pretrain", "prune", "train")
COUNTED = {"pretrain": "epoch", "prune": "round", "train": "epoch"}  # what its lines are numbered by


def read(path: Path) -> list[Line]:
    """The whole lines of a metrics file; what a killed process left of the last one is passed over."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    found = []
    for row in text.splitlines():
        try:
            line = json.loads(row)
            _place(line)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            break  # nothing after a broken line can be trusted to be in order
        found.append(line)
    return found


def _place(line: Line) -> tuple[int, int]:
    number = COUNTED[line["stage"]]
    if int(line[number]) >= int(line[f"{number}s"]):
        raise ValueError(f"{number} {line[number]} of {line[f'{number}s']}")
    return STAGES.index(line["stage"]), int(line[number])


def _finite(value: Any) -> Any:
    """With null for what JSON has no word for."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return value


class Board:
    """The numbers of the lines as TensorBoard's scalars, by stage."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ImportError("--tensorboard needs TensorBoard: pip install 'barebones[tensorboard]'") from None
        self.folder, self.make = folder, SummaryWriter
        self.writer: Any = None

    def begin(self, lines: list[Line]) -> None:
        """Start the log anew with these lines: what was logged beyond them did not happen."""
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.writer = self.make(str(self.folder))
        for line in lines:
            self(line)

    def __call__(self, line: Line) -> None:
        """Log the numbers of a line."""
        stage, number = line["stage"], line[COUNTED[line["stage"]]]
        assert self.writer is not None
        for name, value in _scalars(line):
            if name not in (COUNTED[stage], COUNTED[stage] + "s"):
                self.writer.add_scalar(f"{stage}/{name}", value, number)
        self.writer.flush()

    def close(self) -> None:
        """End the log."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None


def _scalars(line: Line, prefix: str = "") -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name, value in line.items():
        if isinstance(value, dict):
            found += [] if name == "layers" else _scalars(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.append((prefix + name, float(value)))
    return found
