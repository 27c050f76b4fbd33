"""The terminal: lines of plain text, and signals; the first asks a command to save its work and exit."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from ..messages import printable


def say(text: str) -> None:
    """Print a line as it is: no markup, no emojis, no colors for numbers, no line breaks at the terminal's width."""
    Console(soft_wrap=True, emoji=False).print(printable(text), highlight=False, markup=False)


class Stopping:
    """Tells whether a signal has asked to stop, and the exit code for it (0: no signal came)."""

    def __init__(self) -> None:
        self.code = 0

    def __call__(self) -> bool:
        return self.code != 0

    def handle(self, number: int, frame: object) -> None:
        """Handle a signal: the first one asks to stop, the second one interrupts."""
        if self.code:
            raise KeyboardInterrupt
        self.code = 128 + number
        how = b"saving after this round or step, then stopping; press Ctrl-C again to stop at once\n"
        os.write(2, how)  # rich may be what is interrupted


@contextmanager
def stoppable(hint: str) -> Iterator[Stopping]:
    """Let SIGINT and SIGTERM ask the body to stop; when it has stopped, print the hint on how to resume."""
    from ..lab.run.run import Stopped

    stopping = Stopping()
    before = {number: signal.signal(number, stopping.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    except Stopped:
        Console(stderr=True, soft_wrap=True, emoji=False).print(hint, highlight=False, markup=False)
        raise typer.Exit(stopping.code or 1) from None  # without a signal, another process has runs that are missing
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
