"""Shards: under FSDP2, and in column-parallel layers, a tensor is a DTensor, of which each process holds some rows.

Nothing here imports torch's distributed package unless a tensor is sharded.
"""

from collections.abc import Callable, Iterable, Mapping
from tempfile import NamedTemporaryFile
from typing import Any

import torch
from torch import Tensor, nn


def is_sharded(tensor: object) -> bool:
    return type(tensor).__name__ == "DTensor"


def local(tensor: Tensor) -> Tensor:
    """Return the rows that this process holds, in the same memory and without a history; a plain tensor as it is.

    >>> local(torch.ones(2)).tolist()
    [1.0, 1.0]
    """
    if not is_sharded(tensor):
        return tensor
    with torch.no_grad():
        rows: Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return rows.detach()


def full(tensor: Tensor) -> Tensor:
    """Return the whole tensor; every process of a sharded one must call this."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def count(mask: Tensor) -> int:
    """Return how many values of the whole tensor are not zero; every process of a sharded one must call this.

    >>> count(torch.tensor([True, False, True]))
    2
    """
    return int(full(mask.count_nonzero()))


def why_not(tensor: Tensor) -> str:
    """Say why a sharded tensor cannot be pruned; return an empty string if it can."""
    kinds = [(type(placement).__name__, getattr(placement, "dim", 0)) for placement in tensor.placements]  # type: ignore[attr-defined]
    if any(kind not in (("Shard", 0), ("Replicate", 0)) for kind in kinds) or kinds.count(("Shard", 0)) > 1:
        placements = ", ".join(map(str, tensor.placements))  # type: ignore[attr-defined]
        return f"it is sharded as ({placements}); only shards of dimension 0, along one dimension of the mesh, can be"
    return ""


def refuse_shards(what: str, *groups: Mapping[str, Tensor] | None) -> None:
    """Refuse sharded tensors where every process needs them whole; `what` is what the caller calls them."""
    if any(is_sharded(tensor) for group in groups if group is not None for tensor in group.values()):
        gather = f"{{name: t.full_tensor() for name, t in {what}.items()}}"
        raise ValueError(f"the {what} are sharded; gather them in every process: {gather}")


def first_row(tensor: Tensor) -> int:
    """Return the index of the first row that this process holds of a tensor."""
    mesh, rows = tensor.device_mesh, tensor.shape[0] if tensor.dim() else 1  # type: ignore[attr-defined]
    for dim, placement in enumerate(tensor.placements):  # type: ignore[attr-defined]
        if type(placement).__name__ == "Shard":
            return min(mesh.get_local_rank(dim) * -(-rows // mesh.size(dim)), rows)
    return 0


def own_rows(whole: Tensor, like: Tensor) -> Tensor:
    """Return the rows of a whole tensor that this process holds of a sharded one; all for a plain one."""
    if not is_sharded(like):
        return whole
    start = first_row(like)
    return whole.view(like.shape)[start : start + local(like).shape[0]] if like.dim() else whole


def sharded_like(rows: Tensor, like: Any) -> Tensor:
    """Return a DTensor of these rows, with the shape and placements of another; for a plain tensor, the rows."""
    if not is_sharded(like):
        return rows
    from torch.distributed.tensor import DTensor

    about = {"shape": like.shape, "stride": like.stride()}
    return DTensor.from_local(rows, like.device_mesh, like.placements, run_check=False, **about)


def reshard(model: nn.Module) -> None:
    """Free the whole weights that FSDP2 may still hold after a forward pass; they would hide the sharded ones."""
    for module in model.modules():
        if any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__):
            module.reshard()  # type: ignore[operator]


def on_disk(data: Tensor) -> Tensor:
    """Return the bytes of a tensor in a nameless file, which needs no memory; in processes after the first, none."""
    import torch.distributed as dist

    if dist.get_rank() or not data.numel():
        return data[:0].clone()
    with NamedTemporaryFile() as file:
        file.write(memoryview(data.cpu().numpy()))  # type: ignore[arg-type]
        file.flush()
        return torch.from_file(file.name, shared=True, size=data.numel(), dtype=torch.uint8)


def by_one(tensors: Iterable[Tensor], write: Callable[[], None]) -> None:
    """Write a file: of sharded tensors in the first process alone, and the others wait until it is there."""
    if not any(map(is_sharded, tensors)):
        write()
        return
    import torch.distributed as dist

    first, failed = dist.get_rank() == 0, torch.zeros((), dtype=torch.int64)
    try:
        if first:
            write()
    except BaseException:
        failed += 1
        raise
    finally:
        failed = failed.to("cuda" if dist.get_backend() == "nccl" else "cpu")
        dist.broadcast(failed, 0)
    if bool(failed):
        raise OSError("the first process could not write the file; its error says why")
