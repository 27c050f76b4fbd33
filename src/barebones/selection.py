"""Selection: keep exactly the k highest scores. No full sort; on an accelerator, no word from the host either."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from .masks import Masks, Scores

CHUNK = 1 << 20  # elements looked at together on the CPU: small enough to stay in its cache
SAMPLE = 1 << 16  # elements sorted to bracket the threshold


def keep_top(scores: Scores, keep: int, prefer: Masks | None = None, at_least: int = 0) -> Masks:
    """The masks of exactly the `keep` highest scores over all layers together.

    Ties go to the weights that `prefer` keeps, then to the lower index: layers in the dict's order, each
    in logical row-major order whatever its memory format. Scores of minus infinity come last; there must be
    no NaN. `at_least` gives every layer its own best weights first, that many or as many as it has.

    >>> keep_top({"a": torch.tensor([0.0, 3.0, 0.0]), "b": torch.tensor([2.0, 0.0])}, keep=3)
    {'a': tensor([ True,  True, False]), 'b': tensor([ True, False])}
    """
    shapes = {name: s.shape for name, s in scores.items()}
    parts = _comparable(scores)
    preferred = None if prefer is None else [prefer[name].reshape(-1) for name in scores]
    if not 0 <= keep <= sum(p.numel() for p in parts):
        raise ValueError(f"cannot keep {keep} of {sum(p.numel() for p in parts)} weights")
    if at_least:
        parts = _with_floor(parts, preferred, at_least, keep)
    chosen = _top(parts, keep, preferred)
    return {name: mask.view(shape) for (name, shape), mask in zip(shapes.items(), chosen, strict=True)}


def _comparable(scores: Scores) -> list[Tensor]:
    """Flat views of one common type, at least float32."""
    exact = any(s.dtype == torch.float64 or not s.is_floating_point() for s in scores.values())
    dtype = torch.float64 if exact else torch.float32
    return [s.detach().reshape(-1).to(dtype) for s in scores.values()]


def _with_floor(parts: list[Tensor], preferred: list[Tensor] | None, floor: int, keep: int) -> list[Tensor]:
    """Each layer's best `floor` scores become infinite, so that no other layer can outbid them."""
    floors = [min(floor, p.numel()) for p in parts]
    if sum(floors) > keep:
        raise ValueError(f"at_least={floor} asks for {sum(floors)} weights in all, but only {keep} are kept; lower it")
    raised = []
    for i, (part, count) in enumerate(zip(parts, floors, strict=True)):
        own = None if preferred is None else [preferred[i]]
        raised.append(part.masked_fill(_top([part], count, own)[0], torch.inf))
    return raised


def _top(parts: list[Tensor], keep: int, preferred: list[Tensor] | None) -> list[Tensor]:
    total = sum(p.numel() for p in parts)
    if keep in (0, total):
        return [torch.full(p.shape, keep > 0, dtype=torch.bool, device=p.device) for p in parts]
    if parts[0].device.type == "cpu":
        return _top_on_host(parts, keep, preferred)
    flat = torch.cat(parts) if len(parts) > 1 else parts[0]
    wanted = None if preferred is None else torch.cat(preferred)
    return list(top_on_device(flat, keep, wanted).split([p.numel() for p in parts]))


def top_on_device(scores: Tensor, keep: int, prefer: Tensor | None = None) -> Tensor:
    """The mask of the `keep` highest of flat `scores`, in device operations alone: nothing waits for the host."""
    if keep <= scores.numel() // 2:
        threshold = scores.topk(keep, sorted=False).values.amin()
    else:
        threshold = scores.topk(scores.numel() - keep + 1, largest=False, sorted=False).values.amax()
    above = scores > threshold
    tied = scores == threshold
    needed = keep - above.sum()
    rank = tied.cumsum(0, dtype=torch.int32)
    if prefer is not None:
        first = (tied & prefer).cumsum(0, dtype=torch.int32)
        rank = torch.where(prefer, first, rank - first + first[-1])
    return above | (tied & (rank <= needed))


def _top_on_host(parts: list[Tensor], keep: int, preferred: list[Tensor] | None) -> list[Tensor]:
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
        stride = math.ceil(total / SAMPLE)
        while math.gcd(stride, 210) > 1:  # a divisor of kernel or channel sizes would see the same places of each
            stride += 1
        sample = torch.cat([p[::stride] for p in parts]).sort(descending=True).values
        centre = (k - above) / total * sample.numel()
        margin = 4 * math.sqrt(max(centre * (1 - centre / sample.numel()), 0.0)) + 8
        first, last = math.floor(centre - margin), math.ceil(centre + margin)
        high = float(sample[first]) if first >= 0 else math.inf
        low = float(sample[last]) if last < sample.numel() else -math.inf
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


def _chunks(parts: Iterable[Tensor]) -> Iterable[Tensor]:
    for part in parts:
        yield from part.split(CHUNK)
