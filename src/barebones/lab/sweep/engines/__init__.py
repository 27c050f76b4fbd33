"""Engines: what runs the experiments of a sweep, on this machine or on others.

An `engine` has workers. Those of `local` are processes of this machine. Those of `ray` are `remote`: each
runs one experiment at a time as a `task` on some node, which shares the folder of the runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from ...run.options import RunOptions
from .engine import Engine

LOCAL = "local"
REMOTE = ("ray",)
ENGINES = (LOCAL, *REMOTE)


def opened(
    name: str, options: RunOptions, jobs: int | None, settings: Mapping[str, Any]
) -> AbstractContextManager[Engine]:
    """Return a context with an engine on other machines; it imports the package that the engine needs."""
    if options.on_gpu and options.device != "cuda":
        raise ValueError(f"--engine {name} chooses the GPUs itself; use --device cuda instead of {options.device}")
    module: Any = import_module(f".{name}", __package__)
    engine: AbstractContextManager[Engine] = module.opened(options, jobs, dict(settings))
    return engine
