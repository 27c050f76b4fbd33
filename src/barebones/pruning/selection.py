"""Selection: keep exactly the k highest scores of all layers together.

Two algorithms give the same masks:

- `_by_threshold`: `torch.topk` finds the threshold, and counts of the equal scores say which of them stay. The host
  never waits for an accelerator;
- `_by_bracket`, several times faster on the CPU: a sorted sample brackets the threshold, and only the scores inside the
  bracket are compared. If the sample misled or too many scores are equal, it gives up.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ..masks import Masks, Scores, row
from ..messages import shortened
from ..running.shards import refuse_shards

SAMPLE = 1 << 16  # scores that are sorted to bracket the threshold
BLOCK = 1 << 10  # equal scores are counted in blocks of this size


def keep_top(
    scores: Scores,
    keep: int,
    *,
    prefer: Mapping[str, Tensor] | None = None,
    among: Mapping[str, Tensor] | None = None,
    at_least: int = 0,
) -> Masks:
    """Return the masks of exactly the `keep` highest scores over all layers together.

    Ties go to the weights that `prefer` keeps, then to the lower index: layers in the dict's order, each in logical
    row-major order whatever its memory format. Weights outside `among`, and those with a score of -inf, cannot be
    chosen. `at_least` gives every layer that many of its best weights first, or all that it has.

    >>> dict(keep_top({"a": torch.tensor([0.0, 3.0, 0.0]), "b": torch.tensor([2.0, 0.0])}, keep=3))
    {'a': tensor([ True,  True, False]), 'b': tensor([ True, False])}
    """
    refuse_shards("scores", scores)
    refuse_shards("masks", prefer, among)
    if wrong := [name for name, score in scores.items() if not isinstance(score, Tensor)]:
        raise ValueError(f"the scores of {shortened(wrong)} are no tensors; turn them into tensors first")
    if unknown := [name for name, score in scores.items() if score.isnan().any()]:
        raise ValueError(f"the scores of {shortened(unknown)} are not numbers (NaN); check how they are computed")
    masks = [(name, mask.get(name)) for mask in (prefer, among) if mask is not None for name in scores]
    if wrong := [n for n, m in masks if m is None or m.dtype != torch.bool or m.shape != scores[n].shape]:
        raise ValueError(f"prefer and among need a bool mask of each score's shape; check {shortened(wrong)}")
    total = sum(score.numel() for score in scores.values())
    if not 0 <= keep <= total:
        raise ValueError(f"cannot keep {keep} of {total} weights; choose a number from 0 to {total}")
    allowed = [score > -torch.inf if among is None else among[n] & (score > -torch.inf) for n, score in scores.items()]
    sizes = [int(mask.count_nonzero()) for mask in allowed]
    if keep > sum(sizes):
        raise ValueError(f"cannot keep {keep} weights among {sum(sizes)}: those in `among` with a score above -inf")
    return top_masks(scores, keep, prefer, among, at_least, sizes)


Given = Mapping[str, Tensor] | None
Flat = list[Tensor]  # one flat tensor for each layer


def top_masks(
    scores: Scores,
    keep: int,
    prefer: Given = None,
    among: Given = None,
    at_least: int = 0,
    sizes: Sequence[int] = (),
    top: Callable[[Sequence[int], Flat, int, Flat | None, Flat | None], Flat] | None = None,
) -> Masks:
    """Return the same without a check, so that the host waits for no device: there must be enough weights to choose.

    `sizes` says how many of each layer can be chosen, if some have fewer than `at_least`. `top` replaces `_top`.
    """
    top, flat = top or _top, comparable(scores)
    preferred, allowed = ([m[name].reshape(-1) for name in scores] if m is not None else None for m in (prefer, among))
    floors = [min(at_least, size) for size in sizes or map(len, flat)]
    if sum(floors) > keep:
        raise ValueError(f"at_least={at_least} asks for {sum(floors)} weights, but only {keep} are kept; lower it")
    layers = range(len(flat))
    best = [top([layer], flat, floors[layer], preferred, allowed)[0] for layer in layers if at_least]
    if at_least:  # the best of each layer first, then the best of the rest
        allowed = [~mask if allowed is None else allowed[layer] & ~mask for layer, mask in enumerate(best)]
    chosen = top(layers, flat, keep - sum(floors), preferred, allowed)
    for mask, floor in zip(chosen, best, strict=False):
        mask |= floor
    return Masks({name: mask.view(s.shape) for (name, s), mask in zip(scores.items(), chosen, strict=True)})


def comparable(scores: Scores) -> Flat:
    """Return flat views of one common type, at least float32."""
    exact = any(score.dtype == torch.float64 or not score.is_floating_point() for score in scores.values())
    dtype = torch.float64 if exact else torch.float32
    return [score.detach().reshape(-1).to(dtype) for score in scores.values()]


def _top(layers: Sequence[int], scores: Flat, keep: int, preferred: Flat | None, allowed: Flat | None) -> Flat:
    """Return the masks of the `keep` highest scores of these layers."""
    scores = [scores[layer] for layer in layers]
    preferred, allowed = (m and [m[layer] for layer in layers] for m in (preferred, allowed))
    total, device = sum(score.numel() for score in scores), scores[0].device
    if keep in (0, total):
        return [torch.full(score.shape, keep > 0, dtype=torch.bool, device=device) for score in scores]
    if device.type == "cpu" and (masks := _by_bracket(scores, keep, preferred, allowed)) is not None:
        return masks
    prefer, among = (None if masks is None else row(masks) for masks in (preferred, allowed))
    chosen = _by_threshold(torch.cat(scores), keep, prefer, among)
    return list(chosen.split([score.numel() for score in scores]))


def _by_threshold(scores: Tensor, keep: int, prefer: Tensor | None, among: Tensor | None) -> Tensor:
    if among is not None:
        scores = scores.masked_fill(~among, -torch.inf)
    fewest = scores.numel() - keep + 1
    if keep < fewest:
        highest = scores.topk(keep, sorted=False).values
        threshold = highest.min()
    else:
        highest, threshold = scores, scores.topk(fewest, largest=False, sorted=False).values.max()
    chosen, tied = scores > threshold, scores == threshold
    turns = [tied] if prefer is None else [tied & prefer, tied & ~prefer]
    if among is not None:  # others are tied, too, if the threshold is -inf
        turns = [turn & among for turn in turns]
    room = keep - (highest > threshold).sum()
    for turn in turns:
        stays, room = _first(turn, room)
        chosen |= stays
    return chosen


def _first(mask: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mask of the first `room` true values, and how much room is left; below zero if some had none.

    Only the block where the room ends is looked into: a running count over all values would take many times longer.
    """
    blocks = torch.nn.functional.pad(mask, (0, -mask.numel() % BLOCK)).view(-1, BLOCK)
    counts = blocks.sum(1, dtype=torch.int16)  # a sum of bools is one of copies in its type: small ones
    up_to = counts.cumsum(0)
    whole = up_to <= room
    last = (~whole).int().argmax().view(1)  # the first block that does not stay whole
    block, left = blocks.index_select(0, last), room - (up_to - counts)[last]
    stays = (blocks & whole.view(-1, 1)).index_copy_(0, last, block & (block.cumsum(1) <= left))
    return stays.view(-1)[: mask.numel()], room - up_to[-1]


