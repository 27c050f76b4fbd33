"""Paths: which kept weights lie on a path from an input of the model to one of its outputs.

`follow` runs the model on bits, `bits` is the mode in which it runs, and `rules` says what each torch function does.
`coupling` runs it on the numbers of its channels (`channels`), and finds those that can only be removed together.
"""

from .bits import Use
from .follow import effective, losses, trace

__all__ = ["Use", "effective", "losses", "trace"]
