"""Selection: keep exactly the k highest scores. No full sort; on an accelerator, no word from the host either."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ..gpu import kernels
from ..masks import Masks, Scores

CHUNK = 1 << 20  # elements looked at together on the CPU, in its cache; a multiple of 8
SAMPLE = 1 << 16  # elements sorted to bracket the threshold


def keep_top(
    scores: Scores,
    keep: int,
    *,
    prefer: Mapping[str, Tensor] | None = None,
    among: Mapping[str, Tensor] | None = None,
    at_least: int = 0,
) -> Masks:
    """The masks of exactly the `keep` highest scores over all layers together.

    Ties go to the weights that `prefer` keeps, then to the lower index: layers in the dict's order, each
    in logical row-major order whatever its memory format. Weights outside of `among` cannot be chosen,
    whatever their score; there must be enough inside. `at_least` gives every layer its own best weights
    first, that many or as many as it has. There must be no NaN.

    >>> dict(keep_top({"a": torch.tensor([0.0, 3.0, 0.0]), "b": torch.tensor([2.0, 0.0])}, keep=3))
    {'a': tensor([ True,  True, False]), 'b': tensor([ True, False])}
    """
    total = sum(s.numel() for s in scores.values())
    if not 0 <= keep <= total:
        raise ValueError(f"cannot keep {keep} of {total} weights")
    parts = _comparable(scores)
    preferred, allowed = ([m[name].reshape(-1) for name in scores] if m is not None else None for m in (prefer, among))
    if at_least:
        chosen = _top_with_floor(parts, keep, preferred, allowed, at_least)
    else:
        chosen = _top(parts, keep, preferred, allowed)
    return Masks({name: mask.view(s.shape) for (name, s), mask in zip(scores.items(), chosen, strict=True)})


def _comparable(scores: Scores) -> list[Tensor]:
    """Flat views of one common type, at least float32."""
    exact = any(s.dtype == torch.float64 or not s.is_floating_point() for s in scores.values())
    dtype = torch.float64 if exact else torch.float32
    return [s.detach().reshape(-1).to(dtype) for s in scores.values()]


def _top_with_floor(
    parts: list[Tensor], keep: int, preferred: list[Tensor] | None, allowed: list[Tensor] | None, floor: int
) -> list[Tensor]:
    """First each layer's own best, then the best of the rest."""
    sizes = [p.numel() for p in parts]
    if allowed is not None and allowed[0].device.type == "cpu":  # elsewhere counting would wait
        sizes = [int(a.count_nonzero()) for a in allowed]
    floors = [min(floor, size) for size in sizes]
    if sum(floors) > keep:
        raise ValueError(f"at_least={floor} asks for {sum(floors)} weights in all, but only {keep} are kept; lower it")
    own = [
        _top([part], count, preferred and preferred[i : i + 1], allowed and allowed[i : i + 1])[0]
        for i, (part, count) in enumerate(zip(parts, floors, strict=True))
    ]
    others = [~mask for mask in own]
    if allowed is not None:
        others = [other & a for other, a in zip(others, allowed, strict=True)]
    rest = _top(parts, keep - sum(floors), preferred, others)
    return [a | b for a, b in zip(own, rest, strict=True)]


def _top(parts: list[Tensor], keep: int, preferred: list[Tensor] | None, allowed: list[Tensor] | None) -> list[Tensor]:
    if keep in (0, sum(p.numel() for p in parts)):
        return [torch.full(p.shape, keep > 0, dtype=torch.bool, device=p.device) for p in parts]
    on_host = parts[0].device.type == "cpu"
    if on_host and (masks := _top_in_bracket(parts, keep, preferred, allowed)):
        return masks
    if on_host:
        if allowed is not None:
            if (most := sum(int(a.count_nonzero()) for a in allowed)) < keep:
                raise ValueError(f"cannot keep {keep} weights among {most}")
            parts = [torch.where(a, p, -torch.inf) for a, p in zip(allowed, parts, strict=True)]
        return _top_by_threshold(parts, keep, preferred)
    flat, wanted = torch.cat(parts), None if preferred is None else torch.cat(preferred)
    if kernels.available(flat.device) and flat.numel() <= kernels.LARGEST:
        among = None if allowed is None else torch.cat(allowed)
        return list(kernels.top(flat, keep, wanted, among).split([p.numel() for p in parts]))
    if allowed is not None:
        flat.masked_fill_(torch.cat(allowed).logical_not_(), -torch.inf)
    chosen = list(top_on_device(flat, keep, wanted).split([p.numel() for p in parts]))
    return chosen if allowed is None else [c & a for c, a in zip(chosen, allowed, strict=True)]


