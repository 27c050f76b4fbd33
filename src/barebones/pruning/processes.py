"""Several processes: the ranks of a data-parallel model, and sharded networks.

The ranks of a DistributedDataParallel model have whole weights, and add up their gradients. Of a sharded network, each
process holds some rows of every weight (FSDP2, column-parallel layers); scores and masks stay where their weights are,
and the highest scores of all are found exactly. The threshold is found by histograms of the scores' bits, 16 at a time,
which are added over all processes. Ties go to the lower index, as on one device: each process learns how many ties the
others have. Rows that several processes hold, as under hybrid sharding, count once.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..masks import Masks, Scores
from ..messages import shortened
from ..running.chunks import CHUNK
from ..running.digest import MIX, of_tensors, text
from ..running.modes import by_kind
from ..running.shards import first_row, is_sharded, local, sharded_like
from ..scope import bare
from .selection import Flat, top_masks

DIGIT = 16  # bits of a histogram
PART = 1 << 22  # scores that are looked at together, so that what is made of them needs little memory


def unwrapped(model: nn.Module) -> tuple[nn.Module, Any]:
    """Return the module to call, and the process group of a DistributedDataParallel model; None for any other.

    A compiled model is called as it is, a data-parallel one without its wrapper: `sum_over_ranks` does its reduction.
    """
    inside: Any = model
    while type(inside).__name__ == "OptimizedModule":
        inside = inside._orig_mod
    distributed = type(inside).__name__ == "DistributedDataParallel"
    parallel = distributed or type(inside).__name__ == "DataParallel"
    return bare(model) if parallel else model, inside.process_group if distributed else None


def sum_over_ranks(group: Any, tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its sum over the ranks, in place, with one reduction of all tensors of a kind."""
    for alike in by_kind(tensors):
        row = torch.cat([tensor.reshape(-1) for tensor in alike])
        dist.all_reduce(row, group=group)
        parts = row.split([tensor.numel() for tensor in alike])
        for tensor, part in zip(alike, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))


