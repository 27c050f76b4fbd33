"""Ranks: under torchrun one process speaks for all, and a command ends everywhere if it ends in one process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from time import sleep
from typing import TYPE_CHECKING

from ..running.launch import launch

if TYPE_CHECKING:
    from ..lab.run.distributed import Team

SHARED = ("run", "prune", "train")  # commands that several processes can share
PATIENCE = 3.0  # seconds that a silent process waits: when it ends, torchrun ends the one that is about to speak
LOST = "another process of this run has ended; the same command resumes from the last checkpoint"


@contextmanager
def quiet() -> Iterator[None]:
    """Let only the first process of a node print, because the others would print the same; torch does not warn."""
    if launch().size > 1:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch is not imported yet
    if launch().local == 0:
        yield
        return
    try:
        with open(os.devnull, "w", encoding="utf-8") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
            yield
    except SystemExit as leaving:
        if leaving.code == 2:
            sleep(PATIENCE)
        raise


def check_alone(command: str) -> None:
    """Raise a `ValueError` if torchrun has started several processes of a command that cannot share its work."""
    if launch().size > 1 and command not in SHARED:
        hint = "; --device cuda uses all GPUs of the node, and --devices chooses some" if command == "sweep" else ""
        raise ValueError(f"barebones {command} runs in one process; start it without torchrun{hint}")


@contextmanager
def in_one_voice(team: Team) -> Iterator[None]:
    """Let one process say why all of them end, the first that knows; the others exit without a word."""
    import typer

    from ..lab.run.distributed import is_lost
    from ..lab.run.run import Stopped

    try:
        yield
    except (Stopped, typer.Exit):
        raise
    except Exception as error:
        if not team.several:
            raise
        if not team.speaks():
            sleep(PATIENCE if launch().local == 0 else 0)
            raise typer.Exit(2) from None
        sys.stderr = sys.__stderr__  # if it was quiet
        if is_lost(error):
            raise ConnectionError(LOST) from error
        raise
