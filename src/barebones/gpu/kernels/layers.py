"""Layers: masks, scores and counts of all layers of a model, each with one or two launches."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .blocks import BLOCK, tl, triton

if triton is not None:

    @triton.jit
    def _tally(old, new, starts, per_channel, OLD: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        """Count for each output channel how many weights it kept before, keeps now, and kept both times."""
        channel = tl.program_id(0)
        channels = tl.num_programs(0)
        first, end = tl.load(starts + channel), tl.load(starts + channel + 1)
        before = tl.zeros((BLOCK,), tl.int32)
        now = tl.zeros((BLOCK,), tl.int32)
        both = tl.zeros((BLOCK,), tl.int32)
        for start in range(first, end, BLOCK):
            places = start + tl.arange(0, BLOCK)
            b = tl.load(new + places, mask=places < end, other=0).to(tl.int32)
            now += b
            if OLD:
                a = tl.load(old + places, mask=places < end, other=0).to(tl.int32)
                before += a
                both += a & b
        if OLD:
            tl.store(per_channel + channel, tl.sum(before, 0))
            tl.store(per_channel + 2 * channels + channel, tl.sum(both, 0))
        else:  # every weight was kept before
            tl.store(per_channel + channel, end - first)
            tl.store(per_channel + 2 * channels + channel, tl.sum(now, 0))
        tl.store(per_channel + channels + channel, tl.sum(now, 0))

    @triton.jit
    def _total(per_channel, layers, channels, totals, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        """Sum these up: weights pruned, recovered, recovered into empty channels, and kept in each layer."""
        layer = tl.program_id(0)
        pruned = tl.zeros((BLOCK,), tl.int64)
        recovered = tl.zeros((BLOCK,), tl.int64)
        revived = tl.zeros((BLOCK,), tl.int64)
        kept = tl.zeros((BLOCK,), tl.int64)
        end = tl.load(layers + layer + 1)
        for start in range(tl.load(layers + layer), end, BLOCK):
            places = start + tl.arange(0, BLOCK)
            had = tl.load(per_channel + places, mask=places < end, other=0)
            now = tl.load(per_channel + channels + places, mask=places < end, other=0)
            both = tl.load(per_channel + 2 * channels + places, mask=places < end, other=0)
            pruned += had - both
            recovered += now - both
            revived += tl.where(had == 0, now, 0)
            kept += now
        tl.atomic_add(totals, tl.sum(pruned, 0))
        tl.atomic_add(totals + 1, tl.sum(recovered, 0))
        tl.atomic_add(totals + 2, tl.sum(revived, 0))
        tl.store(totals + 3 + layer, tl.sum(kept, 0))

    @triton.jit
    def _cover(dense, weights, masks, owners, starts, sizes, firsts, inputs, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        """Write dense * mask into the weights, in memory order; the masks are in logical order.

        In the memory of a channels-last weight, the inputs come last, behind the pixels of its kernel. `inputs` is
        their number, and 1 for a weight in logical order.
        """
        block = tl.program_id(0)
        owner = tl.load(owners + block)
        places = tl.load(starts + block) + tl.arange(0, BLOCK)  # 32 bits: to divide by them is much cheaper
        size = tl.load(sizes + 2 * owner)  # of the weight, and of one of its output channels
        row = tl.load(sizes + 2 * owner + 1)
        number = tl.load(inputs + owner)
        inside = places % row
        logical = places - inside + (inside % number) * (row // number) + inside // number
        source = tl.load(dense + owner).to(tl.pointer_type(tl.float32))
        target = tl.load(weights + owner).to(tl.pointer_type(tl.float32))
        valid = places < size
        keeps = tl.load(masks + tl.load(firsts + owner) + logical, mask=valid, other=0)
        values = tl.load(source + places, mask=valid)
        tl.store(target + places, values * keeps.to(tl.float32), mask=valid)

    @triton.jit
    def _score(gradients, weights, masks, owners, starts, sizes, firsts, inputs,  # type: ignore[no-untyped-def]
               scores, sums, bad, BLOCK: tl.constexpr):  # fmt: skip
        """Compute |weight * gradient| in logical order, its sum over kept weights, and flags by layer; see `_cover`."""
        block = tl.program_id(0)
        owner = tl.load(owners + block)
        places = tl.load(starts + block) + tl.arange(0, BLOCK)
        size = tl.load(sizes + 2 * owner)
        row = tl.load(sizes + 2 * owner + 1)
        number = tl.load(inputs + owner)
        inside = places % row
        pixels = row // number
        memory = places - inside + (inside % pixels) * number + inside // pixels
        valid = places < size
        g = tl.load(tl.load(gradients + owner).to(tl.pointer_type(tl.float32)) + memory, mask=valid, other=0.0)
        w = tl.load(tl.load(weights + owner).to(tl.pointer_type(tl.float32)) + memory, mask=valid, other=0.0)
        values = tl.abs(g * w)
        logical = tl.load(firsts + owner) + places
        tl.store(scores + logical, values, mask=valid)
        keeps = tl.load(masks + logical, mask=valid, other=0)
        tl.store(sums + block, tl.sum(tl.where(keeps != 0, values, 0.0), 0))
        broken = tl.sum((~(values < float("inf"))).to(tl.int32), 0)
        if broken > 0:
            tl.atomic_or(bad + owner, 1)

    @triton.jit
    def _clear(addresses, owners, starts, sizes, kept, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        """Write zeros where nothing is kept, without reading the weights."""
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


def alike(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are float32 and have the same memory layout, logical order or channels-last."""
    plain = b.is_contiguous() or (b.dim() == 4 and b.is_contiguous(memory_format=torch.channels_last))
    return plain and a.stride() == b.stride() and a.dtype == b.dtype == torch.float32


