"""Launch: what torchrun tells each of the processes that it starts, and the processors of a process."""

import os
from typing import NamedTuple


class Launch(NamedTuple):
    """The place of this process among those that torchrun has started."""

    rank: int = 0
    local: int = 0  # among the processes of this node
    size: int = 1
    on_node: int = 1  # processes of this node


def launch() -> Launch:
    """Return the place of this process; a process that was started in another way is alone."""
    values = [os.environ.get(name, "") for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")]
    return Launch(*map(int, values)) if all(map(str.isdecimal, values)) else Launch()


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
