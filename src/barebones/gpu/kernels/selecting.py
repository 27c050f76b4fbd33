"""Selecting: the mask of the k highest scores, exactly, without sorting."""

from __future__ import annotations

import torch
from torch import Tensor

from .blocks import BLOCK, tl, triton

PROGRAMS = 1056  # programs that share a pass
BITS = 11  # bits of the threshold that one pass finds
STRIDE = 127  # distance between sampled scores: a prime, so that the sample meets every position of a kernel or channel
MANY = 1 << 20  # with at least so many scores, a sample is looked at first
ROUGH = 2  # passes over the sample
LARGEST = 2**31 - 2**23  # the most scores that 32-bit indices can address
FIELDS = 8  # numbers that describe the search for a threshold


if triton is not None:
    # The state of a search: where the span that holds the threshold begins, its width, the number of low bits that one
    # bin does not resolve, how many scores inside the span are wanted, whether the search is done, how many scores are
    # wanted in all, how many lie above the span, and how many equal the threshold.
    LOW, SPAN, SHIFT, ROOM, DONE, WANTED, ABOVE, TIES = map(tl.constexpr, range(FIELDS))
    STATE = tl.constexpr(FIELDS)

    @triton.jit
    def _keys(scores, allowed, places, valid, WIDE: tl.constexpr, AMONG: tl.constexpr):  # type: ignore[no-untyped-def]
        """Return the scores as integers in the same order, and which of them take part."""
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
        """Return how many low bits to drop so that a span falls into 2 ** BITS bins."""
        shifted = span.to(tl.uint64, bitcast=True) >> tl.arange(0, 64).to(tl.uint64)
        return tl.sum((shifted >= (1 << BITS)).to(tl.int64), 0)

    @triton.jit(do_not_specialize=["size"])
    def _begin(states, keep, size, STRIDE: tl.constexpr, WIDE: tl.constexpr, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
        """Begin three searches: for the threshold of all scores, and in a sample for one below it and one above.

        Scores are seldom negative, so each search begins with the span from 0 on.
        """
        row = tl.program_id(0)
        rank = tl.load(keep)
        if row > 0:
            centre = rank.to(tl.float32) / STRIDE  # four standard deviations and some around the expected rank
            margin = 4 * tl.sqrt(centre * (1 - rank.to(tl.float32) / size)) + 8
            rank = tl.where(row == 1, centre + margin, centre - margin).to(tl.int64)
        state = states + row * STATE
        width: tl.constexpr = 63 if WIDE else 31
        tl.store(state + LOW, 0)
        tl.store(state + SPAN, (rank * 0 + 1 << width) - 1)
        tl.store(state + SHIFT, width - BITS)
        tl.store(state + WANTED, rank)

    @triton.jit
    def _bracket(states, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
        """Narrow the span of the main search to what lies between the two thresholds of the sample."""
        lower, upper = states + STATE, states + 2 * STATE
        low = tl.load(lower + LOW)
        span = tl.load(upper + LOW) + tl.load(upper + SPAN) - low
        tl.store(states + LOW, low)
        tl.store(states + SPAN, span)
        tl.store(states + SHIFT, _shift_for(span, BITS))

    @triton.jit(do_not_specialize=["size"])
    def _count(scores, allowed, counts, states, size, STRIDE: tl.constexpr, WIDE: tl.constexpr,  # type: ignore[no-untyped-def]
               AMONG: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
        """Count the scores in each bin of the span that holds the threshold, and those above the span.

        Many may equal the lower end, as zeros often do: each program counts these by itself.
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
        """Find the threshold's bin from the counts of a pass; if it is outside the span, begin again with all."""
        bins: tl.constexpr = 1 << BITS
        row = tl.program_id(0)
        state = states + row * STATE
        low, span, shift = tl.load(state + LOW), tl.load(state + SPAN), tl.load(state + SHIFT)
        room = tl.load(state + WANTED) - tl.load(state + ABOVE)
        if tl.load(state + DONE) == 0:
            places = tl.arange(0, bins)
            in_bins = tl.load(counts + row * bins + places).to(tl.int64)
            reached = tl.cumsum(in_bins, 0, reverse=True)  # how many lie in this bin or a higher one
            which = tl.sum((reached >= room).to(tl.int64), 0) - 1
            ties = tl.sum(tl.where(places == which, in_bins, 0), 0)
            above = tl.sum(tl.where(places > which, in_bins, 0), 0)
            int64_one = which * 0 + 1
            begins = which << shift
            rest, most = span - begins, (int64_one << shift) - 1
            rest = tl.where(rest.to(tl.uint64, bitcast=True) < most.to(tl.uint64, bitcast=True), rest, most)
            wrong = (room < 1) | (which < 0)
            width: tl.constexpr = 64 if WIDE else 32
            start = tl.where(wrong, -(int64_one << (width - 1)), low + begins)
            rest = tl.where(wrong, (int64_one << (width - 1)) * 2 - 1, rest)
            further = _shift_for(rest, BITS)
            tl.debug_barrier()  # all threads have read the counts above before they are overwritten
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
        """Count in each block how many scores equal the threshold: those preferred, then the others."""
        block = tl.program_id(0)
        if tl.load(state + ROOM) != tl.load(state + TIES):  # if they are equal, all ties are kept
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
        """Write the mask: all scores above the threshold, and the first ties, as many as there is room for."""
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
            before = tl.load(ranks + block) - tl.load(ties + block)  # ties in earlier blocks; preferred ones come first
            later = tl.load(ranks + blocks + block) - tl.load(ties + blocks + block)
            rank = tl.where(first, before + tl.cumsum(first.to(tl.int32), 0), later + tl.cumsum(other.to(tl.int32), 0))
            wins = wins & (~tied | (rank <= room))
        tl.store(chosen + places, wins.to(tl.int8), mask=places < size)


def top(scores: Tensor, keep: int | Tensor, prefer: Tensor | None = None, among: Tensor | None = None) -> Tensor:
    """Return the mask of the `keep` highest of flat scores, `keep` >= 1; ties go to `prefer`, then to the lower index.

    Nothing is sorted or gathered. Each pass over the scores narrows the span that holds the threshold by BITS bits. A
    sample says where to begin; if it misled, one pass is lost and the next begins with the span of all numbers.
    """
    size, wide, device = scores.numel(), scores.dtype == torch.float64, scores.device
    blocks = triton.cdiv(size, BLOCK)
    count = torch.empty((), dtype=torch.int64, device=device)
    count.copy_(keep) if isinstance(keep, Tensor) else count.fill_(keep)
    states = torch.zeros(3, FIELDS, dtype=torch.int64, device=device)
    counts = torch.zeros(2, 1 << BITS, dtype=torch.int32, device=device)
    ties = torch.empty(2 * blocks, dtype=torch.int32, device=device)
    chosen = torch.empty(size, dtype=torch.bool, device=device)
    allowed = scores if among is None else among.view(torch.int8)  # any pointer, which the kernel does not read
    preferred = scores if prefer is None else prefer.view(torch.int8)
    kind = {"WIDE": wide, "BITS": BITS}
    options = {"WIDE": wide, "AMONG": among is not None, "BLOCK": BLOCK, "num_warps": 8}
    passes = triton.cdiv(64 if wide else 32, BITS)

    def narrow(searches: Tensor, rows: int, length: int, stride: int) -> None:
        programs = min(triton.cdiv(length, BLOCK), PROGRAMS)
        _count[(programs, rows)](scores, allowed, counts, searches, length, STRIDE=stride, BITS=BITS, **options)
        _settle[(rows,)](counts, searches, **kind)

    with torch.cuda.device_of(scores):  # Triton launches on the current device
        _begin[(3,)](states, count, size, STRIDE=STRIDE, **kind)
        if size >= MANY:
            for _ in range(ROUGH):
                narrow(states[1:], 2, triton.cdiv(size, STRIDE), STRIDE)
            _bracket[(1,)](states, BITS=BITS)
        for _ in range(passes + 1):  # one more, because the sample may have misled the first
            narrow(states, 1, size, 1)
        options |= {"PREFER": prefer is not None}
        _count_ties[(blocks,)](scores, allowed, preferred, states, ties, size, **options)
        ranks = ties.cumsum(0, dtype=torch.int32)
        _choose[(blocks,)](scores, allowed, preferred, states, ties, ranks, chosen.view(torch.int8), size, **options)
    return chosen
