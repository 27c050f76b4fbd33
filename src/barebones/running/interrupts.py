"""Interrupts: Ctrl-C while the command `barebones` starts ends it without a traceback.

Importing torch takes seconds. The package imports this module before all others, and a command calls `started`. In
programs that use the package as a library it does nothing.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

INTERRUPTED = 130  # the exit code after Ctrl-C


def starting() -> None:
    """Let Ctrl-C end the process at once, if the process is the command `barebones`."""
    command = sys.argv[:1] == ["-m"] or Path(*sys.argv[:1]).stem == "barebones"  # "-m": Python looks for the module
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if command and usual and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _leave)


def started() -> None:
    """Let Ctrl-C raise a KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)  # an exception could get lost in a library that is being imported


starting()
