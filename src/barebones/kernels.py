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
PROGRAMS = 1056  # that share a pass
BITS = 11  # of a threshold that one pass finds
STRIDE = 127  # from one score of a sample to the next: a prime, so that it meets every place in a kernel or a channel
MANY = 1 << 20  # scores from which on a sample comes first
ROUGH = 2  # passes over the sample
LARGEST = 2**31 - 2**23  # scores that places of 32 bits are enough for
FIELDS = 8  # of what is known of a threshold


def available(device: torch.device) -> bool:
    """Whether kernels run there: Triton is installed and the device is an NVIDIA GPU."""
    return triton is not None and device.type == "cuda"


if triton is not None:
    # Of a threshold: where the span in which it is begins, its width, the low bits that a bin of it does not tell, how
    # many scores of the span are wanted, whether all is known, how many scores are wanted in all, how many lie above
    # the span, and how many equal the threshold.
    LOW, SPAN, SHIFT, ROOM, DONE, WANTED, ABOVE, TIES = map(tl.constexpr, range(FIELDS))
    STATE = tl.constexpr(FIELDS)

    @triton.jit
    def _keys(scores, allowed, places, valid, WIDE: tl.constexpr, AMONG: tl.constexpr):  # type: ignore[no-untyped-def]
        """Scores as integers in the same order, and which of them take part."""
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
        return keys, valid

    @triton.jit
    def _shift_for(span, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
        """How many low bits to pass over so that a span falls into 2 ** BITS bins."""
        left = span.to(tl.uint64, bitcast=True) >> tl.arange(0, 64).to(tl.uint64)
        return tl.sum((left >= (1 << BITS)).to(tl.int64), 0)

    @triton.jit(do_not_specialize=["size"])
    def _begin(states, keep, size, STRIDE: tl.constexpr, WIDE: tl.constexpr, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
        """Three thresholds to be found: of all scores, and of a sample one most likely below it, one above.

        Scores are seldom negative, so they are looked for from 0 on.
        """
        row = tl.program_id(0)
        wanted = tl.load(keep)
        if row > 0:
            centre = wanted.to(tl.float32) / STRIDE  # four standard deviations and some about what is expected
            margin = 4 * tl.sqrt(centre * (1 - wanted.to(tl.float32) / size)) + 8
            wanted = tl.where(row == 1, centre + margin, centre - margin).to(tl.int64)
        state = states + row * STATE
        width: tl.constexpr = 63 if WIDE else 31
        tl.store(state + LOW, 0)
        tl.store(state + SPAN, (wanted * 0 + 1 << width) - 1)
        tl.store(state + SHIFT, width - BITS)
        tl.store(state + WANTED, wanted)

    @triton.jit
    def _bracket(states, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
        """The threshold of all scores most likely lies between those of the sample."""
        lower, upper = states + STATE, states + 2 * STATE
        low = tl.load(lower + LOW)
        span = tl.load(upper + LOW) + tl.load(upper + SPAN) - low
        tl.store(states + LOW, low)
        tl.store(states + SPAN, span)
        tl.store(states + SHIFT, _shift_for(span, BITS))

    @triton.jit(do_not_specialize=["size"])
    def _count(scores, allowed, counts, states, size, STRIDE: tl.constexpr, WIDE: tl.constexpr,  # type: ignore[no-untyped-def]
               AMONG: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
        """Of the scores within the span in which the threshold must be, how many are in each bin; and above it.

        Those that equal its lower end, as zeros often do, are many: each program counts its own.
        """
        bins: tl.constexpr = 1 << BITS
        row = tl.program_id(1)
        state = states + row * STATE
        low, span, shift = tl.load(state + LOW), tl.load(state + SPAN), tl.load(state + SHIFT)
        high = low + span
        if WIDE:
            width, distance = span.to(tl.uint64, bitcast=True), shift.to(tl.uint64)
        else:
            low, high = low.to(tl.int32), high.to(tl.int32)
            width, distance = span.to(tl.uint32), shift.to(tl.uint32)
        end = tl.where(tl.load(state + DONE) == 0, size, 0)
        offsets = tl.arange(0, BLOCK)
        above = tl.zeros((BLOCK,), tl.int32)
        equal = tl.zeros((BLOCK,), tl.int32)
        for start in range(tl.program_id(0) * BLOCK, end, tl.num_programs(0) * BLOCK):
            numbers = start + offsets
            keys, valid = _keys(scores, allowed, numbers * STRIDE, numbers < size, WIDE, AMONG)
            above += (valid & (keys > high)).to(tl.int32)
            distances = (keys - low).to(tl.uint64 if WIDE else tl.uint32, bitcast=True)
            equal += (valid & (keys == low)).to(tl.int32)
            inside = valid & (distances <= width) & (keys != low)
            tl.atomic_add(counts + row * bins + (distances >> distance).to(tl.int32), 1, mask=inside)
        tl.atomic_add(counts + row * bins, tl.sum(equal, 0), mask=end > 0)
        tl.atomic_add(state + ABOVE, tl.sum(above, 0).to(tl.int64), mask=end > 0)

    @triton.jit
    def _settle(counts, states, WIDE: tl.constexpr, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
        """From the counts of a pass: the bin that the threshold is in; if it is not in the span, all begins anew."""
        bins: tl.constexpr = 1 << BITS
        row = tl.program_id(0)
        state = states + row * STATE
        low, span, shift = tl.load(state + LOW), tl.load(state + SPAN), tl.load(state + SHIFT)
        room = tl.load(state + WANTED) - tl.load(state + ABOVE)
        if tl.load(state + DONE) == 0:
            places = tl.arange(0, bins)
            found = tl.load(counts + row * bins + places).to(tl.int64)
            reached = tl.cumsum(found, 0, reverse=True)  # how many are in this bin or a higher one
            which = tl.sum((reached >= room).to(tl.int64), 0) - 1
            ties = tl.sum(tl.where(places == which, found, 0), 0)
            above = tl.sum(tl.where(places > which, found, 0), 0)
            one = which * 0 + 1
            begins = which << shift
            rest, most = span - begins, (one << shift) - 1
            rest = tl.where(rest.to(tl.uint64, bitcast=True) < most.to(tl.uint64, bitcast=True), rest, most)
            wrong = (room < 1) | (which < 0)
            width: tl.constexpr = 64 if WIDE else 32
            start = tl.where(wrong, -(one << (width - 1)), low + begins)
            rest = tl.where(wrong, (one << (width - 1)) * 2 - 1, rest)
            further = _shift_for(rest, BITS)
            tl.debug_barrier()  # what was read above must not have been overwritten
            tl.store(counts + row * bins + places, tl.zeros((bins,), tl.int32))
            tl.store(state + LOW, start)
            tl.store(state + SPAN, rest)
            tl.store(state + SHIFT, further)
            tl.store(state + ROOM, room - above)
            tl.store(state + DONE, ((shift == 0) & ~wrong).to(tl.int64))
            tl.store(state + ABOVE, room * 0)
            tl.store(state + TIES, ties)

    @triton.jit(do_not_specialize=["size"])
    def _count_ties(scores, allowed, prefer, state, ties, size,  # type: ignore[no-untyped-def]
                    WIDE: tl.constexpr, AMONG: tl.constexpr, PREFER: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
        """In each block, how many scores equal the threshold: those preferred, then the others."""
        block = tl.program_id(0)
        if tl.load(state + ROOM) != tl.load(state + TIES):  # else there is room for all of them
            places = block * BLOCK + tl.arange(0, BLOCK)
            keys, valid = _keys(scores, allowed, places, places < size, WIDE, AMONG)
            tied = valid & (keys == tl.load(state + LOW))
            first = tied
            if PREFER:
                first = tied & (tl.load(prefer + places, mask=valid, other=0) != 0)
            tl.store(ties + block, tl.sum(first.to(tl.int32), 0))
            tl.store(ties + tl.num_programs(0) + block, tl.sum((tied & ~first).to(tl.int32), 0))

    @triton.jit(do_not_specialize=["size"])
    def _choose(scores, allowed, prefer, state, ties, ranks, chosen, size,  # type: ignore[no-untyped-def]
                WIDE: tl.constexpr, AMONG: tl.constexpr, PREFER: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
        """Write the mask: all above the threshold, and of its equals the first ones that there is room for."""
        threshold, room = tl.load(state + LOW), tl.load(state + ROOM)
        block = tl.program_id(0)
        places = block * BLOCK + tl.arange(0, BLOCK)
        keys, valid = _keys(scores, allowed, places, places < size, WIDE, AMONG)
        wins = valid & (keys >= threshold)
        if room != tl.load(state + TIES):
            tied = valid & (keys == threshold)
            first = tied
            if PREFER:
                first = tied & (tl.load(prefer + places, mask=places < size, other=0) != 0)
            other = tied & ~first
            blocks = tl.num_programs(0)
            before = tl.load(ranks + block) - tl.load(ties + block)  # in earlier blocks; the preferred all come first
            later = tl.load(ranks + blocks + block) - tl.load(ties + blocks + block)
            rank = tl.where(first, before + tl.cumsum(first.to(tl.int32), 0), later + tl.cumsum(other.to(tl.int32), 0))
            wins = wins & (~tied | (rank <= room))
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
    def _total(found, layers, channels, totals, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        """From that, weights pruned, recovered, recovered where none was kept, and kept in each layer."""
        layer = tl.program_id(0)
        pruned = tl.zeros((BLOCK,), tl.int64)
        recovered = tl.zeros((BLOCK,), tl.int64)
        revived = tl.zeros((BLOCK,), tl.int64)
        kept = tl.zeros((BLOCK,), tl.int64)
        end = tl.load(layers + layer + 1)
        for start in range(tl.load(layers + layer), end, BLOCK):
            places = start + tl.arange(0, BLOCK)
            had = tl.load(found + places, mask=places < end, other=0)
            now = tl.load(found + channels + places, mask=places < end, other=0)
            both = tl.load(found + 2 * channels + places, mask=places < end, other=0)
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

    @triton.jit
    def _score(gradients, weights, masks, owners, starts, sizes, firsts, inputs,  # type: ignore[no-untyped-def]
               scores, sums, bad, BLOCK: tl.constexpr):  # fmt: skip
        """|weight * gradient| in logical order, their sum over the kept, and what is not finite; see `_cover`."""
        block = tl.program_id(0)
        owner = tl.load(owners + block)
        places = tl.load(starts + block) + tl.arange(0, BLOCK)
        size = tl.load(sizes + 2 * owner)
        row = tl.load(sizes + 2 * owner + 1)
        number = tl.load(inputs + owner)
        inside = places % row
        pixels = row // number
        memory = places - inside + (inside % pixels) * number + inside // pixels
        there = places < size
        g = tl.load(tl.load(gradients + owner).to(tl.pointer_type(tl.float32)) + memory, mask=there, other=0.0)
        w = tl.load(tl.load(weights + owner).to(tl.pointer_type(tl.float32)) + memory, mask=there, other=0.0)
        values = tl.abs(g * w)
        logical = tl.load(firsts + owner) + places
        tl.store(scores + logical, values, mask=there)
        keeps = tl.load(masks + logical, mask=there, other=0)
        tl.store(sums + block, tl.sum(tl.where(keeps != 0, values, 0.0), 0))
        broken = tl.sum((~(values < float("inf"))).to(tl.int32), 0)
        if broken > 0:
            tl.atomic_or(bad + owner, 1)

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

    Nothing is sorted or gathered. Each pass over the scores narrows the span in which the threshold is by BITS bits. A
    sample tells where to begin; where it misled, a pass is lost and the next one begins with the span of all numbers.
    """
    size, wide, device = scores.numel(), scores.dtype == torch.float64, scores.device
    blocks = triton.cdiv(size, BLOCK)
    wanted = torch.empty((), dtype=torch.int64, device=device)
    wanted.copy_(keep) if isinstance(keep, Tensor) else wanted.fill_(keep)
    states = torch.zeros(3, FIELDS, dtype=torch.int64, device=device)
    counts = torch.zeros(2, 1 << BITS, dtype=torch.int32, device=device)
    ties = torch.empty(2 * blocks, dtype=torch.int32, device=device)
    chosen = torch.empty(size, dtype=torch.bool, device=device)
    allowed = scores if among is None else among.view(torch.int8)  # a pointer is needed, if only to be passed over
    preferred = scores if prefer is None else prefer.view(torch.int8)
    kind = {"WIDE": wide, "BITS": BITS}
    how = {"WIDE": wide, "AMONG": among is not None, "BLOCK": BLOCK, "num_warps": 8}
    passes = triton.cdiv(64 if wide else 32, BITS)

    def narrow(own: Tensor, rows: int, length: int, stride: int) -> None:
        programs = min(triton.cdiv(length, BLOCK), PROGRAMS)
        _count[(programs, rows)](scores, allowed, counts, own, length, STRIDE=stride, BITS=BITS, **how)
        _settle[(rows,)](counts, own, **kind)

    with torch.cuda.device_of(scores):  # Triton launches on the current device
        _begin[(3,)](states, wanted, size, STRIDE=STRIDE, **kind)
        if size >= MANY:
            for _ in range(ROUGH):
                narrow(states[1:], 2, triton.cdiv(size, STRIDE), STRIDE)
            _bracket[(1,)](states, BITS=BITS)
        for _ in range(passes + 1):  # the first may have looked in the wrong place
            narrow(states, 1, size, 1)
        how |= {"PREFER": prefer is not None}
        _count_ties[(blocks,)](scores, allowed, preferred, states, ties, size, **how)
        ranks = ties.cumsum(0, dtype=torch.int32)
        _choose[(blocks,)](scores, allowed, preferred, states, ties, ranks, chosen.view(torch.int8), size, **how)
    return chosen


def alike(a: Tensor, b: Tensor) -> bool:
    """Whether two float32 tensors lie alike in memory, in logical order or channels-last."""
    plain = b.is_contiguous() or (b.dim() == 4 and b.is_contiguous(memory_format=torch.channels_last))
    return plain and a.stride() == b.stride() and a.dtype == b.dtype == torch.float32


def tally(before: Tensor | None, after: Tensor, starts: Tensor, layers: Tensor) -> Tensor:
    """Of flat masks: weights pruned, recovered, recovered into output channels that kept none, then kept in each layer.

    `before` is None where every weight was kept; `starts` and `layers` are from `channels`.
    """
    old = (after if before is None else before).view(torch.int8)
    count = starts.numel() - 1
    found = torch.empty(3, count, dtype=torch.int32, device=after.device)
    totals = torch.zeros(2 + layers.numel(), dtype=torch.int64, device=after.device)
    with torch.cuda.device_of(after):
        _tally[(count,)](old, after.view(torch.int8), starts, found, OLD=before is not None, BLOCK=512, num_warps=2)
        _total[(layers.numel() - 1,)](found, layers, count, totals, BLOCK=512)
    return totals


@functools.lru_cache(maxsize=8)
def channels(shapes: tuple[tuple[int, ...], ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Where in the flat masks each output channel starts, and which channel each layer starts with; ends come last."""
    rows = [shape[0] if shape else 1 for shape in shapes]
    lengths = [math.prod(shape[1:]) for shape in shapes]
    sizes = torch.tensor(lengths, device="cpu").repeat_interleave(torch.tensor(rows, device="cpu"))
    starts = torch.cat([torch.zeros(1, dtype=torch.int64, device="cpu"), sizes.cumsum(0)])
    layers = torch.tensor([0, *rows], device="cpu").cumsum(0)
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


def _addresses(tensors: Sequence[Tensor]) -> Tensor:
    return torch.tensor([t.data_ptr() for t in tensors], device="cpu")


class _Layers:
    """Blocks over the weights of a model, and how each weight lies in memory: logical order, or channels-last."""

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
    """Writes dense weights times masks into the weights of a model, all with one launch.

    They are float32, and each pair lies alike in memory: in logical order, or channels-last.
    """

    def __init__(self, dense: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
        self.layers = _Layers(weights)
        self.dense, self.weights = (_addresses(ts).to(weights[0].device) for ts in (dense, weights))

    @staticmethod
    def fits(dense: Sequence[Tensor], weights: Sequence[Tensor]) -> bool:
        """Whether they are as they must be."""
        return all(alike(a, b) for a, b in zip(dense, weights, strict=True))

    def __call__(self, masks: Tensor) -> None:
        """Put flat masks on."""
        with torch.cuda.device_of(masks):
            _cover[(self.layers.blocks,)](
                self.dense, self.weights, masks.view(torch.int8), *self.layers.table, BLOCK=BLOCK
            )


class Scoring:
    """Flat |weight * gradient| of all layers with one launch, for float32 weights that stay what and where they are.

    While a graph is recorded, where the gradients are cannot be copied to the device: `finish` does it afterwards.
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self.weights = [w if alike(w, w) else w.contiguous() for w in weights]
        self.layers = _Layers(self.weights)
        self.addresses = _addresses(self.weights).to(weights[0].device)
        self._waiting: Tensor | None = None
        self._tables = [torch.empty_like(self.addresses)]  # one for each graph that was recorded, and one for the next

    def __call__(self, gradients: Sequence[Tensor], masks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The scores, their sum over what flat masks keep, and of each layer whether any is not finite."""
        device = masks.device
        own = [g if alike(g, w) else torch.empty_like(w).copy_(g) for g, w in zip(gradients, self.weights, strict=True)]
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            where = self._tables[-1]  # not memory of the graph, which the graph itself writes to
            self._waiting = _addresses(own)
        else:
            where = torch.empty_like(self.addresses).copy_(_addresses(own), non_blocking=True)
        flat = torch.empty(sum(w.numel() for w in self.weights), dtype=torch.float32, device=device)
        sums = torch.empty(self.layers.blocks, dtype=torch.float32, device=device)
        bad = torch.zeros(len(own), dtype=torch.int32, device=device)
        with torch.cuda.device_of(masks):
            _score[(self.layers.blocks,)](
                where, self.addresses, masks.view(torch.int8), *self.layers.table, flat, sums, bad, BLOCK=BLOCK
            )
        return flat, sums.double().sum(), bad != 0

    def finish(self) -> None:
        """After a graph was recorded, before it is replayed."""
        if self._waiting is not None:
            self._tables[-1].copy_(self._waiting, non_blocking=True)
            self._tables.append(torch.empty_like(self.addresses))
            self._waiting = None


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
