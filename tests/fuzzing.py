"""How many cases the fuzzers of the tests try: a few by default, many if the environment variable asks for it."""

import os


def cases(default: int) -> int:
    """Return $BAREBONES_FUZZ, or the default if it is not set."""
    return int(os.environ.get("BAREBONES_FUZZ") or default)
