"""Sharded networks: scores and masks stay where their weights are, and the highest scores of all are found exactly.

Each process holds some rows of every weight (FSDP2, tensor parallelism). The threshold is found by bisection over the
bits of the scores: a step counts the local scores above a candidate and adds the counts of all processes. Ties go to
the lower index, as on one device: each process learns how many ties the others have. Rows that several processes hold,
as under hybrid sharding, count once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..masks import Masks, Scores
from ..messages import shortened
from ..running.chunks import CHUNK
from ..running.digest import MIX, of_tensors, text
from ..running.shards import first_row, is_sharded, local, own_rows, sharded_like
from .selection import comparable


class Shards:
    """The rows of the prunable weights that each process holds."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        if plain := [name for name, parameter in parameters.items() if not is_sharded(parameter)]:
            raise ValueError(
                f"the model is sharded, but {shortened(plain)} is not; shard it, too, or leave it out with exclude="
            )
        if frozen := [name for name, parameter in parameters.items() if not parameter.requires_grad]:
            raise ValueError(
                f"{shortened(frozen)} is frozen, and a sharded weight needs requires_grad before fully_shard; set it "
                "there, or leave the weight out with exclude="
            )
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

    def local(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the rows of this process of whole or sharded tensors."""
        return {n: local(t) if is_sharded(t) else own_rows(t, self.parameters[n]) for n, t in tensors.items()}

    def whole(self, rows: Mapping[str, Tensor]) -> Masks:
        """Return masks as sharded tensors."""
        return Masks({name: sharded_like(mask, self.parameters[name]) for name, mask in rows.items()})

    def sums(self, counts: Tensor) -> Tensor:
        """Add a vector, one value for each weight, over the processes; rows that several hold count once."""
        return self.over_ranks(torch.where(self.first, counts, torch.zeros_like(counts)))

    def over_ranks(self, values: Tensor, largest: bool = False) -> Tensor:
        """Return the sum over all processes, or the largest value."""
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
        return bool(self.over_ranks((first != own.cpu()).any().long().to(self.device), largest=True))

    def keep_top(
        self, scores: Scores, keep: int, prefer: Masks | None, among: Mapping[str, Tensor] | None, at_least: int
    ) -> Masks:
        """Return the local rows of the masks of the `keep` highest scores of all; see `selection.keep_top`."""
        keys = [_keys(score) for score in comparable(scores)]
        preferred = [None if prefer is None else prefer[name].reshape(-1) for name in scores]
        if among is not None:
            for key, name in zip(keys, scores, strict=True):
                key.masked_fill_(~among[name].reshape(-1), _lowest(key))
        floors: list[Tensor] = []
        if at_least:
            possible = self.sums(torch.stack([(key > _lowest(key)).count_nonzero() for key in keys])).tolist()
            for i, (key, most) in enumerate(zip(keys, possible, strict=True)):
                floors += self._top([i], [key], min(at_least, most), [preferred[i]])
                key.masked_fill_(floors[i], _lowest(key))
                keep -= min(at_least, most)
        best = self._top(list(range(len(keys))), keys, keep, preferred)
        for mask, floor in zip(best, floors, strict=False):
            mask |= floor
        return Masks({name: mask.view(scores[name].shape) for name, mask in zip(scores, best, strict=True)})

    def _top(self, which: list[int], keys: list[Tensor], keep: int, preferred: list[Tensor | None]) -> list[Tensor]:
        """Return the masks of the `keep` highest keys of the weights with these numbers."""
        threshold = self._threshold(which, keys, keep)
        masks, ties = [key > threshold for key in keys], [key == threshold for key in keys]
        turns = [ties]
        if preferred[0] is not None:
            first = [tied & liked for tied, liked in zip(ties, preferred, strict=True)]  # type: ignore[operator]
            turns = [first, [tied ^ taken for tied, taken in zip(ties, first, strict=True)]]
        room = keep - self._count(which, masks)
        counts = torch.stack([torch.stack([tied.count_nonzero() for tied in turn]) for turn in turns])
        order, owns = self._order[which], self._owns[which]
        table = self._gathered(counts) * owns.T[:, None]  # by process, turn and weight
        table = table.permute(1, 2, 0).gather(2, order.expand(len(turns), -1, -1))  # in the order of turns and indices
        before = table.flatten().cumsum(0).view(table.shape) - table
        quotas = (room - before).clamp(min=0).minimum(table)
        for turn, quota in zip(turns, quotas, strict=True):
            for i, (mask, tied) in enumerate(zip(masks, turn, strict=True)):
                place = int((order[i] == self._owner[which[i]]).nonzero())
                mask[tied.nonzero()[: int(quota[i, place]), 0]] = True
        return masks

    def _threshold(self, which: list[int], keys: list[Tensor], keep: int) -> int:
        """Return the highest key that at least `keep` keys reach."""
        low, high = _lowest(keys[0]) + 1, torch.iinfo(keys[0].dtype).max
        if (possible := self._count(which, (key >= low for key in keys))) < keep:
            raise ValueError(f"cannot keep {keep} weights among {possible}; keep fewer, or let `among` contain more")
        while low < high:
            middle = (low + high + 1) // 2
            if self._count(which, (key >= middle for key in keys)) >= keep:
                low = middle
            else:
                high = middle - 1
        return low

    def _count(self, which: list[int], masks: Iterable[Tensor]) -> int:
        counts = torch.stack([mask.count_nonzero() for mask in masks])
        return int(self.over_ranks(torch.where(self.first[which], counts, 0).sum()))


def _keys(scores: Tensor) -> Tensor:
    """Return integers in the order of the scores: their bits, with those below the sign flipped for negative ones."""
    scores = scores + 0.0  # -0.0 equals 0.0
    bits = scores.view(torch.int64 if scores.dtype == torch.float64 else torch.int32)
    return torch.where(bits < 0, bits ^ torch.iinfo(bits.dtype).max, bits)


def _lowest(keys: Tensor) -> int:
    """Return the key of what cannot be chosen, which is below that of any score."""
    return torch.iinfo(keys.dtype).min
