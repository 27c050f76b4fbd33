"""Metrics: one line of JSON per round and epoch. The lines do not depend on how often a run was interrupted."""

from __future__ import annotations

import json
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
        self.board = folder / "tensorboard" if tensorboard else None
        self.writer: Any = None  # of the TensorBoard log
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
                file.write(json.dumps(finite(line)) + "\n")
        except OSError as error:  # a full disk does not name the file
            raise OSError(error.errno, f"cannot write ({error.strerror})", str(self.path)) from None
        self._log(finite(line))
        self.report(line)

    def close(self) -> None:
        """Close the TensorBoard log."""
        if self.writer is not None:
            self.writer.close()

    def _rewrite(self, lines: list[Line]) -> None:
        """Write the file again with these lines only, and remove from TensorBoard's log what was logged later."""
        with files.atomically(self.path) as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines).encode())
        if self.board is not None:
            self.close()
            shutil.rmtree(self.board, ignore_errors=True)
            self.writer = _summary_writer(self.board)
            for line in lines:
                self._log(line)

    def _log(self, line: Line) -> None:
        """Log the numbers of a line to TensorBoard, by stage."""
        if self.writer is not None:
            stage, counted = line["stage"], COUNTED[line["stage"]]
            for name, value in _scalars(line):
                if name not in (counted, counted + "s"):
                    self.writer.add_scalar(f"{stage}/{name}", value, line[counted])
            self.writer.flush()


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
            lines.append(json.loads(row))
        except ValueError:
            break  # lines after a broken one may be out of order
    return lines


def _place(line: Line) -> tuple[int, int]:
    return STAGES.index(line["stage"]), line[COUNTED[line["stage"]]]


def finite(value: Any) -> Any:
    """Replace infinity and NaN, which JSON does not have, by None."""
    return json.loads(json.dumps(value), parse_constant=lambda name: None)


def _summary_writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ImportError("--tensorboard needs TensorBoard: pip install 'barebones[tensorboard]'") from None
    return SummaryWriter(str(folder))


def _scalars(line: Line, prefix: str = "") -> list[tuple[str, float]]:
    scalars: list[tuple[str, float]] = []
    for name, value in line.items():
        if isinstance(value, dict):
            scalars += [] if name == "layers" else _scalars(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            scalars.append((prefix + name, float(value)))
    return scalars
