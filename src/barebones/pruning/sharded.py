"""The steps of a round on a sharded network: each process works on the rows that it holds."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..masks import Masks, Scores
from ..messages import shortened
from .probe import Probe
from .round_stats import check_finite, not_finite
from .shards import Shards
from .steps import Steps


@dataclass
class ShardedSteps(Steps):
    """The steps of a round, on the local rows of each weight."""

    def not_finite(self, scores: Scores) -> Tensor:
        flags = self.shards.over_ranks(not_finite(scores, self.probe.loss_not_finite).int(), largest=True).bool()
        check_finite(flags, self.probe.parameters, self.index)
        return flags

    def select(self, scores: Scores, masks: Masks | None) -> Masks:
        prefer: Masks | None = None
        among: Mapping[str, Tensor] | None = masks
        if self.method.revives(self.index) and masks is not None:
            prefer, among = masks, None
            if not self.method.revive_empty:
                among = {name: mask | self._used(name, mask) for name, mask in masks.items()}
        return self.shards.keep_top(scores, self.keep, prefer, among, self.method.at_least)

    def changes(self, before: Masks | None, after: Masks) -> Tensor:
        rows = [torch.stack([mask.count_nonzero() for mask in after.values()])]
        if before is not None and self.method.revives(self.index):
            rows.append(torch.stack([(before[name] & mask).count_nonzero() for name, mask in after.items()]))
            rows.append(torch.stack([(m & ~self._used(n, before[n])).count_nonzero() for n, m in after.items()]))
        layers, *others = [self.shards.sums(row) for row in rows]
        kept_now = layers.sum()
        stayed, empty = [row.sum() for row in others] or [kept_now, torch.zeros_like(kept_now)]
        return torch.cat([torch.stack([self.kept_before - stayed, kept_now - stayed, empty]), layers])

    def _used(self, name: str, mask: Tensor) -> Tensor:
        """Return which output channels keep a weight, to broadcast with the mask; inputs may lie on other processes."""
        if name not in self.transposed:
            return mask.flatten(1).any(1).view(-1, *[1] * (mask.dim() - 1))
        used = mask.any(0).flatten(1).any(1) if mask.dim() > 2 else mask.any(0)
        return self.shards.over_ranks(used.int(), largest=True).bool().view(1, -1, *[1] * (mask.dim() - 2))

    @property
    def shards(self) -> Shards:
        assert self.probe.shards is not None
        return self.probe.shards


def refuse_groups(probe: Probe, transposed: Mapping[str, int]) -> None:
    """Refuse a grouped transposed convolution: its groups lie across the processes."""
    if grouped := [name for name in probe.parameters if transposed.get(name, 1) > 1]:
        raise ValueError(f"{shortened(grouped)} is a transposed convolution with groups; leave it out with exclude=")
