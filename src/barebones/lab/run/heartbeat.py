"""A heartbeat: where output is no terminal, a line now and then says how far a long command is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic

from rich.console import Console

from ...messages import printable

QUIET = 30.0  # seconds without a line


@contextmanager
def heartbeat(console: Console, status: Callable[[], str]) -> Iterator[Callable[[str], None]]:
    """Yield a function that prints a line; except on a terminal, `QUIET` seconds without one end with `status()`."""
    printed, over = monotonic(), Event()

    def say(text: str) -> None:
        nonlocal printed
        printed = monotonic()
        console.print(printable(text), markup=False, emoji=False, highlight=False, soft_wrap=True)

    def beat() -> None:
        began = monotonic()
        while not over.wait(max(0.01, printed + QUIET - monotonic())):
            if monotonic() - printed >= QUIET:
                say(f"{status()}, {clock(monotonic() - began)} so far")

    thread = Thread(target=beat, daemon=True)
    if not console.is_terminal and not console.quiet:
        thread.start()
    try:
        yield say
    finally:
        over.set()
        if thread.is_alive():
            thread.join()


def clock(seconds: float) -> str:
    """Return a time as minutes and seconds, or as hours, minutes and seconds.

    >>> clock(7), clock(3750)
    ('0:07', '1:02:30')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
