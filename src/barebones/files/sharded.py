"""Checkpoints of sharded networks: a folder of safetensors files, to which every process writes its own rows.

They are written by the Hugging Face writer of `torch.distributed.checkpoint`, whose own format has a pickle in it. Any
number of processes can load them, also one without any sharding. So a checkpoint of a network that was just
initialized, in one process, serves as the seed of runs with any number of processes.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import warnings
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ..messages import shortened
from .container import atomically

SETTINGS = "settings.json"  # learning rates and other numbers of the optimizer


def save_sharded(folder: str | os.PathLike[str], model: nn.Module, optimizer: Optimizer | None = None) -> None:
    """Write the weights and buffers of a model, and the state of its optimizer; every process must call this.

    The folder must not exist. It appears under its name when it is complete.
    """
    from torch.distributed.checkpoint import HuggingFaceStorageWriter, save

    target = Path(folder)
    token = torch.tensor([secrets.randbits(62), target.exists()], device=_device())
    if dist.is_initialized():  # the first process decides, for all
        dist.broadcast(token, 0)
    if token[1]:
        raise ValueError(f"{target} exists already; choose another folder")
    temporary = target.with_name(f".{target.name}.{int(token[0]):x}.tmp")
    tensors, settings = _state(model, optimizer)
    try:
        if _first():
            temporary.mkdir(parents=True)
        _wait()
        writer = HuggingFaceStorageWriter(str(temporary), save_distributed=True)
        with _alone_without_warning():
            save(tensors, storage_writer=writer)
        if _first():
            with atomically(temporary / SETTINGS) as file:
                file.write(json.dumps(settings).encode())
            os.replace(temporary, target)
        _wait()
    except BaseException:
        if _first():
            shutil.rmtree(temporary, ignore_errors=True)
        raise


def load_sharded(folder: str | os.PathLike[str], model: nn.Module, optimizer: Optimizer | None = None) -> None:
    """Load what `save_sharded` wrote into a model, and into its optimizer; every process must call this.

    The model may be sharded over another number of processes, or not at all.
    """
    from torch.distributed.checkpoint import HuggingFaceStorageReader, load
    from torch.distributed.checkpoint.state_dict import set_state_dict

    path = Path(folder)
    if not (path / SETTINGS).is_file():
        raise ValueError(f"{path} is not a folder that save_sharded wrote, or it is incomplete")
    tensors, settings = _state(model, optimizer)
    reader = HuggingFaceStorageReader(str(path))
    stored = {name: tuple(entry.size) for name, entry in reader.read_metadata().state_dict_metadata.items()}  # type: ignore[union-attr]
    differing = [name for name, tensor in tensors.items() if stored.get(name) != tuple(tensor.shape)]
    extra = [name for name in stored if name not in tensors and (optimizer is not None or name.startswith("model."))]
    if differing or extra:
        raise ValueError(f"{path} does not match: {shortened(differing + extra)}; build the same model and optimizer")
    with _alone_without_warning():
        load(tensors, storage_reader=reader)
    values: dict[str, Any] = dict(tensors)
    if optimizer is not None:
        kept = json.loads((path / SETTINGS).read_text())
        values |= {f"optimizer.{name}": kept.get(name, value) for name, value in settings.items()}
    parts = [
        {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
        for prefix in ("model.", "optimizer.")
    ]
    optimizers = () if optimizer is None else (optimizer,)
    set_state_dict(model, optimizers, model_state_dict=parts[0], optim_state_dict=parts[1], options=_options())


def _state(model: nn.Module, optimizer: Optimizer | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a checkpoint by name, and the other values of the optimizer."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    optimizers = () if optimizer is None else (optimizer,)
    states: Any = get_state_dict(model, optimizers, options=_options())
    of_model, of_optimizer = states
    tensors = {f"model.{name}": value for name, value in of_model.items()}
    tensors |= {f"optimizer.{name}": value for name, value in of_optimizer.items() if isinstance(value, Tensor)}
    return tensors, {name: value for name, value in of_optimizer.items() if not isinstance(value, Tensor)}


def _options() -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(flatten_optimizer_state_dict=True)


def _alone_without_warning() -> AbstractContextManager[Any]:
    """Return a context in which torch does not warn that there is one process only."""
    return nullcontext() if dist.is_initialized() else warnings.catch_warnings(action="ignore")


def _first() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def _wait() -> None:
    if dist.is_initialized():
        dist.barrier()


def _device() -> str:
    return "cuda" if dist.is_initialized() and dist.get_backend() == "nccl" else "cpu"
