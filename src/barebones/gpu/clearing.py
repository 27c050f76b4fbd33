"""Clearing: zero the pruned weights of a model with one launch; torch's own operations would need one for each layer.

It is written in Triton, which torch's CUDA builds include. Where that is missing, `triton` is None.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # pragma: no cover (a machine without a GPU has no Triton, one with it does)
    triton = tl = None

BLOCK = 2048  # weights that one program processes together
PLACES = 16  # sets of addresses that are remembered

if triton is not None:

    @triton.jit
    def _clear(addresses, owners, starts, sizes, kept, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        block = tl.program_id(0).to(tl.int64)
        owner = tl.load(owners + block)
        places = tl.load(starts + block) + tl.arange(0, BLOCK)
        keeps = tl.load(kept + block * BLOCK + tl.arange(0, BLOCK))
        if WIDTH == 2:
            weights = tl.load(addresses + owner).to(tl.pointer_type(tl.int16))
        elif WIDTH == 4:
            weights = tl.load(addresses + owner).to(tl.pointer_type(tl.int32))
        else:
            weights = tl.load(addresses + owner).to(tl.pointer_type(tl.int64))
        tl.store(weights + places, 0, mask=(keeps == 0) & (places < tl.load(sizes + owner)))


def dense(tensor: Tensor) -> bool:
    """Return whether a tensor's elements fill its memory without gaps or overlaps, in any order."""
    sizes = [(stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
    expected = 1
    for stride, size in sorted(sizes):
        if stride != expected:
            return False
        expected *= size
    return True


class Clearing:
    """Zero the pruned entries of many tensors of one element size with one launch, wherever the tensors are now."""

    def __init__(self, tensors: Sequence[Tensor], kept: Sequence[Tensor]) -> None:
        # `kept` has the memory layout of its tensor, and is 0 or False where it is pruned
        self.device, self.width = tensors[0].device, tensors[0].element_size()
        sizes = [t.numel() for t in tensors]
        blocks = [triton.cdiv(size, BLOCK) for size in sizes]
        owners = torch.arange(len(sizes), device="cpu").repeat_interleave(torch.tensor(blocks, device="cpu"))
        starts = torch.cat([torch.arange(count, device="cpu") * BLOCK for count in blocks])
        self.owners, self.starts = owners.int().to(self.device), starts.int().to(self.device)
        self.sizes = torch.tensor(sizes, device=self.device)
        self.kept = torch.ones(sum(blocks) * BLOCK, dtype=torch.int8, device=self.device)
        self.keep(kept)
        self.addresses: dict[tuple[int, ...], Tensor] = {}  # those in use, as a CUDA graph goes on to read them

    def keep(self, kept: Sequence[Tensor]) -> None:
        """Take other masks, in the same memory: a CUDA graph goes on with them."""
        place = 0
        for mask in kept:
            size = mask.numel()
            self.kept[place : place + size] = mask.as_strided((size,), (1,))  # in memory order
            place += triton.cdiv(size, BLOCK) * BLOCK

    def __call__(self, tensors: Sequence[Tensor]) -> None:
        places = tuple(t.data_ptr() for t in tensors)
        if places not in self.addresses:
            if len(self.addresses) == PLACES:  # somebody moves them again and again
                self.addresses.pop(next(iter(self.addresses)))
            self.addresses[places] = torch.tensor(places, device=self.device)
        with torch.cuda.device_of(self.kept):
            _clear[(self.owners.numel(),)](
                self.addresses[places], self.owners, self.starts, self.sizes, self.kept, WIDTH=self.width, BLOCK=BLOCK
            )
