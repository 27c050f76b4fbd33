"""Teams: the processes that torchrun has started to prune and train one experiment together.

All processes do the same work in the same order. They meet where they sum gradients and where they agree on something.
The first one has the run's folder. The others have folders of their own, which begin as copies of it and are deleted in
the end, so that a run may resume with any number of processes, and nobody reads what another one is writing.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from ...messages import shortened
from ...pruning.methods import METHODS
from ...running.devices import check_here
from ...running.launch import launch
from ..experiment.experiment import Experiment
from .lock import is_lease
from .options import RunOptions


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

    @contextmanager
    def synchronized(self, model: nn.Module, wanted: bool) -> Iterator[None]:
        """Let the batch-norms of a model share their statistics with the other processes for a while, if wanted.

        They are replaced by those of torch; parameters and buffers are the same.
        """
        holders = [
            (module._modules, name, child)
            for module in (model.modules() if wanted and self.several else ())
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

    def speaks(self) -> bool:
        """Return whether this process is the first to report an error: those of the others follow from it."""
        try:
            return self.store is None or self.store.add("errors", 1) == 1
        except RuntimeError:  # the store has ended with the process that kept it
            return True


ALONE = Team()
TIMEOUT = timedelta(minutes=30)  # that a process waits for the others; the first one may be downloading data
SHARED = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)  # that can share their statistics


@contextmanager
def joined(options: RunOptions) -> Iterator[tuple[Team, RunOptions]]:
    """Join the processes that torchrun has started; yield their team, and the options for this process."""
    rank, local, size, on_node = launch()
    if size == 1:
        yield ALONE, options
        return
    if options.device not in ("cpu", "cuda"):
        raise ValueError(f"several processes train on --device cpu or cuda, not on {options.device}; start only one")
    if options.on_gpu:
        check_here(f"cuda:{on_node - 1}")  # in all processes, of which only the first speaks
        torch.cuda.set_device(local)
        options = replace(options, device=f"cuda:{local}")
    store, rank, size = next(torch.distributed.rendezvous("env://", timeout=TIMEOUT))
    life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # the store outlives processes that torchrun restarts
    store = torch.distributed.PrefixStore(f"barebones-{life}", store)
    backend = "cpu:gloo,cuda:nccl" if options.on_gpu else "gloo"
    torch.distributed.init_process_group(backend, timeout=TIMEOUT, world_size=size, rank=rank, store=store)
    options = replace(options, captured=False)  # a CUDA graph cannot hold the meetings of the processes
    with TemporaryDirectory(prefix="barebones-") if rank else nullcontext("") as scratch:
        if rank:
            options = replace(options, runs=Path(scratch), save_every=float("inf"), track=None, overwrite=False)
        yield Team(rank, size, store), options
        torch.distributed.destroy_process_group()  # not after an error: the others may not come


def is_lost(error: BaseException) -> bool:
    """Return whether an error says that another process does not answer."""
    if isinstance(error, torch.distributed.DistError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in ("gloo", "Gloo", "ProcessGroup"))


def check_norms(model: nn.Module, experiment: Experiment, options: RunOptions, team: Team, until: str) -> None:
    """Raise a `ValueError` if a run would split batches that layers of the network need whole."""
    norms = {name: module for name, module in model.named_modules() if _needs_batch(module)}
    trains = until != "prune" or experiment.pretrain > 0
    if not norms or not (trains or _scores_by_batch(experiment)):
        return
    named = f"layers of {experiment.model} take statistics of whole batches ({shortened(norms)})"
    if options.micro_batch is not None and options.micro_batch < (experiment.batch_size or 1):
        raise ValueError(f"--micro-batch splits batches, but {named}; leave it out")
    shared = options.on_gpu and options.sync_bn and all(type(norm) in SHARED for norm in norms.values())
    if team.several and not shared and (trains or splits_scoring(experiment)):
        raise ValueError(f"{team.size} processes split each batch, but {named}; use one process, or --sync-bn on GPUs")


def _needs_batch(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) or (isinstance(module, _NormBase) and module.track_running_stats)


def splits_scoring(experiment: Experiment) -> bool:
    """Return whether several processes that score weights would split batches of which layers need the statistics."""
    return _scores_by_batch(experiment) and experiment.batches_per_round == 1  # they share out two or more


def _scores_by_batch(experiment: Experiment) -> bool:
    """Return whether batch-norms take the statistics of batches when weights are scored."""
    row = METHODS.get(experiment.method)  # none for a method of the user's own, which may read data
    return experiment.scoring_bn == "batch" and (row is None or row.needs_data)
