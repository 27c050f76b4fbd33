"""Teams: the processes that torchrun has started to prune and train one experiment together.

All processes do the same work in the same order. They meet where they sum gradients and where they agree on something.
The first one has the run's folder. The others have folders of their own, which begin as copies of it and are deleted in
the end, so that a run may resume with any number of processes, and nobody reads what another one is writing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..running.launch import launch
from .lease import is_lease


@dataclass(frozen=True)
class Team:
    """The processes of a run, and the number of this one among them."""

    rank: int = 0
    size: int = 1
    store: Any = None  # what torchrun keeps for all of them

    @property
    def first(self) -> bool:
        """Whether this process has the run's folder."""
        return self.rank == 0

    @property
    def several(self) -> bool:
        """Whether there are other processes."""
        return self.size > 1

    def sum(self, tensor: Tensor) -> Tensor:
        """Add a tensor over the processes, in place, and return it."""
        if self.several:
            torch.distributed.all_reduce(tensor)
        return tensor

    def any(self, flag: bool) -> bool:
        """Return in all processes whether the flag is set in one of them."""
        return bool(self.sum(torch.tensor(int(flag))))

    def of_first(self, content: bytes) -> bytes:
        """Return in all processes what the first one passes."""
        if not self.several:
            return content
        size = torch.tensor(len(content))
        torch.distributed.broadcast(size, 0)
        row = torch.frombuffer(bytearray(content), dtype=torch.uint8) if self.first and content else None
        row = torch.empty(int(size), dtype=torch.uint8) if row is None else row
        torch.distributed.broadcast(row, 0)
        return bytes(row.numpy())

    def check_same(self, what: str, value: str) -> None:
        """Raise a `ValueError` in all processes if a value is not the same in all of them."""
        if self.any(self.of_first(value.encode()) != value.encode()):
            raise ValueError(f"the processes have found different {what}; run the experiment again in one process")

    @contextmanager
    def after_first(self) -> Iterator[None]:
        """Let the first process of each node do something before the others do it."""
        if launch().local:
            self.any(False)  # wait
        yield
        if not launch().local:
            self.any(False)

    def copy_from_first(self, folder: Path) -> None:
        """Copy the files of the run's folder, which the first process owns, into the folders of the others."""
        names = [file.name for file in folder.iterdir() if file.is_file() and not is_lease(file.name)]
        for name in json.loads(self.of_first(json.dumps(names).encode())) if self.several else ():
            content = self.of_first((folder / name).read_bytes() if self.first else b"")
            if not self.first:
                (folder / name).write_bytes(content)

    def parallel(self, model: nn.Module) -> nn.Module:
        """Return the model with gradients that `backward` averages over the processes; alone, the model itself."""
        if not self.several:
            return model
        device = next(model.parameters()).device
        return nn.parallel.DistributedDataParallel(
            model, device_ids=[device] if device.type == "cuda" else None, find_unused_parameters=True
        )

    def synchronized(self, model: nn.Module, wanted: bool) -> AbstractContextManager[None]:
        """Let the batch-norms of a model share their statistics with the other processes for a while, if wanted."""
        return _synchronized(model) if wanted and self.several else nullcontext()

    def speaks(self) -> bool:
        """Return whether this process is the first to report an error: those of the others follow from it."""
        try:
            return self.store is None or self.store.add("errors", 1) == 1
        except RuntimeError:  # the store has ended with the process that kept it
            return True


ALONE = Team()


@contextmanager
def _synchronized(model: nn.Module) -> Iterator[None]:
    """Replace batch-norms by those of torch that share their statistics; parameters and buffers are the same."""
    holders = [
        (module._modules, name, child)
        for module in model.modules()
        for name, child in module._modules.items()
        if isinstance(child, _BatchNorm)
    ]
    for children, name, norm in holders:
        children[name] = nn.SyncBatchNorm.convert_sync_batchnorm(norm)
    try:
        yield
    finally:
        for children, name, norm in holders:
            children[name] = norm
