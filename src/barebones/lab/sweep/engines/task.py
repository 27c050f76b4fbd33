"""A task: one experiment that runs on some node of a cluster, beside the folder of the runs, which all nodes share."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from ...experiment import recipes
from ...experiment.experiment import Experiment
from ...run.metrics import Line
from ...run.options import RunOptions
from ...run.run import Stopped, result_of, run
from ..lanes import failure

PAUSE = 1.0  # seconds between looks at the note
UNSHARED = "unshared"  # the kind of the event if the node does not see the folder of the runs


@dataclass(frozen=True)
class Task:
    """What a node has to know to run an experiment. The engine brings it there, and takes the returned text back.

    The `note` is an empty file in the folder of the runs. A task writes into it that it has begun, and it saves and
    ends when the note is gone.
    """

    experiment: Experiment
    options: RunOptions
    note: Path
    working: Path  # folder, which relative paths begin at
    path: tuple[str, ...]  # folders with modules
    sources: tuple[str, ...]  # the files and modules of recipes, which may register methods

    def __call__(self) -> str:
        """Run the experiment; return its last events as JSON, so that nobody unpickles more than a text."""
        told: list[tuple[str, dict[str, Any]]] = []

        def report(line: Line) -> None:
            if "warning" in line:  # other lines are in the metrics of the run
                told.append(("line", {"line": line}))

        try:
            with open(self.note, "r+b") as note:
                note.write(b"begun\n")
        except FileNotFoundError:
            return json.dumps([(UNSHARED, {"node": socket.gethostname()})])
        try:
            self._settle()
            result = result_of(run(self.experiment, self.options, report, _gone(self.note)))
            told.append(("done", {"result": result}))
        except Stopped:
            told.append(("stopped", {}))
        except Exception as error:
            told.append(("failed", failure(error)))
        return json.dumps(told)

    def _settle(self) -> None:
        """Make this process like that of the sweep: the same folder, modules and methods, and its own threads."""
        os.chdir(self.working)
        sys.path[:] = [*self.path, *(folder for folder in sys.path if folder not in self.path)]
        for source in self.sources:
            recipes.imported(source)
        torch.set_num_threads(self.options.threads)  # engines set OMP_NUM_THREADS as they like


def _gone(note: Path) -> Callable[[], bool]:
    """Return a function that says whether the note is gone; it looks now and then."""
    gone, looked = False, monotonic()

    def is_gone() -> bool:
        nonlocal gone, looked
        if not gone and monotonic() - looked > PAUSE:
            looked = monotonic()
            try:
                note.open("rb").close()  # unlike a look at its name, this asks the server of the file system
            except FileNotFoundError:
                gone = True
            except OSError:  # the server is away, perhaps for a moment
                pass
        return gone

    return is_gone
