"""Metrics: one line of JSON per round and epoch, the same lines however often a run was interrupted."""

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
    """The file metrics.jsonl of a run and, on request, its TensorBoard log.

    A line is appended when a round or an epoch ends. A run that was killed may have written lines after its last
    checkpoint, or half a line. `rewind` removes them when the run resumes.
    """

    def __init__(self, folder: Path, report: Callable[[Line], None], tensorboard: bool = False) -> None:
        self.path, self.report = folder / METRICS, report
        self.board = Board(folder / "tensorboard") if tensorboard else None
        self._rewrite(read(self.path))

    def rewind(self, stage: str, after: int) -> None:
        """Remove the lines of a stage from number `after` on, and those of all later stages."""
        lines = read(self.path)
        kept = [line for line in lines if _place(line) < (STAGES.index(stage), after)]
        if len(kept) < len(lines):
            self._rewrite(kept)

    def __call__(self, line: Line) -> None:
        """Append a line, report it, and log it to TensorBoard."""
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(_finite(line)) + "\n")
        except OSError as error:  # a full disk does not name the file
            raise OSError(error.errno, f"cannot write ({error.strerror})", str(self.path)) from None
        if self.board is not None:
            self.board(_finite(line))
        self.report(line)

    def close(self) -> None:
        """Close the TensorBoard log."""
        if self.board is not None:
            self.board.close()

    def _rewrite(self, lines: list[Line]) -> None:
        with files.atomically(self.path) as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines).encode())
        if self.board is not None:
            self.board.begin(lines)


STAGES = ("pretrain", "prune", "train")
COUNTED = {"pretrain": "epoch", "prune": "round", "train": "epoch"}  # what the lines of a stage count


def read(path: Path) -> list[Line]:
    """Return the complete lines of a metrics file; half a line, which a killed process may have left, is ignored."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    lines = []
    for row in text.splitlines():
        try:
            line = json.loads(row)
            _place(line)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            break  # lines after a broken one may be out of order
        lines.append(line)
    return lines


def _place(line: Line) -> tuple[int, int]:
    number = COUNTED[line["stage"]]
    if int(line[number]) >= int(line[f"{number}s"]):
        raise ValueError(f"{number} {line[number]} of {line[f'{number}s']}")
    return STAGES.index(line["stage"]), int(line[number])


def _finite(value: Any) -> Any:
    """Replace infinity and NaN, which JSON does not have, by None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return value


class Board:
    """A TensorBoard log: the numbers of the lines as scalars, by stage."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ImportError("--tensorboard needs TensorBoard: pip install 'barebones[tensorboard]'") from None
        self.folder, self.make = folder, SummaryWriter
        self.writer: Any = None

    def begin(self, lines: list[Line]) -> None:
        """Start the log again with these lines, without whatever was logged after them."""
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
        """Close the log."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None


def _scalars(line: Line, prefix: str = "") -> list[tuple[str, float]]:
    scalars: list[tuple[str, float]] = []
    for name, value in line.items():
        if isinstance(value, dict):
            scalars += [] if name == "layers" else _scalars(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            scalars.append((prefix + name, float(value)))
    return scalars
