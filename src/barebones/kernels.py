"""Kernels: what an NVIDIA GPU does in one pass over the weights where torch's own operations would need many.

They are written in Triton, which torch's CUDA builds bring along. Each is exact, deterministic and free of any word
from the host; where Triton is missing, `available` says so and the callers go torch's way, with the same results.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # pragma: no cover (a machine without a GPU has no Triton, one with it does)
    triton = None

BLOCK = 2048  # weights that one program looks at together
PROGRAMS = 2112  # that share a pass


def available(device: torch.device) -> bool:
    """Whether kernels run there: Triton is installed and the device is an NVIDIA GPU."""
    return triton is not None and device.type == "cuda"


if triton is not None:

    @triton.jit
    def _keys(scores, allowed, start, size, offsets, WIDE: tl.constexpr, AMONG: tl.constexpr):  # type: ignore[no-untyped-def]
        """Scores as integers in the same order, and which of them take part."""
        places = start + offsets
        valid = places < size
        values = tl.load(scores + places, mask=valid, other=0.0)
        values = tl.where(values == 0, 0.0, values)  # -0.0 equals 0.0
        if WIDE:
            bits = values.to(tl.int64, bitcast=True)
            keys = tl.where(bits < 0, bits ^ 0x7FFFFFFFFFFFFFFF, bits)
        else:
            bits = values.to(tl.int32, bitcast=True)
            keys = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
        if AMONG:
            valid = valid & (tl.load(allowed + places, mask=valid, other=0) != 0)
        return keys, valid, places

    @triton.jit(do_not_specialize=["size", "number"])  # else each value of a kind is compiled anew
    def _count(scores, allowed, counts, state, size, number,  # type: ignore[no-untyped-def]
               WIDE: tl.constexpr, AMONG: tl.constexpr, FEW: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
        """Pass `number`: of the scores that begin with the digits found so far, how many have each next digit."""
        width: tl.constexpr = 64 if WIDE else 32
        shift = width - 8 * (number + 1)
        flip = tl.where(number == 0, 128, 0)  # of the first digit the sign comes first
        above = tl.minimum(shift + 8, width - 1)
        low = tl.load(state).to(tl.int64 if WIDE else tl.int32)
        offsets = tl.arange(0, BLOCK)
        total = tl.zeros((256,), tl.int32)
        absent = tl.zeros((BLOCK,), tl.int32)
        for start in range(tl.program_id(0) * BLOCK, size, tl.num_programs(0) * BLOCK):
            keys, valid, _places = _keys(scores, allowed, start, size, offsets, WIDE, AMONG)
            valid = valid & ((number == 0) | ((keys >> above) == (low >> above)))
            digit = ((keys >> shift) & 255) ^ flip
            many = True
            if FEW:  # after the first digits there are few left, most often
                many = tl.sum(valid.to(tl.int32), 0) * 8 > BLOCK
            if many:
                total += tl.histogram(tl.where(valid, digit, 0).to(tl.int32), 256)  # the absent as zeros ...
                absent += (~valid).to(tl.int32)
            else:
                tl.atomic_add(counts + digit, 1, mask=valid)
        total -= tl.where(tl.arange(0, 256) == 0, tl.sum(absent, 0), 0)  # ... taken off again
        tl.atomic_add(counts + tl.arange(0, 256), total)

    @triton.jit(do_not_specialize=["number"])
    def _settle(counts, state, number, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
        """From the counts of a pass: the next digit of the threshold, and the room that what lies above it leaves."""
        width: tl.constexpr = 64 if WIDE else 32
        places = tl.arange(0, 256)
        row = tl.load(counts + places).to(tl.int64)
        room = tl.load(state + 1)
        reached = tl.cumsum(row, 0, reverse=True)  # how many have this digit or a higher one
        digit = tl.sum((reached >= room).to(tl.int32), 0) - 1
        above = tl.sum(tl.where(places > digit, row, 0), 0)
        signed = tl.where(number == 0, digit - 128, digit).to(tl.int64)
        tl.store(state, tl.load(state) + (signed << (width - 8 * (number + 1))))
        tl.store(state + 1, room - above)
        tl.store(counts + places, tl.zeros((256,), tl.int32))

    @triton.jit(do_not_specialize=["size"])
    def _count_ties(scores, allowed, prefer, state, ties, size,  # type: ignore[no-untyped-def]
                    WIDE: tl.constexpr, AMONG: tl.constexpr, PREFER: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
        """In each block, how many scores equal the threshold: those preferred, then the others."""
        threshold = tl.load(state)
        block = tl.program_id(0)
        keys, valid, places = _keys(scores, allowed, block * BLOCK, size, tl.arange(0, BLOCK), WIDE, AMONG)
        tied = valid & (keys == threshold)
        first = tied
        if PREFER:
            first = tied & (tl.load(prefer + places, mask=valid, other=0) != 0)
        tl.store(ties + block, tl.sum(first.to(tl.int32), 0))
        tl.store(ties + tl.num_programs(0) + block, tl.sum((tied & ~first).to(tl.int32), 0))

    @triton.jit(do_not_specialize=["size"])
    def _choose(scores, allowed, prefer, state, ties, ranks, chosen, size,  # type: ignore[no-untyped-def]
                WIDE: tl.constexpr, AMONG: tl.constexpr, PREFER: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
        """Write the mask: all above the threshold, and of its equals the first ones that there is room for."""
        threshold, room = tl.load(state), tl.load(state + 1)
        block = tl.program_id(0)
        keys, valid, places = _keys(scores, allowed, block * BLOCK, size, tl.arange(0, BLOCK), WIDE, AMONG)
        tied = valid & (keys == threshold)
        first = tied
        if PREFER:
            first = tied & (tl.load(prefer + places, mask=places < size, other=0) != 0)
        other = tied & ~first
        blocks = tl.num_programs(0)
        before = tl.load(ranks + block) - tl.load(ties + block)  # ties in earlier blocks; the preferred all come first
        later = tl.load(ranks + blocks + block) - tl.load(ties + blocks + block)
        rank = tl.where(first, before + tl.cumsum(first.to(tl.int32), 0), later + tl.cumsum(other.to(tl.int32), 0))
        wins = valid & ((keys > threshold) | (tied & (rank <= room)))
        tl.store(chosen + places, wins.to(tl.int8), mask=places < size)

    @triton.jit
    def _tally(old, new, starts, found, OLD: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        """Of each output channel: how many weights it kept, keeps now, and kept both times."""
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
            tl.store(found + channel, tl.sum(before, 0))
            tl.store(found + 2 * channels + channel, tl.sum(both, 0))
        else:  # all were kept
            tl.store(found + channel, end - first)
            tl.store(found + 2 * channels + channel, tl.sum(now, 0))
        tl.store(found + channels + channel, tl.sum(now, 0))

    @triton.jit
    def _cover(dense, weights, masks, owners, starts, sizes, firsts, inputs, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        """weights = dense * mask, in the order of memory; the masks lie in logical order.

        In memory the inputs of a channels-last weight come last, behind the pixels of its kernel; `inputs` is their
        number, and 1 for a weight that lies in its logical order.
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
        there = places < size
        keeps = tl.load(masks + tl.load(firsts + owner) + logical, mask=there, other=0)
        values = tl.load(source + places, mask=there)
        tl.store(target + places, values * keeps.to(tl.float32), mask=there)

    @triton.jit(do_not_specialize=["first", "size", "row", "layer", "place"])
    def _score(gradient, weights, masks, scores, sums, bad, first, size, row, layer, place,  # type: ignore[no-untyped-def]
               PIXELS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
        """|weight * gradient| of a layer into its place among flat scores, their sum over the kept, what is not finite.

        Counted in logical order; where gradient and weight lie channels-last, PIXELS is the size of a kernel, else 1.
        """
        places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        there = places < size
        memory = places
        if PIXELS > 1:
            inside = places % row
            memory = places - inside + (inside % PIXELS) * (row // PIXELS) + inside // PIXELS
        values = tl.abs(
            tl.load(gradient + memory, mask=there, other=0.0) * tl.load(weights + memory, mask=there, other=0.0)
        )
        tl.store(scores + first + places, values, mask=there)
        keeps = tl.load(masks + first + places, mask=there, other=0)
        tl.store(sums + place + tl.program_id(0), tl.sum(tl.where(keeps != 0, values, 0.0), 0))
        broken = tl.sum((~(values < float("inf"))).to(tl.int32), 0)
        if broken > 0:
            tl.atomic_or(bad + layer, 1)

    @triton.jit
    def _clear(addresses, owners, starts, sizes, kept, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        """Write zeros where nothing is kept: the weights are not even read."""
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


def top(scores: Tensor, keep: int | Tensor, prefer: Tensor | None = None, among: Tensor | None = None) -> Tensor:
    """The mask of the `keep` highest of flat scores, `keep` from 1; ties to `prefer`, then to the lower index.

    The threshold is found digit by digit, eight bits in each pass over the scores: nothing is sorted or gathered.
    """
    size, wide, device = scores.numel(), scores.dtype == torch.float64, scores.device
    width = 64 if wide else 32
    blocks = triton.cdiv(size, BLOCK)
    state = torch.zeros(2, dtype=torch.int64, device=device)  # what is known of the threshold, and the room
    state[1].copy_(keep) if isinstance(keep, Tensor) else state[1].fill_(keep)
    counts = torch.zeros(256, dtype=torch.int32, device=device)
    ties = torch.empty(2 * blocks, dtype=torch.int32, device=device)
    chosen = torch.empty(size, dtype=torch.bool, device=device)
    allowed = scores if among is None else among.view(torch.int8)  # a pointer is needed, if only to be passed over
    wanted = scores if prefer is None else prefer.view(torch.int8)
    how = {"WIDE": wide, "AMONG": among is not None, "BLOCK": BLOCK, "num_warps": 8}
    with torch.cuda.device_of(scores):  # Triton launches on the current device
        for number in range(width // 8):
            few = number >= (3 if wide else 2)
            _count[(min(blocks, PROGRAMS),)](scores, allowed, counts, state, size, number, FEW=few, **how)
            _settle[(1,)](counts, state, number, WIDE=wide)
        how |= {"PREFER": prefer is not None}
        _count_ties[(blocks,)](scores, allowed, wanted, state, ties, size, **how)
        ranks = ties.cumsum(0, dtype=torch.int32)
        _choose[(blocks,)](scores, allowed, wanted, state, ties, ranks, chosen.view(torch.int8), size, **how)
    return chosen


def score(gradients: Sequence[Tensor], weights: Sequence[Tensor], masks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Flat |weight * gradient|, its sum over what flat masks keep, and of each layer whether any is not finite."""
    device, sizes = masks.device, [w.numel() for w in weights]
    flat = torch.empty(sum(sizes), dtype=torch.float32, device=device)
    blocks = [triton.cdiv(size, BLOCK) for size in sizes]
    sums = torch.empty(sum(blocks), dtype=torch.float32, device=device)
    bad = torch.zeros(len(sizes), dtype=torch.int32, device=device)
    first = place = 0
    for layer, (g, w, count) in enumerate(zip(gradients, weights, blocks, strict=True)):
        if not alike(g, w):
            g, w = g.contiguous(), w.contiguous()
        row = w[0].numel() if w.dim() else 1
        pixels = 1 if w.is_contiguous() else row // w.shape[1]
        with torch.cuda.device_of(flat):
            _score[(count,)](
                g, w, masks.view(torch.int8), flat, sums, bad, first, w.numel(), row, layer, place,
                PIXELS=pixels, BLOCK=BLOCK,
            )  # fmt: skip
        first, place = first + w.numel(), place + count
    return flat, sums.double().sum(), bad != 0


def alike(a: Tensor, b: Tensor) -> bool:
    """Whether two float32 tensors lie alike in memory, in logical order or channels-last."""
    plain = b.is_contiguous() or (b.dim() == 4 and b.is_contiguous(memory_format=torch.channels_last))
    return plain and a.stride() == b.stride() and a.dtype == b.dtype == torch.float32


def tally(before: Tensor | None, after: Tensor, shapes: tuple[tuple[int, ...], ...]) -> Tensor:
    """Of flat masks of layers of these shapes: weights pruned, recovered, recovered into output channels that kept
    none, then kept in each layer. `before` is None where every weight was kept.
    """
    device = after.device
    starts, layers = _channels(shapes, device)
    old = (after if before is None else before).view(torch.int8)
    found = torch.empty(3, layers.numel(), dtype=torch.int32, device=device)
    with torch.cuda.device_of(after):
        _tally[(layers.numel(),)](old, after.view(torch.int8), starts, found, OLD=before is not None, BLOCK=1024)
    had, now, both = found.to(torch.int64)
    kept = torch.zeros(len(shapes), dtype=torch.int64, device=device).index_add_(0, layers, now)
    return torch.cat([torch.stack([(had - both).sum(), (now - both).sum(), (now * (had == 0)).sum()]), kept])


@functools.lru_cache(maxsize=8)
def _channels(shapes: tuple[tuple[int, ...], ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Where in the flat masks each output channel starts, with the end of all; and the layer that it is of."""
    rows = [shape[0] if shape else 1 for shape in shapes]
    lengths = [math.prod(shape[1:]) for shape in shapes]
    sizes = torch.tensor(lengths, device="cpu").repeat_interleave(torch.tensor(rows, device="cpu"))
    starts = torch.cat([torch.zeros(1, dtype=torch.int64, device="cpu"), sizes.cumsum(0)])
    layers = torch.arange(len(shapes), device="cpu").repeat_interleave(torch.tensor(rows, device="cpu"))
    return starts.to(device), layers.to(device)


def dense(tensor: Tensor) -> bool:
    """Whether its elements fill its memory without holes or overlaps, in whatever order."""
    sizes = [(stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
    expected = 1
    for stride, size in sorted(sizes):
        if stride != expected:
            return False
        expected *= size
    return True


def in_memory_order(tensor: Tensor) -> Tensor:
    """A flat view of a dense tensor, element after element as they lie in memory."""
    return tensor.as_strided((tensor.numel(),), (1,))


def _split(sizes: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Blocks over tensors of these sizes: the number of the tensor that each is of, and where in it it starts."""
    counts = [triton.cdiv(size, BLOCK) for size in sizes]
    owners = torch.arange(len(sizes), device="cpu").repeat_interleave(torch.tensor(counts, device="cpu"))
    starts = torch.cat([torch.arange(count, device="cpu") * BLOCK for count in counts])
    return owners.int().to(device), starts.int().to(device)


class Covering:
    """Writes dense weights times masks into the weights of a model, all with one launch.

    They are float32, and each pair lies alike in memory: in logical order, or channels-last.
    """

    def __init__(self, dense: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
        device = weights[0].device
        sizes = [w.numel() for w in weights]
        rows = [w[0].numel() if w.dim() else 1 for w in weights]
        self.owners, self.starts = _split(sizes, device)
        self.sizes = torch.tensor([*zip(sizes, rows, strict=True)], dtype=torch.int32, device="cpu").to(device)
        self.firsts = torch.tensor([0, *sizes[:-1]], device="cpu").cumsum(0).to(device)
        inputs = [1 if w.is_contiguous() else w.shape[1] for w in weights]
        self.inputs = torch.tensor(inputs, dtype=torch.int32, device="cpu").to(device)
        self.dense, self.weights = (
            torch.tensor([t.data_ptr() for t in ts], device="cpu").to(device) for ts in (dense, weights)
        )

    @staticmethod
    def fits(dense: Sequence[Tensor], weights: Sequence[Tensor]) -> bool:
        """Whether they are as they must be."""
        return all(alike(a, b) for a, b in zip(dense, weights, strict=True))

    def __call__(self, masks: Tensor) -> None:
        """Put flat masks on."""
        with torch.cuda.device_of(masks):
            _cover[(self.owners.numel(),)](
                self.dense, self.weights, masks.view(torch.int8), self.owners, self.starts, self.sizes, self.firsts,
                self.inputs, BLOCK=BLOCK,
            )  # fmt: skip


class Clearing:
    """Zeroes the pruned entries of many tensors of one element size with one launch, wherever they are now."""

    def __init__(self, tensors: Sequence[Tensor], kept: Sequence[Tensor]) -> None:
        """`kept` is not 0 where a weight stays, and lies in memory as its tensor does."""
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
        """Zero them, in place and unseen by autograd."""
        places = tuple(t.data_ptr() for t in tensors)
        if places != self.places:  # they may have moved
            self.places, self.addresses = places, torch.tensor(places, device=self.device)
        with torch.cuda.device_of(self.kept):
            _clear[(self.owners.numel(),)](
                self.addresses, self.owners, self.starts, self.sizes, self.kept, WIDTH=self.width, BLOCK=BLOCK
            )
