"""Paths: which kept weights lie on a path from an input of the model to one of its outputs.

`follow` runs the model on bits, `bits` is the mode it runs under, and `rules` says what each torch function does.
"""

from .bits import Use
from .follow import Trace, call, collapsed, cuts, effective, tensors, trace

__all__ = ["Trace", "Use", "call", "collapsed", "cuts", "effective", "tensors", "trace"]