class Shards:
    """The rows of the prunable weights that each process holds."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], transposed: Mapping[str, int]) -> None:
        out = "leave it out with exclude="
        if plain := [name for name, parameter in parameters.items() if not is_sharded(parameter)]:
            raise ValueError(f"the model is sharded, but {shortened(plain)} is not; shard it, too, or {out}")
        if frozen := [name for name, parameter in parameters.items() if not parameter.requires_grad]:
            raise ValueError(f"{shortened(frozen)} is frozen; set requires_grad before fully_shard, or {out}")
        if grouped := [name for name in parameters if transposed.get(name, 1) > 1]:  # they lie across the processes
            raise ValueError(f"{shortened(grouped)} is a transposed convolution with groups; {out}")
        self.parameters = parameters
        self.rank, self.device = dist.get_rank(), local(next(iter(parameters.values()))).device
        shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        if len(set(self._gathered(torch.tensor([text(shapes)])).flatten().tolist())) > 1:
            raise ValueError("the processes have different networks; every process must hold a part of the same one")
        starts = self._gathered(torch.tensor([first_row(p) for p in parameters.values()])).T  # by weight and process
        self._order = starts.sort(dim=1, stable=True).indices  # the processes in the order of their rows
        same = starts.gather(1, self._order).diff(dim=1, prepend=torch.full((len(shapes), 1), -1)) == 0
        owns = torch.ones_like(same).scatter(1, self._order, ~same)  # of equal rows, the first process counts them
        self._owns, self.first = owns, owns[:, self.rank].to(self.device)
        self._owner = [int(((starts[i] == starts[i, self.rank]) & owns[i]).nonzero()) for i in range(len(shapes))]

    def whole(self, rows: Mapping[str, Tensor]) -> Masks:
        return Masks({name: sharded_like(mask, self.parameters[name]) for name, mask in rows.items()})

    def sums(self, counts: Tensor) -> Tensor:
        """Add a vector, one value for each weight, over the processes; rows that several hold count once."""
        return self.over_ranks(torch.where(self.first, counts, torch.zeros_like(counts)))

    def any_rank(self, flags: Tensor) -> Tensor:
        return self.over_ranks(flags.int(), largest=True).bool()

    def over_ranks(self, values: Tensor, largest: bool = False) -> Tensor:
        dist.all_reduce(values, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM)
        return values

    def _gathered(self, values: Tensor) -> Tensor:
        """Return the values of all processes, on the host."""
        everyone = [torch.zeros_like(values, device=self.device) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, values.to(self.device))
        return torch.stack(everyone).cpu()

    def digest(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return a digest of sharded tensors, by name; it does not depend on how many processes share them."""
        terms = []
        for name, tensor in tensors.items():
            rows = local(tensor).contiguous().view(-1)
            words = rows.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[rows.element_size()])
            start = first_row(tensor) * (tensor.numel() // max(len(tensor), 1)) if tensor.dim() else 0
            total = torch.zeros((), dtype=torch.int64, device=rows.device)
            for offset in range(0, len(words), CHUNK):
                part = words[offset : offset + CHUNK].long()
                factors = torch.arange(start + offset, start + offset + len(part), device=part.device) * MIX | 1
                total += ((part ^ (part >> 29)) * factors).sum()
            terms.append(total * (text(name, tuple(tensor.shape)) | 1))
        return self.sums(torch.stack(terms)).sum()

    def copies_differ(self) -> bool:
        """Tell all processes whether any of them holds other values than the first process with the same rows."""
        own = torch.stack([of_tensors([local(parameter)]) for parameter in self.parameters.values()])
        first = self._gathered(own)[self._owner, range(len(own))]
        return bool(self.any_rank((first != own.cpu()).any().to(self.device)))

    def keep_top(
        self, scores: Scores, keep: int, prefer: Masks | None, among: Mapping[str, Tensor] | None, at_least: int
    ) -> Masks:
        """Return the local rows of the masks of the `keep` highest scores of all; see `selection.keep_top`."""
        sizes = []
        if at_least:
            counts = [s.numel() if among is None else int(among[name].count_nonzero()) for name, s in scores.items()]
            sizes = self.sums(torch.tensor(counts, device=self.device)).tolist()
        return top_masks(scores, keep, prefer, among, at_least, sizes, self._top)

    def _top(
        self, layers: Sequence[int], scores: Flat, keep: int, preferred: Flat | None, allowed: Flat | None
    ) -> Flat:
        """Do what `selection._top` does, for the local rows."""
        which, nothing = list(layers), [None] * len(scores)
        free: Sequence[Tensor | None] = allowed or nothing
        favored: Sequence[Tensor | None] = preferred or nothing  # of equal scores
        threshold = self._threshold(which, scores, keep, free)
        turns = 1 if preferred is None else 2
        masks = [torch.empty_like(scores[i], dtype=torch.bool) for i in which]
        counts = torch.zeros(1 + turns, len(which), dtype=torch.int64, device=self.device)  # above, and ties by turn
        for column, (i, mask) in enumerate(zip(which, masks, strict=True)):
            for part, keys in _parts(scores[i], free[i]):
                torch.gt(keys, threshold, out=mask[part])
                rows = [mask[part], *_ties(keys, threshold, favored[i], part)]
                counts[:, column] += torch.stack([row.count_nonzero() for row in rows])
        room = keep - int(self.over_ranks(torch.where(self.first[which], counts[0], 0).sum()))
        order, owns = self._order[which], self._owns[which]
        table = self._gathered(counts[1:]) * owns.T[:, None]  # by process, turn and weight
        table = table.permute(1, 2, 0).gather(2, order.expand(turns, -1, -1))  # in the order of turns and indices
        before = table.flatten().cumsum(0).view(table.shape) - table
        quotas = (room - before).clamp(min=0).minimum(table)
        for column, (i, mask) in enumerate(zip(which, masks, strict=True)):
            place = int((order[column] == self._owner[i]).nonzero())
            left = quotas[:, column, place].tolist()
            for part, keys in _parts(scores[i], free[i]) if any(left) else ():
                for turn, tied in enumerate(_ties(keys, threshold, favored[i], part)):
                    taken = tied.nonzero()[: left[turn], 0]
                    mask[part][taken] = True
                    left[turn] -= len(taken)
        return masks

    def _threshold(self, which: list[int], scores: Flat, keep: int, free: Sequence[Tensor | None]) -> int:
        """Return the highest key that at least `keep` keys reach, found digit by digit."""
        width, above, lowest = 8 * scores[0].element_size(), 0, -1 << DIGIT - 1  # the highest digit has a sign
        for shift in range(width - DIGIT, -1, -DIGIT):
            counts = torch.zeros(1 << DIGIT, dtype=torch.int64, device=self.device)
            for i in which:
                for _, keys in _parts(scores[i], free[i]) if self.first[i] else ():
                    digits = (keys >> shift) - lowest
                    if shift + DIGIT < width:  # only of keys with the digits that are known
                        digits = digits[(digits >= 0) & (digits < 1 << DIGIT)]
                    counts += digits.bincount(minlength=1 << DIGIT)
            reach = above + self.over_ranks(counts).flip(0).cumsum(0)  # how many have each digit or a higher one
            place = min(int((reach < keep).count_nonzero()), len(reach) - 1)
            above = int(reach[place - 1]) if place else above  # how many are above all keys with these digits
            prefix = lowest + len(reach) - 1 - place
            lowest = prefix << DIGIT
        if prefix == -1 << width - 1:  # the key of what cannot be chosen
            raise ValueError(f"cannot keep {keep} weights among {above}; keep fewer, or let `among` contain more")
        return prefix


def _parts(scores: Tensor, allowed: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
    """Yield parts of flat scores as integers in the same order; what is not allowed has the lowest.

    They are the bits of the scores, with those below the sign flipped for negative ones.
    """
    for start in range(0, len(scores), PART):
        part = slice(start, start + PART)
        values = scores[part] + 0.0  # -0.0 equals 0.0
        bits = values.view(torch.int64 if scores.dtype == torch.float64 else torch.int32)
        bits ^= (bits >> 8 * bits.element_size() - 1) & torch.iinfo(bits.dtype).max
        yield part, bits if allowed is None else bits.masked_fill_(~allowed[part], torch.iinfo(bits.dtype).min)


def _ties(keys: Tensor, threshold: int, preferred: Tensor | None, part: slice) -> list[Tensor]:
    tied = keys == threshold
    return [tied] if preferred is None else [tied & preferred[part], tied & ~preferred[part]]
