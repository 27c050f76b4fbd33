"""Joining: the processes that torchrun has started become a team, if the network can be trained by several."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from ..pruning.methods import METHODS
from ..running.launch import launch
from ..words import counted, shortened
from .experiment import Experiment
from .options import RunOptions
from .team import ALONE, Team

TIMEOUT = timedelta(minutes=30)  # that a process waits for the others; the first one may be downloading data
SHARED = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)  # that can share their statistics


@contextmanager
def joined(options: RunOptions) -> Iterator[tuple[Team, RunOptions]]:
    """Join the processes that torchrun has started; yield their team, and the options for this process."""
    rank, local, size, on_node = launch()
    if size == 1:
        yield ALONE, options
        return
    if options.on_gpu:
        options = replace(options, device=_own_gpu(options.device, local, on_node))
        torch.cuda.set_device(local)
    store, rank, size = next(torch.distributed.rendezvous("env://", timeout=TIMEOUT))
    backend = "cpu:gloo,cuda:nccl" if options.on_gpu else "gloo"
    torch.distributed.init_process_group(
        backend,
        timeout=TIMEOUT,
        world_size=size,
        rank=rank,
        store=torch.distributed.PrefixStore("barebones", store),
    )
    options = replace(options, captured=False)  # a CUDA graph cannot hold the meetings of the processes
    with TemporaryDirectory(prefix="barebones-") if rank else nullcontext("") as scratch:
        if rank:
            options = replace(options, runs=Path(scratch), save_every=float("inf"), track=None, again=False)
        yield Team(rank, size, store), options
        torch.distributed.destroy_process_group()  # not after an error: the others may not come


def _own_gpu(device: str, local: int, on_node: int) -> str:
    if device != "cuda":
        raise ValueError(f"each process uses the GPU of its own number, so --device {device} is too much; use cuda")
    if on_node > torch.cuda.device_count():  # in all processes, of which only the first speaks
        raise ValueError(
            f"this node has {counted(torch.cuda.device_count(), 'GPU')}, and each process needs one; "
            "start fewer with --nproc-per-node"
        )
    return f"cuda:{local}"


def is_lost(error: BaseException) -> bool:
    """Return whether an error says that another process does not answer."""
    if isinstance(error, torch.distributed.DistError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in ("gloo", "Gloo", "ProcessGroup"))


def check_norms(model: nn.Module, experiment: Experiment, options: RunOptions, team: Team, until: str) -> None:
    """Raise a `ValueError` if a run would split batches that layers of the network need whole."""
    only_scores, batch = until == "prune" and not experiment.pretrain, experiment.batch or 1
    if only_scores and not _scores_by_batch(experiment):
        return
    norms = {name: module for name, module in model.named_modules() if _needs_batch(module)}
    named = f"layers of {experiment.model} take statistics of whole batches ({shortened(norms)})"
    if norms and options.micro_batch is not None and options.micro_batch < batch:
        raise ValueError(f"--micro-batch splits batches, but {named}; leave it out")
    if not norms or not team.several or (only_scores and not splits_scoring(experiment)):
        return
    if not (options.on_gpu and options.sync_bn):
        remedy = "pass --sync-bn" if options.on_gpu else "torch shares them on GPUs only, so use one process"
        others = ", or --batches 2 or more" if only_scores else ""
        raise ValueError(f"{team.size} processes split each batch, but {named}; {remedy}{others}")
    if odd := [name for name, norm in norms.items() if type(norm) not in SHARED]:
        raise ValueError(f"torch has no form of {shortened(odd)} that shares its statistics; use one process")


def _needs_batch(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) or (isinstance(module, _NormBase) and module.track_running_stats)


def splits_scoring(experiment: Experiment) -> bool:
    """Return whether several processes that score weights would split batches of which layers need the statistics."""
    return _scores_by_batch(experiment) and experiment.batches == 1  # they share out two or more


def _scores_by_batch(experiment: Experiment) -> bool:
    """Return whether batch-norms take the statistics of batches when weights are scored."""
    reads = experiment.method in METHODS and METHODS[experiment.method].needs_data
    return reads and experiment.scoring_bn == "batch"