def top_on_device(scores: Tensor, keep: int, prefer: Tensor | None = None) -> Tensor:
    """The mask of the `keep` highest of flat `scores`, in device operations alone: nothing waits for the host."""
    threshold = _kth_on_device(scores, keep)
    chosen = scores > threshold
    tied = scores == threshold
    needed = keep - chosen.sum()
    for turn in [tied] if prefer is None else [tied & prefer, tied & ~prefer]:
        for piece, out in zip(turn.split(_eighth(turn)), chosen.split(_eighth(turn)), strict=True):
            piece &= piece.cumsum(0, dtype=torch.int32) <= needed
            needed = needed - piece.sum()
            out |= piece
    return chosen


def _eighth(flat: Tensor) -> int:
    """Of its length: what counting ranks may cost in memory, four bytes for each of so many."""
    return max(1, -(-flat.numel() // 8))


def _kth_on_device(scores: Tensor, k: int) -> Tensor:
    """The k-th largest, by torch's selection where few are taken from an end (it returns their indices, too)."""
    few = max(1, scores.numel() // 8)
    if k <= few:
        return scores.topk(k, sorted=False).values.amin()
    if scores.numel() - k < few:
        return scores.topk(scores.numel() - k + 1, largest=False, sorted=False).values.amax()
    # Else by halving the range of floats, as integers in the same order: the highest that at least k scores reach.
    width, integer = (32, torch.int32) if scores.dtype == torch.float32 else (64, torch.int64)
    magnitude = 2 ** (width - 1) - 1
    high = torch.full((), torch.inf, dtype=scores.dtype, device=scores.device).view(integer).to(torch.int64)
    low = -high - 1

    def value(order: Tensor) -> Tensor:
        return torch.where(order < 0, order ^ magnitude, order).to(integer).view(scores.dtype)

    for _ in range(width):
        middle = (low >> 1) + (high >> 1) + ((low | high) & 1)  # half-way, rounded up, without overflow
        reached = (scores >= value(middle)).sum() >= k
        low, high = torch.where(reached, middle, low), torch.where(reached, high, middle - 1)
    return value(low)


def _top_in_bracket(
    parts: list[Tensor], keep: int, preferred: list[Tensor] | None, allowed: list[Tensor] | None
) -> list[Tensor] | None:
    """The masks, if a sample brackets the threshold well: what lies above is kept, what lies inside is looked at.

    None where the sample misled or too many scores are equal; then the way by the threshold is taken.
    """
    low, high = _bracket(parts, keep, allowed)
    total = few = max(SAMPLE, sum(p.numel() for p in parts) // 8)  # how many inside are few enough
    masks, needed = [], keep
    places: list[Tensor] = []  # of the scores inside the bracket: where in their part
    values: list[Tensor] = []
    ends: list[int] = []  # how many there are up to the end of each part
    for i, part in enumerate(parts):
        mask = torch.empty(part.shape, dtype=torch.bool, device=part.device)
        for offset in range(0, part.numel(), CHUNK):
            piece = slice(offset, offset + CHUNK)
            inside = torch.ge(part[piece], low, out=mask[piece])
            if allowed is not None:
                inside.logical_and_(allowed[i][piece])
            if high < math.inf:
                beyond = part[piece] > high
                if allowed is not None:
                    beyond.logical_and_(allowed[i][piece])
                needed -= int(beyond.count_nonzero())
                inside = beyond.logical_xor_(inside)
            found = _true_indices(inside)
            few -= found.numel()
            if needed <= 0 or few < 0:
                return None
            values.append(part[piece][found])
            places.append(found.add_(offset))
        masks.append(mask)
        ends.append(total - few)
    place, value = torch.cat(places), torch.cat(values)
    if value.numel() < needed:
        return None
    threshold = value.kthvalue(value.numel() - needed + 1).values
    tied = (value == threshold).nonzero().flatten()
    spare = tied.numel() - (needed - int((value > threshold).count_nonzero()))  # ties that must go
    bounds = list(zip([0, *ends], ends, strict=False))  # of each part's share of the places
    if preferred is not None and spare:
        wanted = torch.cat([p[place[a:b]] for p, (a, b) in zip(preferred, bounds, strict=True)])[tied]
        tied = torch.cat([tied[wanted], tied[~wanted]])
    loses = value < threshold
    loses[tied[tied.numel() - spare :]] = True
    for mask, (a, b) in zip(masks, bounds, strict=True):
        mask[place[a:b][loses[a:b]]] = False
    return masks


def _bracket(parts: list[Tensor], keep: int, allowed: list[Tensor] | None) -> tuple[float, float]:
    """Two values between which the keep-th largest most likely lies; the upper one infinite where few are kept."""
    stride = _stride(sum(p.numel() for p in parts))
    sample = torch.cat([p[::stride] for p in parts])
    if allowed is not None:
        sample = sample[torch.cat([a[::stride] for a in allowed])]
    size = sample.numel()
    centre = keep / stride
    margin = 4 * math.sqrt(max(centre * (1 - centre / size), 0.0) if size else 0.0) + 8
    first, last = math.floor(centre - margin), math.ceil(centre + margin)
    sample = sample.sort(descending=True).values
    low = float(sample[last]) if last < size else -math.inf
    high = float(sample[min(first, size - 1)]) if first >= 0 and size and centre > size / 16 else math.inf
    return low, high


def _true_indices(mask: Tensor) -> Tensor:
    """`mask.nonzero()` of a flat mask, found eight at a time."""
    whole = mask.numel() // 8 * 8
    words = mask[:whole].view(torch.int64).nonzero()
    indices = (words * 8 + torch.arange(8, device=words.device)).flatten()
    indices = indices[mask[indices]]
    return torch.cat([indices, mask[whole:].nonzero().flatten() + whole])


def _top_by_threshold(parts: list[Tensor], keep: int, preferred: list[Tensor] | None) -> list[Tensor]:
    threshold = kth_largest(parts, keep)
    masks = [p >= threshold for p in parts]
    counts = [int(m.count_nonzero()) for m in masks]
    if sum(counts) == keep:
        return masks
    ties = [(p == threshold).logical_and_(m) for p, m in zip(parts, masks, strict=True)]
    for mask, tie in zip(masks, ties, strict=True):
        mask.logical_xor_(tie)
    needed = keep - sum(int(m.count_nonzero()) for m in masks)
    turns = [ties]
    if preferred is not None:
        first = [t & p for t, p in zip(ties, preferred, strict=True)]
        turns = [first, [t ^ f for t, f in zip(ties, first, strict=True)]]
    for turn in turns:
        for mask, tie in zip(masks, turn, strict=True):
            winners = tie.nonzero()[:needed, 0]
            mask[winners] = True
            needed -= winners.numel()
    assert needed == 0
    return masks


def kth_largest(parts: list[Tensor], k: int) -> float:
    """The k-th largest value over all parts, exactly, k from 1.

    A sorted sample brackets it; counting what lies above the bracket and gathering what lies inside leaves a
    problem a fraction of the size. Every step is exact, so an unlucky sample costs time, never the answer.
    """
    above = 0  # how many values are known to lie above everything still in parts
    while (total := sum(p.numel() for p in parts)) > SAMPLE:
        stride = _stride(total)
        sample = torch.cat([p[::stride] for p in parts]).sort(descending=True).values
        centre = (k - above) / total * sample.numel()
        margin = 4 * math.sqrt(max(centre * (1 - centre / sample.numel()), 0.0)) + 8
        first, last = math.floor(centre - margin), math.ceil(centre + margin)
        high = float(sample[first]) if first >= 0 else math.inf
        low = float(sample[last]) if last < sample.numel() else -math.inf
        if low == -math.inf and high == math.inf:
            break  # so small a sample tells nothing
        beyond, inside = 0, []
        for chunk in _chunks(parts):
            beyond += int((chunk > high).count_nonzero())
            inside.append(chunk[(chunk >= low).logical_and_(chunk <= high)])
        middle = torch.cat(inside)
        if above + beyond >= k:
            parts = [chunk[chunk > high] for chunk in _chunks(parts)]
        elif above + beyond + middle.numel() < k:
            parts = [chunk[chunk < low] for chunk in _chunks(parts)]
            above += beyond + middle.numel()
        else:
            above += beyond
            highest, lowest = int((middle == high).count_nonzero()), int((middle == low).count_nonzero())
            if k - above <= highest:
                return high
            if k - above > middle.numel() - lowest:
                return low
            parts = [middle[(middle > low).logical_and_(middle < high)]]
            above += highest
    return float(torch.cat(parts).sort(descending=True).values[k - above - 1])


def _stride(total: int) -> int:
    """To a sample: coprime to the sizes of kernels and channels, of which it would else see the same places."""
    stride = math.ceil(total / SAMPLE)
    while stride > 10 and math.gcd(stride, 210) > 1:
        stride += 1
    return stride


def _chunks(parts: Iterable[Tensor]) -> Iterable[Tensor]:
    for part in parts:
        yield from part.split(CHUNK)