def _by_bracket(scores: Flat, keep: int, preferred: Flat | None, allowed: Flat | None) -> Flat | None:
    """Keep all scores above the bracket, and look at those inside; None if the bracket is of no use."""
    low, high = _bracket(scores, keep, allowed)
    masks = [score > high for score in scores]
    inside = [(score >= low).logical_xor_(mask) for score, mask in zip(scores, masks, strict=True)]
    if allowed is not None:
        for mask, may in zip(masks + inside, allowed + allowed, strict=True):
            mask.logical_and_(may)
    above, found = (sum(int(mask.count_nonzero()) for mask in each) for each in (masks, inside))
    if not 0 < keep - above <= found <= max(SAMPLE, sum(map(len, scores)) // 8):
        return None
    places = [_true_indices(mask) for mask in inside]

    def candidates(values: Flat) -> Tensor:
        return torch.cat([value[place] for value, place in zip(values, places, strict=True)])

    stays = _by_threshold(candidates(scores), keep - above, None if preferred is None else candidates(preferred), None)
    for mask, place, part in zip(masks, places, stays.split(list(map(len, places))), strict=True):
        mask[place] = part
    return masks


def _bracket(scores: Flat, keep: int, allowed: Flat | None) -> tuple[float, float]:
    """Return two values between which the keep-th highest score most likely lies; the upper is inf if few are kept."""
    stride = math.ceil(sum(score.numel() for score in scores) / SAMPLE)
    while stride > 10 and math.gcd(stride, 210) > 1:  # coprime to the usual sizes of kernels and channels
        stride += 1
    sample = torch.cat([score[::stride] for score in scores])
    if allowed is not None:
        sample = sample[torch.cat([mask[::stride] for mask in allowed])]
    size = sample.numel()
    rank = keep / stride
    margin = 4 * math.sqrt(max(rank * (1 - rank / size), 0.0) if size else 0.0) + 8  # four standard deviations and some
    first, last = math.floor(rank - margin), math.ceil(rank + margin)
    sample = sample.sort(descending=True).values
    low = float(sample[last]) if last < size else -math.inf
    high = float(sample[min(first, size - 1)]) if first >= 0 and size and rank > size / 16 else math.inf
    return low, high


def _true_indices(mask: Tensor) -> Tensor:
    """Return what `mask.nonzero()` does but faster: it looks at eight bools at a time, as a 64-bit word."""
    full = mask.numel() // 8 * 8
    words = mask[:full].view(torch.int64).nonzero()
    indices = (words * 8 + torch.arange(8, device=words.device)).flatten()
    indices = indices[mask[indices]]
    return torch.cat([indices, mask[full:].nonzero().flatten() + full])