def tally(before: Tensor | None, after: Tensor, starts: Tensor, layers: Tensor) -> Tensor:
    """Count the weights pruned, recovered, recovered into empty output channels, and then those kept in each layer.

    The masks are flat; `before` is None if every weight was kept. `starts` and `layers` come from `channels`.
    """
    old = (after if before is None else before).view(torch.int8)
    count = starts.numel() - 1
    per_channel = torch.empty(3, count, dtype=torch.int32, device=after.device)
    totals = torch.zeros(2 + layers.numel(), dtype=torch.int64, device=after.device)
    with torch.cuda.device_of(after):
        _tally[(count,)](
            old, after.view(torch.int8), starts, per_channel, OLD=before is not None, BLOCK=512, num_warps=2
        )
        _total[(layers.numel() - 1,)](per_channel, layers, count, totals, BLOCK=512)
    return totals


@functools.lru_cache(maxsize=8)
def channels(shapes: tuple[tuple[int, ...], ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return where each output channel starts in the flat masks, and the first channel of each layer, with the ends."""
    rows = [shape[0] if shape else 1 for shape in shapes]
    lengths = [math.prod(shape[1:]) for shape in shapes]
    sizes = torch.tensor(lengths, device="cpu").repeat_interleave(torch.tensor(rows, device="cpu"))
    starts = torch.cat([torch.zeros(1, dtype=torch.int64, device="cpu"), sizes.cumsum(0)])
    layers = torch.tensor([0, *rows], device="cpu").cumsum(0)
    return starts.to(device), layers.to(device)


def dense(tensor: Tensor) -> bool:
    """Return whether a tensor's elements fill its memory without gaps or overlaps, in any order."""
    sizes = [(stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
    expected = 1
    for stride, size in sorted(sizes):
        if stride != expected:
            return False
        expected *= size
    return True


def in_memory_order(tensor: Tensor) -> Tensor:
    """Return a flat view of a dense tensor, in memory order."""
    return tensor.as_strided((tensor.numel(),), (1,))


def _split(sizes: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Split tensors of these sizes into blocks; return the number of each block's tensor and where in it it starts."""
    counts = [triton.cdiv(size, BLOCK) for size in sizes]
    owners = torch.arange(len(sizes), device="cpu").repeat_interleave(torch.tensor(counts, device="cpu"))
    starts = torch.cat([torch.arange(count, device="cpu") * BLOCK for count in counts])
    return owners.int().to(device), starts.int().to(device)


def _addresses(tensors: Sequence[Tensor]) -> Tensor:
    return torch.tensor([t.data_ptr() for t in tensors], device="cpu")


class _Layers:
    """The weights of a model in blocks, and the memory layout of each weight: logical order or channels-last."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        device = weights[0].device
        sizes = [w.numel() for w in weights]
        rows = [math.prod(w.shape[1:]) for w in weights]
        owners, starts = _split(sizes, device)
        inputs = [1 if w.is_contiguous() else w.shape[1] for w in weights]
        self.blocks = owners.numel()
        self.table = (
            *(owners, starts),
            torch.tensor([*zip(sizes, rows, strict=True)], dtype=torch.int32, device="cpu").to(device),
            torch.tensor([0, *sizes[:-1]], device="cpu").cumsum(0).to(device),
            torch.tensor(inputs, dtype=torch.int32, device="cpu").to(device),
        )


class Covering:
    """Write dense weights times masks into the weights of a model, all with one launch.

    All are float32, and both tensors of a pair have the same memory layout: logical order or channels-last.
    """

    def __init__(self, dense: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
        self.layers = _Layers(weights)
        self.dense, self.weights = (_addresses(ts).to(weights[0].device) for ts in (dense, weights))

    @staticmethod
    def fits(dense: Sequence[Tensor], weights: Sequence[Tensor]) -> bool:
        """Return whether types and memory layouts are right for this kernel."""
        return all(alike(a, b) for a, b in zip(dense, weights, strict=True))

    def __call__(self, masks: Tensor) -> None:
        """Put flat masks on."""
        with torch.cuda.device_of(masks):
            _cover[(self.layers.blocks,)](
                self.dense, self.weights, masks.view(torch.int8), *self.layers.table, BLOCK=BLOCK
            )


class Scoring:
    """Compute flat |weight * gradient| of all layers with one launch, for float32 weights that neither change nor move.

    While a graph is recorded, the addresses of the gradients cannot be copied to the device: `finish` does it later.
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self.weights = [w if alike(w, w) else w.contiguous() for w in weights]
        self.layers = _Layers(self.weights)
        self.addresses = _addresses(self.weights).to(weights[0].device)
        self._waiting: Tensor | None = None
        self._tables = [torch.empty_like(self.addresses)]  # addresses for each recorded graph, and for the next

    def __call__(self, gradients: Sequence[Tensor], masks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the scores, their sum over the weights that the masks keep, and a flag for each layer: not finite."""
        device = masks.device
        laid_out = [
            g if alike(g, w) else torch.empty_like(w).copy_(g) for g, w in zip(gradients, self.weights, strict=True)
        ]
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            addresses = self._tables[-1]  # memory outside the graph, because the graph would overwrite its own
            self._waiting = _addresses(laid_out)
        else:
            addresses = torch.empty_like(self.addresses).copy_(_addresses(laid_out), non_blocking=True)
        flat = torch.empty(sum(w.numel() for w in self.weights), dtype=torch.float32, device=device)
        sums = torch.empty(self.layers.blocks, dtype=torch.float32, device=device)
        bad = torch.zeros(len(laid_out), dtype=torch.int32, device=device)
        with torch.cuda.device_of(masks):
            _score[(self.layers.blocks,)](
                addresses, self.addresses, masks.view(torch.int8), *self.layers.table, flat, sums, bad, BLOCK=BLOCK
            )
        return flat, sums.double().sum(), bad != 0

    def finish(self) -> None:
        """Copy the addresses of the gradients to the device, after a graph was recorded and before it is replayed."""
        if self._waiting is not None:
            self._tables[-1].copy_(self._waiting, non_blocking=True)
            self._tables.append(torch.empty_like(self.addresses))
            self._waiting = None


class Clearing:
    """Zero the pruned entries of many tensors of one element size with one launch, wherever the tensors are now."""

    def __init__(self, tensors: Sequence[Tensor], kept: Sequence[Tensor]) -> None:
        """`kept` is nonzero where a weight stays, and has the memory layout of its tensor."""
        self.device, self.width = tensors[0].device, tensors[0].element_size()
        sizes = [t.numel() for t in tensors]
        blocks = [triton.cdiv(size, BLOCK) for size in sizes]
        self.owners, self.starts = _split(sizes, self.device)
        self.sizes = torch.tensor(sizes, device=self.device)
        self.kept = torch.ones(sum(blocks) * BLOCK, dtype=torch.int8, device=self.device)
        place = 0
        for mask, count, size in zip(kept, blocks, sizes, strict=True):
            self.kept[place : place + size] = in_memory_order(mask) != 0
            place += count * BLOCK
        self.places: tuple[int, ...] = ()

    def __call__(self, tensors: Sequence[Tensor]) -> None:
        """Zero the entries, in place and without autograd noticing."""
        places = tuple(t.data_ptr() for t in tensors)
        if places != self.places:  # they may have moved
            self.places, self.addresses = places, torch.tensor(places, device=self.device)
        with torch.cuda.device_of(self.kept):
            _clear[(self.owners.numel(),)](
                self.addresses, self.owners, self.starts, self.sizes, self.kept, WIDTH=self.width, BLOCK=BLOCK
            )
